"""Loops around long sums are not cut in parts: what is computed in them is in the machine code once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from building import model_of

from occ.compiler.cache.cache import Cache
from occ.compiler.codegen_halide.build import setup_for
from occ.compiler.codegen_halide.compile_kernels import compile_kernels
from occ.compiler.driver.compilation import Compilation, Settings

pytestmark = pytest.mark.toolchain
TARGET = "x86-64-linux-avx-avx2-f16c-fma-sse41"  # the same code everywhere


def size_of(side: int, kernel: int, border: int, cache: Cache) -> int:
    """Bytes of the object of a convolution of a plane to one of `side` by `side`."""
    w = np.random.default_rng(0).standard_normal((64, 64, kernel, kernel), dtype=np.float32)
    given = side + kernel - 1 - 2 * border
    pads = f"[{border}, {border}, {border}, {border}]"
    text = (
        f"g (float[1, 64, {given}, {given}] x) => (float[1, 64, {side}, {side}] y) {{ y = Conv<pads = {pads}>(x, w) }}"
    )
    c = Compilation(model_of(text, {"w": w}), Settings("cpu", options={"halide.target": TARGET}))
    c.advance("lowered")
    setup, _ = setup_for(TARGET, cache)
    (made,) = (setup.kernel(f) for f in c.module.te.values() if f.name.startswith(("conv", "winograd")))
    compile_kernels([made], setup, cache, 1)
    return cache.path("kernel", made.key, ".o").stat().st_size


def test_blocks_of_which_the_last_is_shorter_have_one_code(tools_only: Callable[[str], Path]) -> None:
    cache = Cache(tools_only("cache"))
    assert size_of(56, 1, 0, cache) < 1.15 * size_of(48, 1, 0, cache)


def test_borders_are_tested_in_the_loops_of_the_input_alone(tools_only: Callable[[str], Path]) -> None:
    cache = Cache(tools_only("cache"))
    assert size_of(56, 3, 1, cache) < 2 * size_of(56, 3, 0, cache)
