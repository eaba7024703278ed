"""The sources of the runtime compile with every release of g++ and clang that is here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

RUNTIME = Path(__file__).parents[2] / "runtime/c"
COMPILERS = ["g++", *(f"g++-{n}" for n in range(9, 17)), "clang++"]


@pytest.mark.toolchain
@pytest.mark.parametrize("compiler", COMPILERS)
def test_the_measurement_of_multiply_adds_compiles(compiler, tmp_path):
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    (tmp_path / "rate.cpp").write_text("#include <time.h>\n" + (RUNTIME / "rate.h").read_text())
    command = [compiler, "-std=c++17", "-O2", "-fPIC", "-fno-exceptions", "-c", "rate.cpp"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "error" not in done.stderr
    assert done.returncode == 0, done.stderr
