"""Processes and threads that come and go around sessions: forked children, a main thread that ends, threads that the system
does not grant, handlers of signals that raise. Results are those of the first run, and nothing waits for ever.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from building import model_of
from c_library import Model

import occ
from occ.runtime.native import callback

RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((64, 64, 3, 3), np.float32)
CONV = model_of(
    "g (float[1, 64, 32, 32] x) => (float[1, 64, 32, 32] y) { y = Conv <pads = [1, 1, 1, 1]> (x, w) }", {"w": WEIGHT}
)
X = RNG.standard_normal((1, 64, 32, 32), np.float32)
TARGETS = ["interp", "cpu-jit", pytest.param("cpu", marks=pytest.mark.toolchain)]
LONG = 300  # seconds: nothing here takes two on a machine that has nothing else to do


def in_child(work: Callable[[], bool]) -> int:
    """Exit status of a forked child that does some work: 0 if it was right, a signal's number if it was waiting for ever."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of newer Pythons: other threads are what this is about
        child = os.fork()
    if child == 0:
        signal.alarm(LONG)
        code = 3
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


@contextmanager
def busy(run: Callable[[], Any]) -> Iterator[None]:
    """Another thread runs all the time."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            run()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_a_forked_child_runs_the_sessions_of_its_parent(target: str) -> None:
    sessions = [occ.compile(CONV, target, threads=n) for n in (2, 2, 3)]
    expected = sessions[0].run({"x": X})["y"]

    def work() -> bool:
        return all(np.array_equal(s.run({"x": X})["y"], expected) for s in sessions)

    assert work()
    assert in_child(work) == 0
    assert in_child(lambda: in_child(work) == 0) == 0  # a child of a child
    assert work()


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS[1:])
def test_children_of_a_process_whose_other_threads_run(target: str) -> None:
    session = occ.compile(CONV, target, threads=2)
    expected = session.run({"x": X})["y"]

    def work() -> bool:
        return np.array_equal(session.run({"x": X})["y"], expected)

    with busy(work), busy(work):
        assert [in_child(work) for _ in range(25)] == [0] * 25


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS[1:])
def test_a_pool_of_forked_processes(target: str) -> None:
    session = occ.compile(CONV, target, threads=2)
    expected = session.run({"x": X})["y"]
    global _session
    _session = session
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            found = pool.map_async(_run, [X] * 4).get(LONG)
    for y in found:
        np.testing.assert_array_equal(y, expected)


_session: Any = None


def _run(x: np.ndarray) -> np.ndarray:
    return _session.run({"x": x})["y"]


@pytest.mark.thinned
@pytest.mark.toolchain
@pytest.mark.parametrize("target", ["cpu-jit", "cpu"])
def test_a_forked_child_runs_the_models_of_libocc(built: Any, target: str) -> None:
    path: Path = built(CONV, target)
    with Model(path) as first, Model(path) as second:
        (expected,) = first.run(X)

        def work() -> bool:
            return all(np.array_equal(m.run(X)[0], expected) for m in (first, second))

        assert work()
        with busy(lambda: second.run(X)):
            assert [in_child(work) for _ in range(10)] == [0] * 10


def test_loops_end_where_the_system_grants_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    session = occ.compile(CONV, "cpu-jit", threads=1)
    expected = session.run({"x": X})["y"]
    few = occ.compile(CONV, "cpu-jit", threads=4)
    start, started = threading.Thread.start, list[threading.Thread]()

    def refuse(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    np.testing.assert_array_equal(few.run({"x": X})["y"], expected)
    assert started


SCRIPT = """
import os, signal, sys, threading, time
import numpy as np
import occ
session = occ.load(sys.argv[1], threads=2)
x = np.load(sys.argv[2])
expected = session.run({"x": x})["y"]
"""

ENDING = """
del session  # its threads end with it
session = occ.load(sys.argv[1], threads=2)

def work():
    threading.main_thread().join()
    for _ in range(20):
        assert np.array_equal(session.run({"x": x})["y"], expected)
    print("right")

threading.Thread(target=work).start()
"""

SIGNALS = """
class Interrupt(BaseException):  # np.array_equal catches an Exception on its way, and is False then
    pass

def handler(*_):
    raise Interrupt

signal.signal(signal.SIGALRM, handler)
whole = interrupted = 0
ends = time.time() + 100
while interrupted < 60 and time.time() < ends:
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-4 + 3e-3 * np.random.random())
        try:
            for _ in range(20):
                y = session.run({"x": x})["y"]
                whole += 1
                assert np.array_equal(y, expected)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupt:
        interrupted += 1
assert interrupted and np.array_equal(session.run({"x": x})["y"], expected)
print("right")
"""


@pytest.mark.thinned
@pytest.mark.parametrize("script", [ENDING, SIGNALS], ids=["the main thread ends", "handlers raise"])
@pytest.mark.parametrize("target", TARGETS[1:])
def test_runs_are_right_or_not_at_all(built: Any, tmp_path: Path, target: str, script: str) -> None:
    np.save(tmp_path / "x.npy", X)
    command = [sys.executable, "-c", SCRIPT + script, str(built(CONV, target)), str(tmp_path / "x.npy")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "right\n", "")


def test_what_a_handler_raises_on_the_way_to_a_loop_is_raised_by_the_run() -> None:
    """Python handles a signal that came within a kernel at the first instruction of the callback for the next loop."""
    model = model_of(
        "g (float[30000000] x, float[64, 64] z) => (float[64, 64] y) { s = ReduceL2 <keepdims = 0> (x) t = Div (z, s) y = MatMul (t, t) }"
    )
    session = occ.compile(model, "cpu-jit", threads=2)
    feeds = {"x": np.ones(30_000_000, np.float32), "z": RNG.standard_normal((64, 64), np.float32)}
    session.run(feeds)
    start = time.perf_counter()
    expected = session.run(feeds)["y"]
    took = time.perf_counter() - start

    class Interrupt(BaseException):
        pass

    def handler(*_: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, handler)
    try:
        for part in (0.1, 0.2, 0.3):
            with pytest.raises(Interrupt):  # noqa: PT012 - it may come as soon as it is asked for, or after a faster run
                signal.setitimer(signal.ITIMER_REAL, part * took)
                session.run(feeds)
                time.sleep(10 * took)
            np.testing.assert_array_equal(session.run(feeds)["y"], expected)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_run_whose_loop_is_lost_on_the_way_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """ctypes prints and drops what keeps a callback from being called, and returns 0: no result may come of it."""
    lost: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda u: lost.append(u.exc_value))
    session = occ.compile(CONV, "cpu-jit", threads=2)
    with monkeypatch.context() as patch:
        patch.setattr(callback, "_answers", lambda *_: iter_once())
        with pytest.raises(occ.RunError, match=r"OCC0505.*`Conv#1`.*its parallel loop did not run"):
            session.run({"x": X})
    assert [type(e) for e in lost] == [StopIteration]
    expected = occ.compile(CONV, "cpu-jit", threads=1).run({"x": X})["y"]
    np.testing.assert_array_equal(session.run({"x": X})["y"], expected)


def iter_once() -> Generator[int, object, None]:
    """Takes no call."""
    yield 0


def lucky() -> Generator[int, object, None]:
    """Answers as if each loop had run: the result of a lost callback is on the stack, and may be just that."""
    while True:
        yield 1


def test_a_lost_loop_that_seems_to_have_run_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    session = occ.compile(CONV, "cpu-jit", threads=2)
    with monkeypatch.context() as patch:
        patch.setattr(callback, "_answers", lambda *_: lucky())
        with pytest.raises(occ.RunError, match=r"OCC0505.*a callback of the model did not run"):
            session.run({"x": X})
    session.run({"x": X})
