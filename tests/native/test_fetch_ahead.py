"""Constants and caches that are fetched ahead: the code has the instructions where the schedule says so."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import model_of
from onnx import TensorProto, helper

from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.driver.sessions import open_session
from occ.compiler.driver.source import parsed
from occ.compiler.objects.processors import PROCESSORS

pytestmark = pytest.mark.toolchain
FETCHES = "prefetch"
AVX2 = "x86-64-linux-avx-avx2-f16c-fma-sse41"
AVX512 = f"{AVX2}-avx512-avx512_skylake-avx512_cannonlake"
needs_objdump = pytest.mark.skipif(
    not shutil.which("objdump") or platform.machine() != "x86_64", reason="needs objdump, on x86-64"
)


def product_of(rows: int | str, depth: int, columns: int) -> tuple[object, np.ndarray]:
    w = np.random.default_rng(0).standard_normal((depth, columns), dtype=np.float32)
    text = f"g (float[{rows}, {depth}] x) => (float[{rows}, {columns}] y) {{ y = MatMul(x, w) }}"
    return model_of(text, {"w": w}), w


def disassembled(code: bytes, folder: Path) -> str:
    (folder / "model.so").write_bytes(code)
    command = ["objdump", "-d", "--no-show-raw-insn", str(folder / "model.so")]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.thinned
@needs_objdump
@pytest.mark.parametrize(
    ("rows", "depth", "columns", "fetched"),
    [
        (64, 256, 320, True),
        ("n", 256, 320, True),
        (64, 64, 64, False),  # stays in the cache
        (4, 256, 320, False),  # one tile: there is nothing to fetch meanwhile
    ],
)
def test_the_code_fetches(rows, depth, columns, fetched, tmp_path: Path) -> None:
    settings = Settings("cpu", options={"optimize": "3"})  # a kernel for any sizes always fetches
    made = Compilation(product_of(rows, depth, columns)[0], settings).artifact()
    assert (FETCHES in disassembled(made.code, tmp_path)) == fetched


@needs_objdump
@pytest.mark.parametrize(("depth", "fetched"), [(16, False), (256, True)])
def test_kernels_of_any_size_fetch_no_short_panels(depth, fetched, tmp_path: Path) -> None:
    """Each tile of a short sum prefetched lines that were in the cache."""
    settings = Settings("cpu", options={"optimize": "2", "halide.target": PROCESSORS["x86-64-v3"]})
    made = Compilation(product_of(3136, depth, 320)[0], settings).artifact()
    assert (FETCHES in disassembled(made.code, tmp_path)) == fetched


@needs_objdump
def test_addresses_of_codes_take_no_instructions_of_a_step(tmp_path: Path) -> None:
    """Each step compared, moved, shifted and added to find its line: 7 of 98 instructions."""
    settings = Settings("cpu", options={"halide.target": PROCESSORS["x86-64-v3"]})
    w = np.random.default_rng(0).integers(-127, 128, (320, 256, 1, 1)).astype(np.int8)
    model = model_of("g (uint8[1, 256, 14, 14] x) => (int32[1, 320, 14, 14] y) { y = ConvInteger (x, w) }", {"w": w})
    lines = disassembled(Compilation(model, settings).artifact().code, tmp_path).splitlines()
    fetches = [k for k, line in enumerate(lines) if FETCHES in line]
    assert fetches
    assert not [n for k in fetches for n in lines[k - 5 : k] if re.search(r"\tcmov|\tshl|\timul", n)]


@needs_objdump
@pytest.mark.parametrize(
    ("target", "depth"),
    [
        (f"{AVX512}-avx512_sapphirerapids", 512),
        (PROCESSORS["x86-64-v3"], 258),  # two terms at a time: 12 sums, and the weights of one term
    ],
)
def test_tiles_of_any_pitch_stay_in_registers(target: str, depth: int, tmp_path: Path) -> None:
    """At -O2 rows are a symbolic number of elements apart, and no term of a tile is spilled in the innermost loop."""
    settings = Settings("cpu", options={"optimize": "2", "halide.target": target})
    made = Compilation(product_of(784, depth, 256)[0], settings).artifact()
    spills = [n for n in disassembled(made.code, tmp_path).splitlines() if re.search(r"vmovup.*%[yz]mm\d+,.*%rsp", n)]
    assert not spills


@needs_objdump
@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        (AVX2, "prefetcht1"),
        (f"{AVX512}-avx512_sapphirerapids-avxvnni", "prefetcht1"),
        (f"{AVX512}-avx512_zen4", "prefetchnta"),
        (f"{AVX2}-tune_znver3", "prefetchnta"),
    ],
)
def test_lines_go_to_a_level_that_keeps_them(target: str, wanted: str, tmp_path: Path) -> None:
    """Intel's processors lose what prefetchnta fetched; f32 ResNet-50 took 1.6 times as long."""
    options = {"halide.target": target}
    made = Compilation(product_of(64, 256, 320)[0], Settings("cpu", options=options)).artifact()
    assert set(re.findall(r"prefetch\w+", disassembled(made.code, tmp_path))) == {wanted}


@needs_objdump
@pytest.mark.parametrize("level", ["2", "3"])
def test_winograd_fetches_weights_of_any_channels(level: str, tmp_path: Path) -> None:
    w = np.random.default_rng(0).standard_normal((64, 64, 3, 3), dtype=np.float32)
    text = "g (float[1, 64, 14, 14] x) => (float[1, 64, 14, 14] y) { y = Conv <pads = [1, 1, 1, 1]> (x, w) }"
    made = Compilation(model_of(text, {"w": w}), Settings("cpu", options={"optimize": level})).artifact()
    assert FETCHES in disassembled(made.code, tmp_path)


@pytest.mark.thinned
@pytest.mark.parametrize(("depth", "columns"), [(256, 320), (300, 333)])
def test_results_are_those_of_the_product(depth: int, columns: int) -> None:
    model, w = product_of("n", depth, columns)
    session = open_session(Compilation(model, Settings("cpu")).artifact(), 2)
    for rows in (0, 1, 3, 8, 41, 64):
        x = np.random.default_rng(rows).standard_normal((rows, depth), dtype=np.float32)
        want = x.astype(np.float64) @ w
        (got,) = session.run({"x": x}).values()
        assert np.abs(got - want).max(initial=0) <= 1e-5 * np.abs(want).max(initial=1)


BLOCKS = """module @m {stage="scheduled"} {
  dim K "K"
  func @main(%x: f32[64,K], %w: f32[K,512]) -> f32[64,512] as "y" {
    %y = call(%x, %w) {dims=[dim<K>], te="blocks"} : f32[64,512]
    return %y
  }
  te @blocks[K](%p0: f32[64,K], %p1: f32[K,512]) -> (y: f32[64,512]) {
    acc[i<64, j<512] = sum[r<K//128](%p0[i, r * 128] * %p1[r * 128, j])
    y[a<64, b<512] = acc[a, b]
    schedule {
      y.split(b, bo, bi, 32, Auto)
      y.split(a, ao, ai, 8, Auto)
      y.reorder(bi, ai, ao, bo)
      acc.compute_at(y, ao)
      acc.update.reorder(j, i, r)
      acc.update.unroll(i)
      acc.fetch_ahead(p1, 32768)
    }
  }
}"""


def test_a_loop_may_have_no_steps_at_a_typical_size() -> None:
    """The lines of a panel are divided by the steps through it, and 64 terms have no block of 128."""
    session = open_session(Compilation(parsed(BLOCKS), Settings("cpu")).artifact(), 1)
    x, w = (np.random.default_rng(0).standard_normal(s, dtype=np.float32) for s in ((64, 300), (300, 512)))
    np.testing.assert_allclose(session.run({"x": x, "w": w})["y"], x[:, :256:128] @ w[:256:128], rtol=1e-4, atol=1e-5)


def cached(heads: int, groups: int, size: int, kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """One new row of attention over a cache."""
    value = partial(helper.make_tensor_value_info, elem_type=kind)
    node = helper.make_node(
        "Attention", ["q", "k", "v", "", "pk", "pv"], ["y", "K", "V"], q_num_heads=heads, kv_num_heads=groups
    )
    inputs = [value("q", shape=[1, "S", heads * size]), *(value(x, shape=[1, "S", groups * size]) for x in "kv")]
    inputs += [value(x, shape=[1, groups, "P", size]) for x in ("pk", "pv")]
    outputs = [value("y", shape=[1, "S", heads * size]), *(value(x, shape=[1, groups, "T", size]) for x in "KV")]
    graph = helper.make_graph([node], "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


@needs_objdump
@pytest.mark.parametrize(
    ("caches", "kind", "groups", "lines"),
    [
        # All heads of a key in two loops, for blocks of keys that are all there and for others, and one of a value in three: Halide makes
        # one of its own for the last block, whose tests are of 64 bits.
        ("growing", TensorProto.FLOAT, 4, (2 * 4 + 3) * 64 * 4 // 64),
        ("growing", TensorProto.FLOAT, 1, 0),  # the rows of a single head are contiguous
        ("growing", TensorProto.FLOAT16, 8, (2 * 8 + 3) * 64 * 2 // 64),
        (
            "as-is",
            TensorProto.FLOAT,
            4,
            (2 * 4 + 3) * 64 * 4 // 64,
        ),  # four keys at once, chunks of one head after those of another
    ],
)
def test_rows_of_a_cache_that_lie_far_apart_are_fetched(
    caches: str, kind: int, groups: int, lines: int, tmp_path: Path
) -> None:
    made = Compilation(cached(8, groups, 64, kind), Settings("cpu", options={"caches": caches})).artifact()
    code = disassembled(made.code, tmp_path).splitlines()
    assert [sum(level in line for line in code) for level in ("prefetcht0", "prefetcht1")] == [lines, lines]


@needs_objdump
@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_fetches_lie_among_what_uses_the_rows(kind: int, tmp_path: Path) -> None:
    """32 at once filled the queue of what is on its way, and what the loop itself read waited behind them."""
    options = {"caches": "growing", "halide.target": "x86-64-linux-avx-avx2-f16c-fma-sse41"}
    made = Compilation(cached(8, 4, 64, kind), Settings("cpu", options=options)).artifact()
    code = disassembled(made.code, tmp_path)
    runs = re.split(r"\tv(?:fmadd|mul|add)", code)
    assert max(run.count(FETCHES) for run in runs) <= 8, "those of one row of values"
