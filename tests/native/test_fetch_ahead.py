"""Constants that are fetched ahead: the code has the instructions where the schedule says so, and computes the same."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from building import model_of

from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.driver.sessions import open_session

pytestmark = pytest.mark.toolchain
FETCHES = "prefetch"


def product_of(rows: int | str, depth: int, columns: int) -> tuple[object, np.ndarray]:
    w = np.random.default_rng(0).standard_normal((depth, columns), dtype=np.float32)
    text = f"g (float[{rows}, {depth}] x) => (float[{rows}, {columns}] y) {{ y = MatMul(x, w) }}"
    return model_of(text, {"w": w}), w


def disassembled(code: bytes, folder: Path) -> str:
    (folder / "model.so").write_bytes(code)
    command = ["objdump", "-d", "--no-show-raw-insn", str(folder / "model.so")]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.skipif(not shutil.which("objdump") or platform.machine() != "x86_64", reason="needs objdump, on x86-64")
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
    made = Compilation(product_of(rows, depth, columns)[0], Settings("cpu")).artifact()
    assert (FETCHES in disassembled(made.code, tmp_path)) == fetched


@pytest.mark.parametrize(("depth", "columns"), [(256, 320), (300, 333)])
def test_results_are_those_of_the_product(depth: int, columns: int) -> None:
    model, w = product_of("n", depth, columns)
    session = open_session(Compilation(model, Settings("cpu")).artifact(), 2)
    for rows in (0, 1, 3, 8, 41, 64):
        x = np.random.default_rng(rows).standard_normal((rows, depth), dtype=np.float32)
        want = x.astype(np.float64) @ w
        (got,) = session.run({"x": x}).values()
        assert np.abs(got - want).max(initial=0) <= 1e-5 * np.abs(want).max(initial=1)
