"""Products of bytes by tiles (AMX): the code has the instructions, sums are exact, refusals of the system are seen."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import model_of, onnxruntime_of
from c_library import UNSUPPORTED
from machines import opened

import occ
from occ.compiler.ir.dim import evaluate, floordiv, symbol
from occ.compiler.objects.processors import PROCESSORS
from occ.compiler.passes.schedule.rules.row_blocks import smallest
from occ.compiler.targets.machine import machine_of
from occ.runtime import machine
from occ.runtime.artifact import Artifact
from occ.runtime.errors import RunError
from occ.runtime.open import open_artifact

pytestmark = pytest.mark.toolchain
TESTS = Path(__file__).parent
needs_objdump = pytest.mark.skipif(
    not shutil.which("objdump") or platform.machine() != "x86_64", reason="needs objdump, on x86-64"
)
needs_tiles = pytest.mark.skipif(not machine_of("host").tiles, reason="needs a processor with amx_int8")


def product(rows: int | str, depth: int, columns: int, code: str = "uint8", weight: str = "int8") -> onnx.ModelProto:
    rng, kind = np.random.default_rng(depth), np.iinfo(weight)
    text = f"g ({code}[{rows}, {depth}] x) => (int32[{rows}, {columns}] y) {{ y = MatMulInteger (x, w, z) }}"
    w = rng.integers(kind.min, kind.max + 1, (depth, columns)).astype(weight)
    return model_of(text, {"w": w, "z": np.array(7, code)})


def requantised(batch: int | str, channels: int, size: int, filters: int, taps: int) -> onnx.ModelProto:
    rng, pad = np.random.default_rng(channels), taps // 2
    text = (
        f"g (uint8[{batch}, {channels}, {size}, {size}] x) => (uint8[{batch}, {filters}, {size}, {size}] y) "
        f"{{ y = QLinearConv <pads = [{pad}, {pad}, {pad}, {pad}]> (x, xs, xz, w, ws, wz, ys, yz, b) }}"
    )
    weights = {
        "xs": np.float32(0.02), "xz": np.uint8(120), "ws": np.float32(0.01), "wz": np.int8(0),
        "ys": np.float32(0.015 * (channels * taps * taps) ** 0.5), "yz": np.uint8(128),
        "w": rng.integers(-127, 128, (filters, channels, taps, taps)).astype(np.int8),
        "b": rng.integers(-1000, 1000, filters).astype(np.int32),
    }  # fmt: skip
    return model_of(text, {k: np.asarray(v) for k, v in weights.items()})


def built(model: onnx.ModelProto, name: str = "sapphirerapids", level: str = "3") -> Artifact:
    return occ.build(model, "cpu", options={"halide.target": PROCESSORS[name], "optimize": level})


def code_of(artifact: Artifact, folder: Path) -> str:
    (folder / "model.so").write_bytes(artifact.code)
    command = ["objdump", "-d", "--no-show-raw-insn", str(folder / "model.so")]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@needs_objdump
@pytest.mark.parametrize("level", ["2", "3"])
@pytest.mark.parametrize(
    ("model", "tiles"),
    [
        (product(100, 128, 64), 4),
        (product("n", 128, 64), 4),
        (product(16, 128, 32), 2),  # one tile of rows
        (product(48, 128, 40), 3),  # panels of 48 columns
        (requantised(1, 64, 20, 64, 3), 2),  # rows of 20 positions
        (requantised(1, 128, 20, 64, 1), 4),  # 400 of them
    ],
    ids=["rows", "symbolic", "sixteen", "wide", "taps", "pixels"],
)
def test_sums_stay_in_tiles(model: onnx.ModelProto, tiles: int, level: str, tmp_path: Path) -> None:
    artifact = built(model, level=level)
    code = code_of(artifact, tmp_path)
    assert code.count("tdpbusd") in (tiles, 2 * tiles)  # Halide may compute the last panel in a loop of its own
    sums = code.split("tilezero")  # each part but the first is a block, its zeros, products and results in this order
    assert not any("tilestored" in part[: part.rfind("tdpbusd") + 1] for part in sums[1:])  # none is spilled
    assert machine.TILES in artifact.manifest.machine.split("-")


@needs_objdump
@pytest.mark.parametrize(
    ("rows", "depth", "name"),
    [
        (100, 128, "znver4"),
        (100, 128, "x86-64-v4"),
        (8, 128, "sapphirerapids"),  # fewer rows than a tile has
        (100, 64, "sapphirerapids"),  # few terms
        (100, 130, "sapphirerapids"),
    ],
)
def test_other_kernels_need_no_tiles(rows: int, depth: int, name: str, tmp_path: Path) -> None:
    artifact = built(product(rows, depth, 64), name)
    assert "tdp" not in code_of(artifact, tmp_path)
    assert machine.TILES not in artifact.manifest.machine.split("-")


@pytest.mark.parametrize("level", ["2", "3"])
@pytest.mark.parametrize(
    ("rows", "depth", "columns", "code", "weight"),
    [
        (100, 128, 32, "uint8", "int8"),
        (33, 192, 50, "uint8", "uint8"),
        (128, 256, 64, "int8", "int8"),
        (17, 128, 40, "uint8", "int8"),
        (40, 640, 200, "int8", "int8"),
        ("n", 128, 96, "uint8", "int8"),
        ("n", 640, 144, "int8", "int8"),
    ],
)
def test_sums_are_exact(rows: int | str, depth: int, columns: int, code: str, weight: str, level: str) -> None:
    model, kind = product(rows, depth, columns, code, weight), np.iinfo(code)
    session, oracle = opened(built(model, level=level), 2), onnxruntime_of(model)
    for count in [rows] if isinstance(rows, int) else [1, 2, 4, 16, 31, 32, 33, 64, 100]:
        rng = np.random.default_rng(count)
        for x in (rng.integers(kind.min, kind.max + 1, (count, depth)), np.full((count, depth), kind.max)):
            feeds = {"x": x.astype(code)}
            np.testing.assert_array_equal(session.run(feeds)["y"], oracle.run(None, feeds)[0], strict=True)


@pytest.mark.parametrize("rows", [16, 20, 33])
def test_rows_of_batches(rows: int) -> None:
    """A symbolic batch of a known number of rows each has fewer than a block of rows only if it is empty, or small."""
    w = np.random.default_rng(rows).integers(-128, 128, (128, 64)).astype(np.int8)
    text = f"g (uint8[n, {rows}, 128] x) => (int32[n, {rows}, 64] y) {{ y = MatMulInteger (x, w) }}"
    model = model_of(text, {"w": w})
    session, oracle = opened(built(model, level="2"), 1), onnxruntime_of(model)
    for count in (0, 1, 2, 5):
        feeds = {"x": np.random.default_rng(count).integers(0, 256, (count, rows, 128)).astype(np.uint8)}
        np.testing.assert_array_equal(session.run(feeds)["y"], np.asarray(oracle.run(None, feeds)[0]), strict=True)


@pytest.mark.parametrize("text", ["100 - N", "N + 31", "64*N", "5*N*M", "N + 2*M", "N*M + 7*N", "(N + 3)//4"])
def test_no_extent_is_less_than_the_smallest(text: str) -> None:
    """Blocks of rows that start before the end of a tensor with fewer rows would start before its beginning."""
    n, m = symbol("N"), symbol("M", 3)
    extent = {
        "100 - N": 100 - n, "N + 31": n + 31, "64*N": 64 * n, "5*N*M": 5 * n * m, "N + 2*M": n + 2 * m,
        "N*M + 7*N": n * m + 7 * n, "(N + 3)//4": floordiv(n + 3, 4),
    }[text]  # fmt: skip
    sizes = [evaluate(extent, {"N": a, "M": b}) for a in range(110) for b in range(3, 6)]
    least = smallest(extent)
    assert least <= min(x for x in sizes if x > 0)
    assert least >= {"64*N": 64, "5*N*M": 15, "N + 31": 31}.get(text, 1)


@pytest.mark.parametrize("count", [0, 1, 60, 70, 85, 99])
def test_rows_that_others_leave(count: int) -> None:
    """Of 100 rows `100 - N` are multiplied: fewer than a block of them are not taken for one."""
    w = np.random.default_rng(count).integers(-128, 128, (128, 64)).astype(np.int8)
    text = (
        "g (uint8[100, 128] x, float[n] t) => (int32[m, 64] y) "
        "{ s = Shape (t) e = Constant <value_ints = [100]> () a = Constant <value_ints = [0]> () "
        "p = Slice (x, s, e, a) y = MatMulInteger (p, w) }"
    )
    model = model_of(text, {"w": w})
    session, oracle = opened(built(model, level="2"), 1), onnxruntime_of(model)
    x = np.random.default_rng(count).integers(0, 256, (100, 128)).astype(np.uint8)
    feeds = {"x": x, "t": np.zeros(count, np.float32)}
    np.testing.assert_array_equal(session.run(feeds)["y"], np.asarray(oracle.run(None, feeds)[0]), strict=True)


@pytest.mark.parametrize(("rows", "depth", "columns"), [(64, 256, 96), ("n", 256, 96), (33, 128, "m")])
def test_products_of_two_inputs(rows: int | str, depth: int, columns: int | str) -> None:
    """Their panels are made in the run, and VNNI multiplies them."""
    text = f"g (uint8[{rows}, {depth}] x, int8[{depth}, {columns}] w) => (int32[{rows}, {columns}] y)"
    model = model_of(f"{text} {{ y = MatMulInteger (x, w) }}")
    session, oracle, rng = opened(built(model), 1), onnxruntime_of(model), np.random.default_rng(0)
    feeds = {
        "x": rng.integers(0, 256, (rows if isinstance(rows, int) else 70, depth)).astype(np.uint8),
        "w": rng.integers(-128, 128, (depth, columns if isinstance(columns, int) else 77)).astype(np.int8),
    }
    np.testing.assert_array_equal(session.run(feeds)["y"], np.asarray(oracle.run(None, feeds)[0]), strict=True)


@pytest.mark.parametrize(
    ("channels", "size", "filters", "taps", "batch"),
    [(64, 20, 64, 3, 1), (128, 7, 256, 1, 1), (128, 16, 48, 1, "n")],
)
def test_codes_of_convolutions(channels: int, size: int, filters: int, taps: int, batch: int | str) -> None:
    model = requantised(batch, channels, size, filters, taps)
    session, oracle = opened(built(model), 2), onnxruntime_of(model)
    for count in [batch] if isinstance(batch, int) else [1, 3]:
        x = np.random.default_rng(count).integers(0, 256, (count, channels, size, size)).astype(np.uint8)
        np.testing.assert_array_equal(session.run({"x": x})["y"], oracle.run(None, {"x": x})[0], strict=True)


def test_a_processor_without_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = built(product(100, 128, 64))
    needed = (machine.FEATURES.get(word, ()) for word in artifact.manifest.machine.split("-"))
    here = machine.flags().union(*needed) - {"amx_int8", "amx_tile"}  # whatever this machine is
    monkeypatch.setattr(machine, "flags", lambda: here)
    assert machine.missing_feature(artifact.manifest.machine) == machine.TILES
    with pytest.raises(RunError, match=f"`{machine.TILES}`, which this one lacks or its system does not allow"):
        open_artifact(artifact)


@pytest.mark.parametrize(
    ("lacks", "word"), [("avx_vnni", "avx512_sapphirerapids"), ("avx512_bf16", "avx512_sapphirerapids")]
)
def test_other_processors_with_avx512_are_not_taken_for_it(
    lacks: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ice Lake lacks bf16 and Zen 4 has other VNNI instructions: code would end in SIGILL there."""
    here = frozenset(f for flags in machine.FEATURES.values() for f in flags) - {lacks}
    monkeypatch.setattr(machine, "flags", lambda: here)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert machine.missing_feature(PROCESSORS["sapphirerapids"]) == word


REFUSED = """
import ctypes, sys
class Stack(ctypes.Structure):  # stack_t
    _fields_ = (("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))
memory = ctypes.create_string_buffer(8192)
small = Stack(ctypes.addressof(memory), 0, len(memory))
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(small), None) == 0
sys.path[:0] = {paths!r}
"""


@needs_tiles
def test_the_system_refuses_tiles(tmp_path: Path) -> None:
    """Linux does where a signal stack is too small to hold tiles; code that used them nevertheless would get SIGILL."""
    artifact = built(product(100, 128, 64))
    artifact.save(tmp_path / "m.occ")
    script = REFUSED.format(paths=[str(TESTS), str(TESTS.parent)]) + (
        "from pathlib import Path\n"
        "import c_library, occ\n"
        "from occ.compiler.targets.machine import machine_of\n"
        "assert not machine_of('host').tiles\n"
        "for open_ in (occ.load, c_library.Model):\n"
        "    try:\n"
        f"        open_(Path({str(tmp_path / 'm.occ')!r}))\n"
        "    except Exception as e:\n"
        "        print(getattr(e, 'code', ''), e)\n"
    )
    made = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert made.returncode == 0, made.stderr
    in_python, in_c = made.stdout.splitlines()[0], made.stdout.splitlines()[-1]
    assert "amx_int8" in in_python
    assert "amx_int8" in in_c
    assert in_c.startswith(f"{UNSUPPORTED} ")


@needs_tiles
def test_libocc_asks_for_tiles(tmp_path: Path) -> None:
    """In a process of its own, where nothing else has asked."""
    model = product(100, 128, 64)
    built(model).save(tmp_path / "m.occ")
    x = np.random.default_rng(0).integers(0, 256, (100, 128)).astype(np.uint8)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", np.asarray(onnxruntime_of(model).run(None, {"x": x})[0]))
    script = (
        f"import sys\nsys.path[:0] = {[str(TESTS), str(TESTS.parent)]!r}\n"
        "from pathlib import Path\nimport numpy as np, c_library\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "with c_library.Model(folder / 'm.occ') as m:\n"
        "    (y,) = m.run(np.load(folder / 'x.npy'))\n"
        "np.testing.assert_array_equal(y, np.load(folder / 'y.npy'))\n"
    )
    made = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert made.returncode == 0, made.stderr
