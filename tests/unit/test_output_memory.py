"""Memory of outputs: large ones are used again, and what a result does not need is released."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from building import model_of

import occ

LARGE = 34 << 20  # bytes: C libraries map as much for each allocation


def sums() -> occ.Session:
    text = "g (float[1, 1024] x, float[n, 1] z) => (float[n, 1024] y) { y = Add(x, z) }"
    return occ.compile(model_of(text), "cpu-jit")


def feed(value: float, size: int = LARGE) -> dict[str, np.ndarray]:
    return {"x": np.full((1, 1024), value, np.float32), "z": np.zeros((size >> 12, 1), np.float32)}


def test_large_outputs_use_released_memory_again() -> None:
    session, shape = sums(), (LARGE >> 12, 1024)
    first = session.run(feed(1))["y"]
    place = first.ctypes.data
    del first
    taken = np.empty(LARGE, np.uint8)  # which the system would map there
    second = session.run(feed(2))["y"]
    assert second.ctypes.data == place
    assert not np.shares_memory(second, taken)
    np.testing.assert_array_equal(second, np.full(shape, 2, np.float32))


def test_memory_is_not_used_again_while_a_view_is_left() -> None:
    session = sums()
    part = session.run(feed(1))["y"][5:7].T
    other = session.run(feed(2))["y"]
    assert not np.shares_memory(part, other)
    np.testing.assert_array_equal(part, np.full((1024, 2), 1, np.float32))
    np.testing.assert_array_equal(other[-1], np.full(1024, 2, np.float32))


@pytest.mark.parametrize(
    "view",
    [
        lambda memory: memory.view(),
        lambda memory: memory[64:128],
        lambda memory: memory.T,
        lambda memory: np.frombuffer(memory.base, np.uint8),
        lambda memory: np.frombuffer(memoryview(memory.base)[64:128], np.uint8),
    ],
)
def test_memory_is_not_used_again_while_a_view_of_it_is_left(view: Callable[[np.ndarray], np.ndarray]) -> None:
    session = sums()
    memory = session.run(feed(1))["y"].base
    assert isinstance(memory, np.ndarray)
    part = view(memory)
    del memory
    assert not np.shares_memory(part, session.run(feed(2))["y"])


def test_memory_that_does_not_fit_is_not_used_again() -> None:
    session = sums()
    for size in (LARGE, 2 * LARGE, 5 * LARGE, LARGE):
        y = session.run(feed(size, size))["y"]
        assert y.shape == (size >> 12, 1024)
        assert y[0, 0] == y[-1, -1] == np.float32(size)


def test_a_result_that_is_less_than_its_bound_keeps_no_more_memory() -> None:
    text = "g (float[64, 1024] x, bool[64] c) => (float[n, 1024] y) { y = Compress <axis = 0> (x, c) }"
    session, x = occ.compile(model_of(text), "cpu-jit"), np.random.default_rng(0).random((64, 1024), np.float32)
    for kept in (0, 1, 20, 32, 60, 64, 5):
        chosen = np.arange(64) < kept
        y = session.run({"x": x, "c": chosen})["y"]
        np.testing.assert_array_equal(y, x[:kept])
        assert isinstance(y.base, np.ndarray)
        assert y.base.nbytes <= 2 * y.nbytes + 256


def test_memory_of_a_caller_is_left_as_it_is() -> None:
    text = "g (float[64, 1024] x, bool[64] c) => (float[n, 1024] y) { y = Compress <axis = 0> (x, c) }"
    session, x = occ.compile(model_of(text), "cpu-jit"), np.ones((64, 1024), np.float32)
    mine = np.zeros(64 * 1024 + 32, np.float32)
    given = mine[-mine.ctypes.data % 64 // 4 :][: 64 * 1024].reshape(64, 1024)
    with pytest.raises(occ.RunError):
        session.run({"x": x, "c": np.arange(64) < 3}, {"y": given})
    assert mine.shape == (64 * 1024 + 32,)
    np.testing.assert_array_equal(given[3:], 0)
