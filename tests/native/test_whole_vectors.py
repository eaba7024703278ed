"""Products whose columns fill no vectors: without AVX-512, whole vectors, halves and quarters are stored without a mask."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from building import model_of

from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.driver.sessions import open_session
from occ.compiler.objects.processors import PROCESSORS
from occ.runtime.artifact import Artifact

pytestmark = pytest.mark.toolchain
MASKED = re.compile(r"vmaskmovps\s+%ymm\d+,%ymm\d+,")


def product_of(columns: int, level: str, processor: str = "x86-64-v3") -> tuple[Artifact, np.ndarray]:
    w = np.random.default_rng(columns).standard_normal((40, columns), dtype=np.float32)
    model = model_of(f"g (float[50, 40] x) => (float[50, {columns}] y) {{ y = MatMul(x, w) }}", {"w": w})
    options = {"optimize": level, "halide.target": PROCESSORS[processor]}
    return Compilation(model, Settings("cpu", options=options)).artifact(), w


@pytest.mark.skipif(not shutil.which("objdump") or platform.machine() != "x86_64", reason="needs objdump, on x86-64")
@pytest.mark.parametrize(("columns", "masked"), [(66, False), (68, False), (67, True)])
def test_only_odd_parts_are_stored_under_a_mask(columns: int, masked: bool, tmp_path: Path) -> None:
    made = tmp_path / "model.so"
    made.write_bytes(product_of(columns, "3")[0].code)
    command = ["objdump", "-d", "--no-show-raw-insn", str(made)]
    code = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert bool(MASKED.search(code)) == masked


@pytest.mark.parametrize("processor", ["x86-64-v2", "x86-64-v3"])
def test_results_are_those_of_the_product(processor: str) -> None:
    x = np.random.default_rng(0).standard_normal((50, 40), dtype=np.float32)
    for columns in range(33, 49):
        artifact, w = product_of(columns, "2", processor)
        (got,) = open_session(artifact, 1).run({"x": x}).values()
        want = x.astype(np.float64) @ w
        assert np.abs(got - want).max() <= 1e-6 * np.abs(want).max()
