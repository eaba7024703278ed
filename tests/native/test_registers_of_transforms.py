"""Winograd's transforms of planes of any size: what they read and make stays in registers."""

import platform
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from building import model_of

from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.objects.processors import PROCESSORS

MOVED = re.compile(r"vmov[au]ps\s+(%zmm\d+,-?\w*\(%rsp\)|-?\w*\(%rsp\),%zmm\d+)")


@pytest.mark.toolchain
@pytest.mark.skipif(not shutil.which("objdump") or platform.machine() != "x86_64", reason="needs objdump, on x86-64")
def test_no_vector_of_a_tile_is_on_the_stack(tmp_path: Path) -> None:
    w = np.random.default_rng(0).standard_normal((64, 64, 3, 3), dtype=np.float32)
    text = "g (float[1, 64, h, w] x) => (float[1, 64, h, w] y) { c = Conv <pads = [1, 1, 1, 1]> (x, k) y = Tanh(c) }"
    options = {"halide.target": PROCESSORS["znver4"]}
    artifact = Compilation(model_of(text, {"k": w}), Settings("cpu", options=options)).artifact()
    made = tmp_path / "model.so"
    made.write_bytes(artifact.code)
    command = ["objdump", "-d", "--no-show-raw-insn", str(made)]
    code = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    functions = [f for f in re.split(r"\n\n", code) if re.match(r"\w+ <winograd\w*_par_for_\w*>:", f)]
    assert any("vfmadd" in f for f in functions)
    assert (
        sum(len(MOVED.findall(f)) for f in functions) < 100
    )  # 51; 182 where the transforms are unrolled after Halide lowered them
