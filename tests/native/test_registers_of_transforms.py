"""Winograd's transforms of planes of any size, and its sums: what they read and make stays in registers."""

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


pytestmark = [
    pytest.mark.toolchain,
    pytest.mark.skipif(
        not shutil.which("objdump") or platform.machine() != "x86_64", reason="needs objdump, on x86-64"
    ),
]


def disassembled(text: str, processor: str, folder: Path) -> list[str]:
    """The loops of Winograd's kernels of a model with a weight `k`."""
    w = np.random.default_rng(0).standard_normal((64, 64, 3, 3), dtype=np.float32)
    options = {"halide.target": PROCESSORS[processor]}
    made = folder / "model.so"
    made.write_bytes(Compilation(model_of(text, {"k": w}), Settings("cpu", options=options)).artifact().code)
    command = ["objdump", "-d", "--no-show-raw-insn", str(made)]
    code = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [f for f in re.split(r"\n\n", code) if re.match(r"\w+ <winograd\w*_par_for_\w*>:", f)]


def test_no_vector_of_a_tile_is_on_the_stack(tmp_path: Path) -> None:
    text = "g (float[1, 64, h, w] x) => (float[1, 64, h, w] y) { c = Conv <pads = [1, 1, 1, 1]> (x, k) y = Tanh(c) }"
    functions = disassembled(text, "znver4", tmp_path)
    assert any("vfmadd" in f for f in functions)
    assert (
        sum(len(MOVED.findall(f)) for f in functions) < 100
    )  # 51; 182 where the transforms are unrolled after Halide lowered them


@pytest.mark.parametrize("width", [161, 96], ids=["of 21 tiles", "of 24"])
def test_sums_in_16_registers_stay_there(width: int, tmp_path: Path) -> None:
    """Twelve would fit, but not beside the weights of two terms, which are loaded at once."""
    text = (
        f"g (float[1, 64, 28, {width}] x) => (float[1, 64, 28, {width}] y) {{ y = Conv <pads = [1, 1, 1, 1]> (x, k) }}"
    )
    blocks = [b for f in disassembled(text, "x86-64-v3", tmp_path) for b in re.split(r"\sj\w+\s.*", f)]
    sums = [b for b in blocks if "prefetch" in b and b.count("vfmadd") >= 32]
    assert sums
    assert not any(re.search(r"ymm.*%rsp|%rsp.*ymm", b) for b in sums)
