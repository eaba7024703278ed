"""Loops of products are unrolled after Halide has lowered them: most of its passes see one term, the code has all."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from building import model_of

from occ.compiler.cache.cache import Cache
from occ.compiler.codegen_halide import compile_kernels
from occ.compiler.codegen_halide.build import setup_for
from occ.compiler.driver.compilation import Compilation, Settings

pytestmark = pytest.mark.toolchain
TARGET = "x86-64-linux-avx-avx2-f16c-fma-sse41"


def passes_of(text: str, weights: np.ndarray, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> str:
    """What Halide prints about the only product of a model: the kernel after each of its passes."""
    c = Compilation(model_of(text, {"w": weights}), Settings("cpu", options={"halide.target": TARGET}))
    c.advance("lowered")
    printed: list[str] = []

    def shown(commands: Sequence[Sequence[str]], where: Path, **_: int) -> None:
        known = {**os.environ, "HL_DEBUG_CODEGEN": "1"}
        for command in commands:
            done = subprocess.run(command, cwd=where, env=known, check=True, capture_output=True, text=True)
            printed.append(done.stderr)

    setup, _ = setup_for(TARGET, cache)
    (made,) = (setup.kernel(f) for f in c.module.te.values() if f.name.startswith(("matmul", "winograd")))
    compile_kernels.emitter(setup.tools, cache)
    monkeypatch.setattr(compile_kernels, "run_all", shown)
    compile_kernels.compile_kernels([made], setup, cache, 1)
    return "".join(printed)


def stores(printed: str, after: str, function: str) -> int:
    """Stores to a function in the kernel after a pass."""
    lines = printed.split(f"Lowering after {after}:\n")[1].split("Lowering ")[0].splitlines()
    return sum(line.strip().startswith(f"{function}[") for line in lines)


def test_passes_see_one_term(tools_only: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    text, function = "g (float[64, 256] x) => (float[64, 320] y) { y = MatMul(x, w) }", "matmul_0acc"
    weights = np.random.default_rng(0).standard_normal((256, 320), dtype=np.float32)
    printed = passes_of(text, weights, Cache(tools_only("cache")), monkeypatch)
    assert 1 <= stores(printed, "final simplification", function) <= 2  # the first value and the sum
    assert stores(printed, "custom pass 0", function) >= 32
