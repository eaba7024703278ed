"""Products of bytes load rows of packed panels whole: lanes hold several terms, whose codes stand side by side."""

import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from building import model_of

from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.objects.processors import PROCESSORS

RNG = np.random.default_rng(0)
FORMS = {
    "product": ("g (uint8[16, 64] x) => (int32[16, 64] y) { y = MatMulInteger(x, w) }", (64, 64)),
    "convolution": ("g (uint8[1, 64, 9, 9] x) => (int32[1, 64, 9, 9] y) { y = ConvInteger(x, w) }", (64, 64, 1, 1)),
}


@pytest.mark.toolchain
@pytest.mark.skipif(not shutil.which("objdump") or platform.machine() != "x86_64", reason="needs objdump, on x86-64")
@pytest.mark.parametrize(
    ("processor", "most", "multiplies"),
    [
        ("znver4", 127, "vpdpbusd"),
        ("x86-64-v4", 127, "vpmaddwd"),
        ("x86-64-v3", 127, "vpmaddwd"),
        ("x86-64-v3", 60, "vpmaddubsw"),
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_no_code_of_a_weight_is_loaded_alone(
    form: str, processor: str, most: int, multiplies: str, tmp_path: Path
) -> None:
    text, shape = FORMS[form]
    model = model_of(text, {"w": RNG.integers(-most, most + 1, shape).astype(np.int8)})
    made = tmp_path / "model.so"
    options = {"halide.target": PROCESSORS[processor]}
    made.write_bytes(Compilation(model, Settings("cpu", options=options)).artifact().code)
    code = subprocess.run(["objdump", "-d", str(made)], check=True, capture_output=True, text=True).stdout
    assert multiplies in code
    assert "vpinsrb" not in code
