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
    """Ordinary values: bools, small integers, normally distributed floats, and `text` for object elements.

    Args:
        rng: the random generator.
        dtype: element type, in numpy or ml_dtypes.
        shape: extents.
        integers: the lowest integer, and one above the highest.
        positive: whether floats are between 0.1 and 1, where every function is defined.
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
