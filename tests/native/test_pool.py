"""The thread pool of the native runtime: every task of a loop runs once, whatever the sizes and the threads."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import occ.compiler.codegen_halide as halide
import pytest

pytestmark = pytest.mark.toolchain

TASK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    made = tmp_path_factory.mktemp("pool") / "pool.so"
    source = Path(halide.__file__).parent / "native" / "runtime.cpp"
    compiler = shutil.which("g++") or "c++"
    subprocess.run([compiler, "-std=c++17", "-O2", "-shared", "-fPIC", "-pthread", source, "-o", made], check=True)
    return ctypes.CDLL(str(made))


def loop(pool: ctypes.CDLL, threads: int, least: int, size: int, fails: int | None = None) -> tuple[Counter[int], int]:
    """How often each task of a loop ran, and what the loop gave."""
    seen: list[int] = []  # `append` is one step for any thread

    def task(_context: int, index: int, _closure: int) -> int:
        seen.append(index)
        return -7 if index == fails else 0

    before = pool.occ_enter(threads)
    error = pool.halide_do_par_for(None, TASK(task), least, size, None)
    pool.occ_leave(before)
    return Counter(seen), error


@pytest.mark.parametrize("threads", [1, 2, 3, 8, 300])
def test_every_task_runs_once(pool: ctypes.CDLL, threads: int) -> None:
    for size in (0, 1, 2, 3, 7, 31, 32, 33, 257, 1000):
        seen, error = loop(pool, threads, -5, size)
        assert error == 0
        assert seen == Counter(range(-5, size - 5))


@pytest.mark.parametrize("threads", [1, 4])
def test_an_error_of_a_task_is_that_of_the_loop(pool: ctypes.CDLL, threads: int) -> None:
    seen, error = loop(pool, threads, 0, 100, fails=40)
    assert error == -7
    assert max(seen.values()) == 1


def test_loops_of_several_threads_side_by_side(pool: ctypes.CDLL) -> None:
    def many(size: int) -> bool:
        return all(loop(pool, 3, 0, size) == (Counter(range(size)), 0) for _ in range(50))

    with ThreadPoolExecutor(6) as callers:
        assert all(callers.map(many, [5, 40, 99, 200, 3, 64]))
