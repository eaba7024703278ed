"""Steps that turn computed values into sizes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

_LARGEST = 2**31 - 1  # maximum size: kernels use 32 bits


def sizes(x: np.ndarray, *, a: SimpleNamespace) -> np.ndarray:
    """The elements of i64[n], which must be valid sizes."""
    if wrong := [int(n) for n in x if not 0 <= n <= _LARGEST]:
        raise ValueError(f"its operands require an extent of {wrong[0]}")
    return x


ROUTINES: dict[str, Callable[..., Any]] = {"sizes": sizes}
