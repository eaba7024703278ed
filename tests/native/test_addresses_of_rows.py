"""Rows of a tile whose number is symbolic: their addresses are scalars, not a vector that is taken apart."""

import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from building import model_of

from occ.compiler.driver.compilation import Compilation, Settings


@pytest.mark.toolchain
@pytest.mark.skipif(not shutil.which("objdump") or platform.machine() != "x86_64", reason="needs objdump, on x86-64")
def test_no_address_is_a_lane(tmp_path: Path) -> None:
    w = np.random.default_rng(0).standard_normal((175, 64), dtype=np.float32)
    model = model_of("g (float[n, 175] x) => (float[n, 64] y) { y = MatMul(x, w) }", {"w": w})
    made = tmp_path / "model.so"
    made.write_bytes(Compilation(model, Settings("cpu")).artifact().code)
    code = subprocess.run(["objdump", "-d", str(made)], check=True, capture_output=True, text=True).stdout
    assert "vfmadd" in code
    assert "pextrq" not in code
