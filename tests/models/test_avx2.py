"""Code for processors without AVX-512, made by naming such a target: right, and ahead of plain loops.

Small nets here; models of the folders in OCC_TEST_MODELS, as for `test_exported`, in a slow test.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import time
from pathlib import Path
from statistics import median

import numpy as np
import onnx
import pytest
from building import mlp, model_of, reference
from exported import Exported, folders, session
from machines import opened
from test_exported import check

from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.ir.te.function import TeStage
from occ.compiler.ir.te.roles import PAD
from occ.compiler.targets.machine import machine_of
from occ.runtime.session import Session

AVX2 = {"halide.target": "x86-64-linux-avx2-fma"}
MODELS = [m for m in folders() if not m.is_dynamic]

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the tests build for x86-64")


def built(model: onnx.ModelProto | Path, schedule: str = "rules") -> Session:
    return opened(Compilation(model, Settings("cpu", options={**AVX2, "schedule": schedule})).artifact(), 1)


def net() -> onnx.ModelProto:
    """Convolutions of every kind that schedules tell apart, a pool, a product and a softmax."""
    rng = np.random.default_rng(1)
    shapes = {"a": (32, 3, 3, 3), "d": (32, 1, 3, 3), "p": (40, 32, 1, 1), "q": (40, 40, 3, 3), "f": (40, 10)}
    weights = {n: (rng.standard_normal(s) * 0.2).astype(np.float32) for n, s in shapes.items()}
    text = """g (float[n, 3, 32, 32] x) => (float[n, 10] y) {
        c = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, a)
        r = Relu(c)
        e = Conv<pads = [1, 1, 1, 1], group = 32>(r, d)
        s = Conv(e, p)
        t = Conv<pads = [1, 1, 1, 1]>(s, q)
        u = Add(s, t)
        m = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(u)
        v = GlobalAveragePool(m)
        w = Flatten(v)
        z = MatMul(w, f)
        y = Softmax(z)
    }"""
    return model_of(text, weights)


def test_the_machine_is_read_off_the_target() -> None:
    machine = machine_of(AVX2["halide.target"])
    assert (machine.vector_bits, machine.registers, machine.lanes(32), machine.has_f16c) == (256, 16, 8, False)


@pytest.mark.thinned
@pytest.mark.parametrize("schedule", ["rules", "fallback"])
def test_small_nets_at_two_sizes(schedule: str) -> None:
    rng = np.random.default_rng(2)
    for model, shape in ((net(), (3, 32, 32)), (mlp(), (8,))):
        ours = built(model, schedule)
        for n in (1, 3):
            x = rng.standard_normal((n, *shape)).astype(np.float32)
            for got, want in zip(ours.run({"x": x}).values(), reference(model, {"x": x}), strict=True):
                assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


def test_code_has_vectors_of_eight_and_none_of_sixteen(tmp_path: Path) -> None:
    if shutil.which("objdump") is None:
        pytest.skip("needs objdump")
    compilation = Compilation(net(), Settings("cpu", options=AVX2))
    artifact = compilation.artifact()
    kernels = re.findall(rb"^class (\w+) : public Generator", b"\n".join(artifact.files.values()), re.MULTILINE)
    assert len(kernels) >= 4
    assert compilation.native is not None
    for name in kernels:
        (tmp_path / "k.o").write_bytes(compilation.native.objects[f"{name.decode()}.o"])
        done = subprocess.run(["objdump", "-d", str(tmp_path / "k.o")], capture_output=True, text=True, check=True)
        assert "zmm" not in done.stdout
        assert "ymm" in done.stdout


def codes(dtype: type[np.integer]) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Products of the largest codes: two of them as bytes are more than 16 bits hold."""
    rng = np.random.default_rng(3)
    ends = lambda shape, kind: rng.choice(
        np.array([np.iinfo(kind).min, np.iinfo(kind).max, 7], kind), shape, p=[0.3, 0.6, 0.1]
    )
    weights = {"k": (33, 5, 3, 3), "p": (40, 33, 1, 1), "d": (33, 1, 3, 3), "m": (35, 19)}
    name = np.dtype(dtype).name
    text = f"""g ({name}[n, 5, 9, 11] x, {name}[n, 33, 6, 7] v, {name}[7, 35] r, {name}[35, 21] s)
        => (int32[n, 33, q, t] a, int32[n, 40, 6, 7] b, int32[n, 33, 6, 7] c, int32[7, 19] e, int32[7, 21] f) {{
        a = ConvInteger<pads = [1, 1, 1, 1], strides = [2, 1]>(x, k, z)
        b = ConvInteger(v, p, z)
        c = ConvInteger<pads = [1, 1, 1, 1], group = 33>(v, d)
        e = MatMulInteger(r, m, z)
        f = MatMulInteger(r, s, z, z)
    }}"""
    model = model_of(text, {**{n: ends(s, np.int8) for n, s in weights.items()}, "z": np.array(9, dtype)})
    shapes = {"x": (2, 5, 9, 11), "v": (2, 33, 6, 7), "r": (7, 35), "s": (35, 21)}
    return model, {n: ends(s, dtype) for n, s in shapes.items()}


@pytest.mark.thinned
@pytest.mark.parametrize("schedule", ["rules", "fallback"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_products_of_the_largest_codes_are_exact(dtype: type[np.integer], schedule: str) -> None:
    model, inputs = codes(dtype)
    for got, want in zip(built(model, schedule).run(inputs).values(), reference(model, inputs), strict=True):
        np.testing.assert_array_equal(got, want)


def test_codes_are_multiplied_in_pairs(tmp_path: Path) -> None:
    if shutil.which("objdump") is None:
        pytest.skip("needs objdump")
    artifact = Compilation(codes(np.uint8)[0], Settings("cpu", options=AVX2)).artifact()
    (tmp_path / "model.so").write_bytes(artifact.code)
    done = subprocess.run(["objdump", "-d", str(tmp_path / "model.so")], capture_output=True, text=True, check=True)
    assert sum("vpmaddwd" in line and "ymm" in line for line in done.stdout.splitlines()) >= 32


def test_the_border_of_a_picture_has_its_channels_next_to_each_other() -> None:
    """Two channels are multiplied in one lane: apart, each pair would be put together from two loads, for each row of each tap."""
    rng = np.random.default_rng(3)
    weights = {"w": rng.integers(-128, 128, (16, 3, 7, 7)).astype(np.int8), "xz": np.uint8(126), "wz": np.int8(0)}
    text = """g (uint8[1, 3, 32, 32] x) => (int32[1, 16, 16, 16] y) {
        y = ConvInteger<pads = [3, 3, 3, 3], strides = [2, 2]>(x, w, xz, wz)
    }"""
    model = model_of(text, weights)
    te = Compilation(model, Settings("cpu", options=AVX2)).advance("scheduled").te.values()
    (border,) = (s for f in te for s in f.stages if isinstance(s, TeStage) and s.role == PAD)
    assert border.axes[-1].extent == 4
    inputs = {"x": rng.integers(0, 256, (1, 3, 32, 32)).astype(np.uint8)}
    for got, want in zip(built(model).run(inputs).values(), reference(model, inputs), strict=True):
        np.testing.assert_array_equal(got, want)


def seconds(ours: Session, inputs: dict[str, np.ndarray]) -> float:
    start = time.perf_counter()
    ours.run(inputs)
    return time.perf_counter() - start


@pytest.mark.slow
@pytest.mark.parametrize("exported", MODELS, ids=lambda m: m.name)
def test_models_are_right_and_ahead_of_plain_loops(exported: Exported) -> None:
    rules, plain = built(exported.path), built(exported.path, "fallback")
    theirs = session(exported.path, plain=exported.is_coded)
    pairs = []
    for inputs in exported.inputs():
        got = rules.run(inputs)
        pairs.append((got, dict(zip(got, theirs.run(list(got), dict(inputs)), strict=True))))
    inputs = dict(next(exported.inputs()))
    first = seconds(plain, inputs)
    times = [(seconds(rules, inputs), seconds(plain, inputs)) for _ in range(min(max(int(5 / first), 1), 50))]
    ours, baseline = (median(t) for t in zip(*times, strict=True))
    print(f"{exported.name}: {check(exported, pairs)}; {ours * 1e3:.3f} ms, plain loops {baseline * 1e3:.3f} ms")
    assert ours <= baseline
