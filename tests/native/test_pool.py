"""The thread pool of the native runtime: every task of a loop runs once, whatever the sizes and the threads."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from occ.compiler.codegen_halide.programs import runtime_source

pytestmark = pytest.mark.toolchain

TASK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
# A task of a few microseconds, in which others find theirs. In Python 300 threads would wait for the interpreter for seconds.
COUNTING = """
struct Loop { int first, size, fails, beyond; int *ran; };
extern "C" int count(void *, int index, void *closure) {
    Loop &loop = *static_cast<Loop *>(closure);
    for (volatile int busy = 0; busy < 3000; busy = busy + 1) {}
    const bool is_task = index >= loop.first && index < loop.first + loop.size;
    __atomic_fetch_add(is_task ? &loop.ran[index - loop.first] : &loop.beyond, 1, __ATOMIC_RELAXED);
    return index == loop.fails ? -7 : 0;
}
"""
NO_TASK = -(1 << 30)


class Loop(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("first", "size", "fails", "beyond")] + [
        ("ran", ctypes.POINTER(ctypes.c_int))
    ]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    made = tmp_path_factory.mktemp("pool") / "pool.so"
    source = made.with_suffix(".cpp")
    source.write_text(runtime_source() + COUNTING)
    compiler = shutil.which("g++") or "c++"
    subprocess.run([compiler, "-std=c++17", "-O2", "-shared", "-fPIC", "-pthread", source, "-o", made], check=True)
    return ctypes.CDLL(str(made))


def loop(pool: ctypes.CDLL, threads: int, least: int, size: int, fails: int = NO_TASK) -> tuple[list[int], int]:
    """How often each task of a loop ran, and what the loop gave."""
    ran = (ctypes.c_int * size)()
    closure = Loop(least, size, fails, 0, ran)
    before = pool.occ_enter(threads)
    error = pool.halide_do_par_for(None, pool.count, least, size, ctypes.byref(closure))
    pool.occ_leave(before)
    assert closure.beyond == 0
    return list(ran), error


@pytest.mark.parametrize("threads", [1, 2, 3, 8, 300])
def test_every_task_runs_once(pool: ctypes.CDLL, threads: int) -> None:
    for size in (0, 1, 2, 3, 7, 31, 32, 33, 257, 1000):
        seen, error = loop(pool, threads, -5, size)
        assert error == 0
        assert seen == [1] * size


@pytest.mark.parametrize("threads", [1, 4])
def test_an_error_of_a_task_is_that_of_the_loop(pool: ctypes.CDLL, threads: int) -> None:
    seen, error = loop(pool, threads, 0, 100, fails=40)
    assert error == -7
    assert max(seen) == 1


def test_loops_of_several_threads_side_by_side(pool: ctypes.CDLL) -> None:
    def many(size: int) -> bool:
        return all(loop(pool, 3, 0, size) == ([1] * size, 0) for _ in range(50))

    with ThreadPoolExecutor(6) as callers:
        assert all(callers.map(many, [5, 40, 99, 200, 3, 64]))


def test_a_loop_next_to_another_one_leaves_the_cores_to_it(pool: ctypes.CDLL) -> None:
    """Two threads call loops that may take two: the worker, which is free, helps neither."""
    within, over = threading.Event(), threading.Event()
    ran_on: set[int] = set()

    def first(_context: int, index: int, _closure: int) -> int:
        if index == 0:
            within.set()
            over.wait(300)
        return 0

    def second(_context: int, _index: int, _closure: int) -> int:
        ran_on.add(threading.get_ident())
        time.sleep(0.001)
        return 0

    def call(task: Callable[[int, int, int], int], size: int) -> None:
        before = pool.occ_enter(2)
        assert pool.halide_do_par_for(None, TASK(task), 0, size, None) == 0
        pool.occ_leave(before)

    with ThreadPoolExecutor(1) as other:
        done = other.submit(call, first, 2)
        try:
            assert within.wait(300)
            call(second, 100)
        finally:
            over.set()
        done.result()
    assert ran_on == {threading.get_ident()}


def test_the_caller_sleeps_while_a_worker_has_the_last_task(pool: ctypes.CDLL) -> None:
    caller, begun = threading.get_ident(), threading.Event()

    def task(_context: int, _index: int, _closure: int) -> int:
        if threading.get_ident() == caller:
            begun.wait(300)
            return 0
        begun.set()
        time.sleep(0.4)
        return 0

    def ran() -> tuple[float, int]:
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        return usage.ru_utime + usage.ru_stime, usage.ru_nivcsw

    before = pool.occ_enter(2)
    start = ran()
    assert pool.halide_do_par_for(None, TASK(task), 0, 2, None) == 0
    seconds, put_off = (b - a for a, b in zip(start, ran(), strict=True))
    pool.occ_leave(before)
    assert seconds < 0.05, "it spins"
    assert put_off < 10, "it yields to others again and again"


PINNED = """
import ctypes, os, sys
pool = ctypes.CDLL(sys.argv[1])
task = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(lambda *_: 0)
before = pool.occ_enter(4)
pool.halide_do_par_for(None, task, 0, 64, None)
for thread in sorted(map(int, os.listdir("/proc/self/task"))):
    print(len(os.sched_getaffinity(thread)))
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
@pytest.mark.parametrize("pinned", ["0", "1"])
def test_workers_are_pinned_where_it_is_asked_for_and_the_caller_never_is(pool: ctypes.CDLL, pinned: str) -> None:
    env = os.environ | {"OCC_PIN_WORKERS": pinned}
    command = [sys.executable, "-c", PINNED, pool._name]
    found = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.split()
    every = str(len(os.sched_getaffinity(0)))
    assert found == [every, *([every if pinned == "0" else "1"] * 3)]
