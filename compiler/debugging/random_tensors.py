"""Random elements for operands and inputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def random_array(
    rng: np.random.Generator,
    dtype: np.dtype,
    shape: Sequence[int],
    *,
    integers: tuple[int, int] = (0, 2),
    positive: bool = False,
) -> np.ndarray:
    """Ordinary values: bools, small integers, normal floats, and `text` where elements are objects.

    Args:
        rng: what draws them.
        dtype: of the elements, as numpy or ml_dtypes has it.
        shape: extents.
        integers: the least integer, and one above the greatest.
        positive: floats from 0.1 to 1, for which every function is defined.
    """
    if dtype.kind == "O":
        return np.full(shape, "text", object)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu" or dtype.name in ("int4", "uint4", "int2", "uint2"):
        return rng.integers(*integers, shape).astype(dtype)
    if positive:
        return (rng.random(shape, dtype=np.float32) * 0.9 + 0.1).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)
