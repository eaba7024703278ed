"""Memory for outputs that nothing bounds: a run is given as much as the last one of the same extents took."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from building import model_of

import occ
from occ.runtime.native.call import OUTPUT
from occ.runtime.native.host_steps import HostSteps
from occ.runtime.session import Session

X = np.arange(3, dtype=np.float32)


@pytest.fixture(scope="module", params=["cpu-jit", "cpu"])
def session(request) -> Session:
    text = "g (float[n] x, int64[2] s) => (float[a, b] y, float[a, b] z) { y = Expand (x, s) z = Neg (y) }"
    return occ.compile(model_of(text), request.param)


def check(session: Session, rows: int) -> None:
    got = session.run({"x": X, "s": np.array([rows, 3])})
    np.testing.assert_array_equal(got["y"], np.broadcast_to(X, (rows, 3)))
    np.testing.assert_array_equal(got["z"], np.broadcast_to(-X, (rows, 3)))
    assert all(y.ctypes.data % y.itemsize == 0 and y.flags.c_contiguous and y.flags.writeable for y in got.values())


def test_sizes_that_change_from_run_to_run(session: Session) -> None:
    for rows in (2, 2, 0, 0, 5, 1, 1, 1, 700, 699, 3, 0, 700):
        check(session, rows)


def test_results_stay_when_the_next_run_writes(session: Session) -> None:
    first = session.run({"x": X, "s": np.array([4, 3])})["y"]
    for k in range(4):
        session.run({"x": X + k, "s": np.array([4, 3])})
    np.testing.assert_array_equal(first, np.broadcast_to(X, (4, 3)))


def test_the_host_is_asked_where_a_run_takes_more(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    answer = HostSteps.answer
    monkeypatch.setattr(
        HostSteps, "answer", lambda self, call, values: asked.append(call.request) or answer(self, call, values)
    )
    counts = []
    for rows in (40, 40, 30, 41, 41, 4, 4, 4):
        asked.clear()
        check(session, rows)
        counts.append(asked.count(OUTPUT))
    assert counts[1:] == [0, 0, 2, 0, 0, 2, 0]  # a run that took much less than it had leaves nothing to the next one


def test_many_threads(session: Session) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda k: check(session, k * 7 % 11), range(100)))
