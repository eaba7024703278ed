"""`-C sanitize`: models of all kinds run without a report, and planted faults are reported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import mlp, model_of, reference
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

import occ
from occ.compiler.diagnostics import CompileError
from occ.runtime.errors import RunError

pytestmark = pytest.mark.toolchain
slow = pytest.mark.slow
LIBRARIES = {"address": "asan", "undefined": "ubsan", "thread": "tsan"}
# What sanitized code prints: of its faults, not of Python's, which frees little at its end.
REPORT = ("AddressSanitizer", "ThreadSanitizer", "runtime error:")
_rng = np.random.default_rng(0)
Arrays = dict[str, np.ndarray]


def f32(*shape: int) -> np.ndarray:
    return _rng.standard_normal(shape).astype(np.float32)


CONV = "g (float[n, 3, h, h] x) => (float[n, 5, h, h] y) { c = Conv<pads = [1, 1, 1, 1]>(x, w, b)  y = Relu(c) }"
POOLED = """g (float[1, 16, 15, 17] x) => (float[1, 16, 8, 9] y) {
    c = Conv<group = 16, pads = [1, 1, 1, 1]>(x, w)
    y = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(c)
}"""
INT8 = """g (float[n, 37] x) => (float[n, 19] y) {
    q, s, z = DynamicQuantizeLinear(x)
    i = MatMulInteger(q, w, z)
    f = Cast<to = 1>(i)
    y = Mul(f, s)
}"""
ATTENTION = """g (float[2, n, 16] q, float[2, m, 16] k, float[2, m, 16] v) => (float[2, n, 16] y) {
    kt = Transpose<perm = [0, 2, 1]>(k)
    s = MatMul(q, kt)
    p = Softmax<axis = -1>(s)
    y = MatMul(p, v)
}"""
LOOP = """g (int64 trips, float[7] x) => (float[7] y, float[t, 7] all) {
    yes = Constant<value = bool {1}>()
    y, all = Loop(trips, yes, x) <body = b (int64 i, bool c, float[7] s) => (bool d, float[7] r, float[7] scan) {
        d = Identity(c)
        r = Add(s, s)
        scan = Neg(r)
    }>
}"""
RESIZE = """g (float[1, 3, 7, h] x) => (float[1, 3, 14, k] y) {
    scales = Constant<value = float[4] {1, 1, 2, 2}>()
    y = Resize<mode = "linear">(x, , scales)
}"""
SCATTER = (
    'g (float[n, 5] x, int64[k, 1] i, float[k, 5] u) => (float[n, 5] y) { y = ScatterND<reduction = "add">(x, i, u) }'
)
GATHER = """g (float[9, n] x, int64[k] i) => (float[k, n] y, float[9] s) {
    y = Gather(x, i)
    one = Constant<value = int64[1] {1}>()
    s = ReduceSum<keepdims = 0>(x, one)
}"""
JOIN = """g (float[a, 3] x, float[b, 3] y) => (float[3, c] z) {
    j = Concat<axis = 0>(x, y)
    e = Exp(j)
    z = Transpose<perm = [1, 0]>(e)
}"""
HALF = "g (float16[n, 33] x) => (float16[n, 33] y) { s = Softmax(x)  y = Add(s, x) }"
# Extents that no tile fits, in products, windows and blocks of elements.
FIXED = """g (float[130, 301] x, float[301, 37] v, float[1, 24, 23, 23] p, float[300001] e)
=> (float[130, 37] a, float[130, 37] b, float[1, 24, 23, 23] c, float[300001] d) {
    a = MatMul(x, w)
    b = MatMul(x, v)
    c = Conv<group = 24, pads = [1, 1, 1, 1]>(p, k)
    d = Exp(e)
}"""
FOUND = "g (float[n] x) => (int64[1, k] y) { y = NonZero(x) }"
# Windows in planes, whose last vector of a row and whose borders no tile fits.
PLANES = """g (float[n, 3, h, w] x) => (float[n, 3, p, q] y, float[n, 3, h, w] z) {
    y = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(x)
    e = Exp(x)
    z = AveragePool<kernel_shape = [5, 3], pads = [2, 1, 2, 1]>(e)
}"""
# The k-th element by its bits, and running sums in blocks of 128.
RANKED = """g (float[a, n, c] x, int64[1] k) => (float[a, k, c] y, int64[a, k, c] i, float[a, n, c] z) {
    y, i = TopK<axis = 1>(x, k)
    one = Constant<value = int64 {1}>()
    z = CumSum<exclusive = 1, reverse = 1>(x, one)
}"""
# Boxes above a score, and the best of them: values of the run decide all sizes.
DECIDED = """g (float[n, 4] b, float[n] s) => (float[k, 4] y, float[m, m] z) {
    zero = Constant<value = float {0}>()
    high = Greater(s, zero)
    found = NonZero(high)
    at = Transpose<perm = [1, 0]>(found)
    boxes = GatherND(b, at)
    scores = GatherND(s, at)
    all = Shape(scores)
    most = Constant<value = int64[1] {7}>()
    few = Min(all, most)
    best, i = TopK(scores, few)
    y = Gather(boxes, i)
    t = Transpose<perm = [1, 0]>(boxes)
    z = MatMul(boxes, t)
}"""
# A cache with room, whose rows have lengths of their own.
ROOM = """<ir_version: 11, opset_import: ["" : 24]>
g (float[n, 2, 70, 8] past, float[n, 2, s, 8] x, int64[n] at, int64[n] used) => (float[n, 2, 70, 8] now, float[n, 2, s, 8] y) {
    now = TensorScatter(past, x, at)
    y = Attention(x, now, now, , , , used)
}"""
BIG = "g (float[n, 301] x) => (float[n, 200] y) { m = MatMul(x, w)  y = Tanh(m) }"


def _int8(n: int) -> np.ndarray:
    return _rng.integers(-100, 100, (n, 19), dtype=np.int8)


def _models() -> dict[str, tuple[onnx.ModelProto, list[Arrays]]]:
    """Models with the inputs of their runs."""

    def half(n: int) -> Arrays:
        return {"x": f32(n, 33).astype(np.float16)}

    index = np.array([0, 8, 3], np.int64)
    nothing = np.zeros(0, np.int64)
    return {
        "conv": (
            model_of(CONV, {"w": f32(5, 3, 3, 3), "b": f32(5)}),
            [{"x": f32(1, 3, 7, 7)}, {"x": f32(3, 3, 33, 33)}],
        ),
        "pooled": (model_of(POOLED, {"w": f32(16, 1, 3, 3)}), [{"x": f32(1, 16, 15, 17)}]),
        "mlp": (mlp(), [{"x": f32(n, 8)} for n in (0, 1, 13, 64)]),
        "big": (model_of(BIG, {"w": f32(301, 200)}), [{"x": f32(n, 301)} for n in (1, 7, 130)]),
        "int8": (model_of(INT8, {"w": _int8(37)}), [{"x": f32(n, 37)} for n in (1, 9)]),
        "attention": (
            model_of(ATTENTION),
            [{"q": f32(2, n, 16), "k": f32(2, m, 16), "v": f32(2, m, 16)} for n, m in ((1, 1), (5, 9), (33, 17))],
        ),
        "loop": (model_of(LOOP), [{"trips": np.array(n, np.int64), "x": f32(7)} for n in (1, 5)]),
        "resize": (model_of(RESIZE), [{"x": f32(1, 3, 7, n)} for n in (1, 9)]),
        "scatter": (
            model_of(SCATTER),
            [
                {"x": f32(9, 5), "i": index[:, None], "u": f32(3, 5)},
                {"x": f32(9, 5), "i": nothing[:, None], "u": f32(0, 5)},
            ],
        ),
        "gather": (model_of(GATHER), [{"x": f32(9, n), "i": i} for n, i in ((4, index), (0, index), (7, nothing))]),
        "join": (model_of(JOIN), [{"x": f32(a, 3), "y": f32(b, 3)} for a, b in ((2, 5), (0, 3), (31, 1))]),
        "half": (model_of(HALF), [half(n) for n in (1, 6)]),
        "fixed": (
            model_of(FIXED, {"w": f32(301, 37), "k": f32(24, 1, 3, 3)}),
            [{"x": f32(130, 301), "v": f32(301, 37), "p": f32(1, 24, 23, 23), "e": f32(300_001)}],
        ),
        "planes": (model_of(PLANES), [{"x": f32(1, 3, *hw)} for hw in ((1, 1), (8, 17), (13, 70))]),
        "ranked": (
            model_of(RANKED),
            [
                {"x": f32(2, n, c), "k": np.int64([k])}
                for n, c, k in ((3, 3, 3), (129, 1, 0), (300, 2, 9), (700, 1, 700))
            ],
        ),
        "decided": (model_of(DECIDED), [{"b": f32(n, 4), "s": f32(n) - d} for n, d in ((1, 9), (40, 0), (500, 0))]),
        "room": (
            model_of(ROOM),
            [
                {"past": f32(3, 2, 70, 8), "x": f32(3, 2, n, 8), "at": at, "used": at + n}
                for n, at in ((1, np.array([0, 69, 31])), (70, np.zeros(3, np.int64)))
            ],
        ),
        "found": (model_of(FOUND), [{"x": np.arange(n, dtype=np.float32) % 3} for n in (1, 20)]),
    }


MODELS = _models()
SUITE = (
    "test_averagepool_2d_ceil", "test_convtranspose_pads", "test_cumsum_2d_axis_1", "test_einsum_batch_matmul", "test_gemm_all_attributes",
    "test_layer_normalization_3d_axis1_epsilon", "test_maxpool_2d_dilations", "test_pow_bcast_array", "test_qlinearconv",
    "test_reflect_pad", "test_slice_neg_steps", "test_top_k", "test_tril_neg", "test_where_long_example",
)  # fmt: skip


@cache
def _preload(sanitizer: str) -> str:
    """The library of a sanitizer; skips the test where the compiler has none."""
    tool = shutil.which("g++")
    name = f"lib{LIBRARIES[sanitizer]}.so"
    found = (
        subprocess.run([tool, f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
        if tool
        else ""
    )
    if not os.path.isabs(found):
        pytest.skip(f"g++ has no {name}")
    return found


@cache
def _suite() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of casts that overflow, as they shall
        return {t.name: t for t in load_model_tests(kind="node")}


def run(sanitizer: str, mode: str, *files: str | Path) -> subprocess.CompletedProcess[str]:
    """A child process with a sanitizer."""
    still = ["setarch", "-R"] if sanitizer == "thread" and shutil.which("setarch") else []
    options = {
        "LD_PRELOAD": _preload(sanitizer), "PYTHONMALLOC": "malloc", "ASAN_OPTIONS": "detect_leaks=0",
        "OCC_NUM_THREADS": "2",
    }  # fmt: skip
    child = str(Path(__file__).with_name("sanitized_child.py"))
    command = [*still, sys.executable, child, mode, *map(str, files)]
    return subprocess.run(command, env=os.environ | options, capture_output=True, text=True, timeout=600)


def is_clean(ran: subprocess.CompletedProcess[str]) -> None:
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said[:6000]
    assert not any(r in said for r in REPORT), said[:6000]


def cases(folder: Path, runs: Sequence[tuple[Arrays, Mapping[str, np.ndarray]]]) -> list[Path]:
    made: list[Path] = []
    for k, (inputs, outputs) in enumerate(runs):
        made.append(folder / f"case{k}.npz")
        named: dict[str, Any] = {f"in.{n}": a for n, a in inputs.items()} | {f"out.{n}": a for n, a in outputs.items()}
        np.savez(made[-1], **named)
    return made


def build(model: onnx.ModelProto, sanitizer: str, folder: Path) -> Path:
    path = folder / "model.occ"
    occ.build(model, "cpu", out=str(path), options={"sanitize": sanitizer})
    return path


@slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sanitizer", LIBRARIES)
def test_models_run_without_a_report(name: str, sanitizer: str, tmp_path: Path):
    _preload(sanitizer)
    model, inputs = MODELS[name]
    names = [o.name for o in model.graph.output]
    runs = [(x, dict(zip(names, reference(model, x), strict=True))) for x in inputs]
    is_clean(run(sanitizer, "run", build(model, sanitizer, tmp_path), *cases(tmp_path, runs)))


@slow
@pytest.mark.parametrize("name", SUITE)
def test_cases_of_the_operator_suite_run_without_a_report(name: str, tmp_path: Path):
    _preload("address")
    case = _suite()[name]
    model, (inputs, outputs) = case.model, case.data_sets[0]

    def named(ports: Sequence[onnx.ValueInfoProto], values: Sequence[object]) -> Arrays:
        arrays = [numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else np.asarray(v) for v in values]
        return {p.name: a for p, a in zip(ports, arrays, strict=True)}

    runs = [(named(model.graph.input, inputs), named(model.graph.output, outputs))]
    is_clean(run("address", "run", build(model, "address", tmp_path), *cases(tmp_path, runs)))


@slow
@pytest.mark.parametrize("sanitizer", ["thread", "address"])
def test_four_sessions_in_threads_run_without_a_report(sanitizer: str, tmp_path: Path):
    _preload(sanitizer)
    model, inputs = MODELS["big"]
    runs = [(inputs[-1], {"y": reference(model, inputs[-1])[0]})]
    is_clean(run(sanitizer, "sessions", build(model, sanitizer, tmp_path), *cases(tmp_path, runs)))


@slow
@pytest.mark.parametrize(
    ("sanitizer", "fault", "report"),
    [
        ("address", "overrun", "heap-buffer-overflow"),
        ("thread", "race", "data race"),
        ("undefined", "overflow", "signed integer overflow"),
    ],
)
def test_a_planted_fault_is_reported(sanitizer: str, fault: str, report: str, tmp_path: Path):
    _preload(sanitizer)
    path = build(model_of("g (float[64] x) => (float[64] y) { y = Neg(x) }"), sanitizer, tmp_path)
    ran = run(sanitizer, fault, path)
    assert report in ran.stderr, ran.stderr[:6000]
    assert any(r in ran.stderr for r in REPORT)


@pytest.mark.parametrize("sanitizer", LIBRARIES)
def test_a_process_without_the_sanitizer_is_told_how_to_start(sanitizer: str, tmp_path: Path):
    path = build(model_of("g (float[4] x) => (float[4] y) { y = Neg(x) }"), sanitizer, tmp_path)
    with pytest.raises(RunError, match=f"sanitize={sanitizer}") as caught:
        occ.load(str(path))
    assert f"LD_PRELOAD=$(g++ -print-file-name=lib{LIBRARIES[sanitizer]}.so)" in str(caught.value)


def test_the_thread_sanitizer_is_refused_for_machines_of_32_bits():
    options = {"sanitize": "thread", "halide.target": "arm-32-linux-armv7s"}
    with pytest.raises(CompileError, match="64 bits"):
        occ.build(mlp(), "cpu", options=options)
