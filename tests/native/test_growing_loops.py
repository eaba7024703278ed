"""Loops whose number of iterations depends on data are compiled: their results grow. Against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from building import model_of

import occ
from occ.compiler.native_entry.read_routines import host_steps
from occ.runtime.errors import RunError
from occ.runtime.native.engine import NativeEngine

WEIGHTS = {
    "yes": np.array(True), "half": np.float32(0.5), "small": np.float32(1e-3), "axis": np.int64([0]), "one": np.int64(1),
}  # fmt: skip
ROWS = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
LOOPS = {
    "until the limit": (
        """g (float[n] x, int64 m) => (float[n] y, float[k, n] all, int8[k] signs) {
        y, all, signs = Loop (m, , x) <body = b (int64 i, bool c, float[n] v) => (bool d, float[n] w, float[n] r, int8 s) {
            d = Identity (c) w = Sin (v) r = Neg (w) t = ReduceSum <keepdims = 0> (w) u = Sign (t) s = Cast <to = 3> (u) }> }"""
    ),
    "until a condition": (
        """g (float[n] x, int64 m) => (float[n] y, float[k, n] all) {
        h = Abs (x)
        y, all = Loop (m, yes, h) <body = b (int64 i, bool c, float[n] v) => (bool d, float[n] w, float[n] r) {
            w = Mul (v, half) s = ReduceMax <keepdims = 0> (w) d = Greater (s, small) r = Identity (w) }> }"""
    ),
    "read by other steps": (
        """g (float[n] x, int64 m) => (float[n] sum, float[k, n] twice, int64[2] shape) {
        y, all = Loop (m, , x) <body = b (int64 i, bool c, float[n] v) => (bool d, float[n] w, float[n] r) {
            d = Identity (c) w = Sin (v) r = Identity (w) }>
        sum = ReduceSum <keepdims = 0> (all, axis)  twice = Add (all, all)  shape = Shape (all) }"""
    ),
    "one after the other": (
        """g (float[n] x, int64 m) => (float[k, n] a, float[j, n] b) {
        p, a = Loop (m, , x) <body = b1 (int64 i, bool c, float[n] v) => (bool d, float[n] w, float[n] r) {
            d = Identity (c) w = Sin (v) r = Identity (w) }>
        l = Add (m, one)
        q, b = Loop (l, , p) <body = b2 (int64 i, bool c, float[n] v) => (bool d, float[n] w, float[n] r) {
            d = Identity (c) w = Cos (v) r = Identity (w) }> }"""
    ),
    "one within the other": (
        """g (float[n] x, int64 m) => (float[k, n] sums) {
        y, sums = Loop (m, , x) <body = b (int64 i, bool c, float[n] v) => (bool d, float[n] w, float[n] s) {
            w, all = Loop (m, , v) <body = e (int64 j, bool f, float[n] p) => (bool h, float[n] q, float[n] r) {
                h = Identity (f) q = Sin (p) r = Identity (q) }>
            s = ReduceSum <keepdims = 0> (all, axis) d = Identity (c) }> }"""
    ),
}
GATHERS = """g (float[t, n] x, int64 m) => (float[k, n] all) {
    all = Loop (m, yes) <body = b (int64 i, bool c) => (bool d, float[n] r) { d = Identity (c) g = Gather (x, i) r = Sin (g) }> }"""


@pytest.mark.parametrize("target", ["cpu-jit", "cpu"])
@pytest.mark.parametrize("case", list(LOOPS))
def test_results_grow(case: str, target: str) -> None:
    model = model_of(
        LOOPS[case],
        {
            k: v
            for k, v in WEIGHTS.items()
            if k in LOOPS[case].replace("(", " ").replace(",", " ").replace(")", " ").split()
        },
    )
    session = occ.compile(model, target, threads=1)
    other = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert not host_steps(session.artifact.manifest)
    for rows, count in ((3, 1), (16, 5), (16, 2), (5, 700), (1, 3)):
        feeds = {"x": np.linspace(-1, 2, rows, dtype=np.float32), "m": np.array(count)}
        for got, want in zip(session.run(feeds).values(), other.run(None, feeds), strict=True):
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", ["cpu-jit", "cpu"])
def test_slices_of_the_data_are_gathered(target: str) -> None:
    session = occ.compile(model_of(GATHERS, {"yes": WEIGHTS["yes"]}), target)
    for count in (0, 1, 6):
        got = session.run({"x": ROWS, "m": np.array(count)})["all"]
        np.testing.assert_allclose(got, np.sin(ROWS[:count]), rtol=1e-5)
    with pytest.raises(RunError, match="OCC0504"):
        session.run({"x": ROWS, "m": np.array(7)})
    np.testing.assert_allclose(session.run({"x": ROWS, "m": np.array(6)})["all"], np.sin(ROWS), rtol=1e-5)


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_nothing_grows(shape: tuple[int, ...]) -> None:
    """Iterations that never are, and slices without elements."""
    session = occ.compile(model_of(GATHERS, {"yes": WEIGHTS["yes"]}), "cpu-jit")
    x = np.zeros((0, 4) if len(shape) == 1 else shape, np.float32)
    assert session.run({"x": x, "m": np.array(len(x))})["all"].shape == x.shape


def test_outputs_of_the_caller() -> None:
    session = occ.compile(model_of(GATHERS, {"yes": WEIGHTS["yes"]}), "cpu-jit")
    out = np.empty((4, 3), np.float32)
    session.run({"x": ROWS, "m": np.array(4)}, outputs={"all": out})
    np.testing.assert_allclose(out, np.sin(ROWS[:4]), rtol=1e-5)


def test_the_heap_is_given_back() -> None:
    """Of runs that end, and of those that fail half-way."""
    session = occ.compile(model_of(GATHERS, {"yes": WEIGHTS["yes"]}), "cpu-jit", threads=1)
    assert isinstance(session.engine, NativeEngine)
    x = np.ones((2000, 300), np.float32)

    def megabytes() -> int:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * 4096 >> 20

    for k in range(60):
        if k == 10:
            before = megabytes()
        assert session.run({"x": x, "m": np.array(2000)})["all"].shape == x.shape
        with pytest.raises(RunError, match="OCC0504"):
            session.run({"x": x, "m": np.array(2001)})
    assert megabytes() - before < 40  # 100 runs take 240 MB where they lose theirs
