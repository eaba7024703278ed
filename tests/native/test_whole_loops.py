"""Loops around long sums and tiles are not cut in parts: what is computed in them is in the machine code once."""

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
MASKED = f"{TARGET}-avx512-avx512_skylake"  # stores parts of vectors


def size_of(
    side: int, kernel: int, border: int, cache: Cache, after: str = "", filters: int = 64, target: str = TARGET
) -> int:
    """Bytes of the object of a convolution of a plane to one of `side` by `side`, and what comes `after` it."""
    channels = 192 if kernel == 1 else 64  # fewer are a matrix product
    w = np.random.default_rng(0).standard_normal((filters, channels, kernel, kernel), dtype=np.float32)
    given = side + kernel - 1 - 2 * border
    pads = f"[{border}, {border}, {border}, {border}]"
    text = f"g (float[1, {channels}, {given}, {given}] x) => (float[1, {filters}, {side}, {side}] y) {{ {'c' if after else 'y'} = Conv<pads = {pads}>(x, w) {after} }}"
    c = Compilation(model_of(text, {"w": w}), Settings("cpu", options={"halide.target": target, "optimize": "3"}))
    c.advance("lowered")
    setup, _ = setup_for(target, cache)
    (made,) = (setup.kernel(f) for f in c.module.te.values() if f.name.startswith(("conv", "winograd")))
    compile_kernels([made], setup, cache, 1)
    path = cache.path("kernel", made.key, ".o")
    assert b"_metadata" not in path.read_bytes()
    return path.stat().st_size


def test_blocks_of_which_the_last_is_shorter_have_one_code(tools_only: Callable[[str], Path]) -> None:
    cache = Cache(tools_only("cache"))
    assert size_of(56, 1, 0, cache) < 1.15 * size_of(48, 1, 0, cache)


def test_transforms_of_tiles_have_one_code_inside_and_at_the_border(tools_only: Callable[[str], Path]) -> None:
    cache = Cache(tools_only("cache"))
    assert size_of(56, 3, 1, cache) < 1.3 * size_of(56, 3, 0, cache)


def test_a_sigmoid_after_a_tile_is_there_once(tools_only: Callable[[str], Path]) -> None:
    cache = Cache(tools_only("cache"))
    silu = "s = Sigmoid(c) y = Mul(c, s)"
    assert size_of(55, 3, 1, cache, silu) < 1.3 * size_of(55, 3, 1, cache)


def test_columns_of_which_the_last_are_part_of_a_vector_have_one_code(tools_only: Callable[[str], Path]) -> None:
    cache = Cache(tools_only("cache"))
    part, whole = (size_of(48, 1, 0, cache, filters=n, target=MASKED) for n in (200, 192))
    assert part < 1.15 * whole
