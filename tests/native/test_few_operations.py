"""Kernels of few operations in a run, as of a single row of what may have many, stay on the thread that runs the model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from building import model_of

import occ
from occ.runtime.native.workers import Range, Workers

TEXT = "g (float[rows, 300] x) => (float[columns, r] t, float[rows, 300] y) { t = Transpose(x) y = Sigmoid(x) }"
# The pool starts its threads with the first loop.
CHILD = """
import os, sys
import numpy as np
import occ

session = occ.load(sys.argv[1], threads=2)
for rows in (0, 1, 2048):
    x = np.ones((rows, 300), np.float32)
    y = session.run({"x": x})["y"]
    assert np.allclose(y, 1 / (1 + np.exp(-x)))
    print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.toolchain
def test_threads_start_with_the_first_kernel_that_is_worth_it(tmp_path: Path) -> None:
    occ.build(model_of(TEXT), "cpu").save(tmp_path / "m.occ")
    done = subprocess.run(
        [sys.executable, "-c", CHILD, tmp_path / "m.occ"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    none, one, many = map(int, done.stdout.split())
    assert none == one == many - 1


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tasks of each loop that workers run."""
    seen: list[int] = []

    def counted(self: Workers, run: Range, tasks: int) -> int:
        seen.append(tasks)
        return run(0, tasks)

    monkeypatch.setattr(Workers, "run", counted)
    return seen


def test_loops_of_kernels_without_a_pool(loops: list[int]) -> None:
    session = occ.compile(model_of(TEXT), "cpu-jit", threads=2)
    for rows, count in ((0, 0), (1, 0), (2048, 2)):
        loops.clear()
        x = np.random.default_rng(rows).standard_normal((rows, 300)).astype(np.float32)
        got = session.run({"x": x})
        np.testing.assert_array_equal(got["t"], x.T)
        np.testing.assert_allclose(got["y"], 1 / (1 + np.exp(-x)), rtol=1e-5)
        assert len(loops) == count


@pytest.mark.parametrize(("rows", "count"), [(8, 0), (2048, 1)])
def test_products_of_some_rows_are_few_operations(loops: list[int], rows: int, count: int) -> None:
    """Eight rows by 64 columns of 64 elements are 65,536 operations, and done in a microsecond: they are in registers."""
    w = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    x = np.random.default_rng(rows).standard_normal((rows, 64)).astype(np.float32)
    model = model_of("g (float[rows, 64] x) => (float[rows, 64] y) { y = MatMul(x, w) }", {"w": w})
    got = occ.compile(model, "cpu-jit", threads=2).run({"x": x})["y"]
    np.testing.assert_allclose(got, x @ w, rtol=1e-4, atol=1e-4)
    assert len(loops) == count
