"""Ranks that only seem to vary from iteration to iteration, as exporters of `while` loops write them."""

from __future__ import annotations

import numpy as np
import pytest
from building import TARGETS, model_of, on_threads

import occ
from occ.compiler.native_entry.read_routines import host_steps

# `found` is a number at first and a vector after that; `table` begins as a number that nobody reads.
SEARCH = """g (float[n] x, float limit) => (float[n, 2] y, int64 count) {
    empty = Cast <to = 1> (zero)
    table, found, count = Loop <body = step (int64 i, bool going, float before, bool done, int64 k)
        => (bool still, float[n, 2] t, bool next, int64 k1) {
            f = Cast <to = 1> (i)
            moved = Add(x, f)
            t0 = Unsqueeze(moved, axis)
            t = Concat <axis = 1> (t0, t0)
            sum = ReduceSum <keepdims = 0> (moved)
            over = Less(limit, sum)
            hit = If (over) <then_branch = a () => (bool p) { p = Identity(yes) },
                             else_branch = b () => (bool q) { w = Cast <to = 7> (done)  v = Add(w, none)  q = Cast <to = 9> (v) }>
            h = Cast <to = 7> (hit)
            h1 = Add(h, none)
            next = Cast <to = 9> (h1)
            more = Not(next)
            m = Cast <to = 7> (more)
            m1 = Add(m, none)
            still = Cast <to = 9> (m1)
            k1 = Add(k, unit)
        }> (most, yes, empty, no, zero)
    y = Exp(table)
}"""
CONSTANTS = {
    "zero": np.int64(0), "unit": np.int64(1), "axis": np.int64([1]), "none": np.int64([0]), "yes": np.array(True),
    "no": np.array(False),
}  # fmt: skip


def model(most: int):
    return model_of(SEARCH, CONSTANTS | {"most": np.int64(most)})


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_a_search(target: str) -> None:
    session, x = occ.compile(model(9), target), np.float32([0.5, -1, 2])
    for limit, count in ((-5, 1), (4, 2), (10, 4), (1e9, 9)):
        y, n = session(x, np.float32(limit))
        assert n == count
        np.testing.assert_allclose(y, np.exp(np.repeat(x[:, None] + (count - 1), 2, 1)), rtol=1e-5)


def test_in_native_code() -> None:
    artifact = occ.build(model(9), "cpu-jit")
    assert not host_steps(artifact.manifest)
    x, limit = np.float32([0.5, -1, 2]), np.float32(6)
    rows, count = occ.compile(model(9), "interp")(x, limit)
    for session in on_threads(artifact):
        got = session(x, limit)
        np.testing.assert_allclose(got[0], rows, rtol=1e-5)
        assert got[1] == count


def test_a_loop_that_may_not_run_keeps_its_start() -> None:
    """Where no iteration is sure, the rank of the result is that of the start in one case, and of the body in the other."""
    text = """g (float[n] x, int64 most) => (y) {
        y = Loop <body = step (int64 i, bool going, float before) => (bool still, float[n] t) {
            still = Identity(going)  f = Cast <to = 1> (i)  t = Add(x, f)
        }> (most, yes, start)
    }"""
    session = occ.compile(model_of(text, {"yes": np.array(True), "start": np.float32(7)}), "cpu-jit")
    x = np.float32([1, 2])
    assert session(x, np.int64(0))[0].shape == ()
    assert np.array_equal(session(x, np.int64(2))[0], x + 1)


def test_a_rank_that_is_shown_stays() -> None:
    """The rank of an output is what the data decide: a number after no iteration with a vector, a vector after one."""
    text = """g (bool c, bool[1] v, bool s) => (y) {
        y = If (c) <then_branch = a () => (bool[1] p) { p = Not(v) }, else_branch = b () => (bool q) { q = Not(s) }>
    }"""
    session = occ.compile(model_of(text), "cpu-jit")
    assert session(np.array(True), np.array([True]), np.array(True))[0].shape == (1,)
    assert session(np.array(False), np.array([True]), np.array(True))[0].shape == ()
