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
        raise ValueError(impossible(getattr(a, "operator", ""), wrong[0], _LARGEST))
    return x


def impossible(operator: str, extent: int, most: int) -> str:
    """Says that operands require an extent that no result can have.

    Args:
        operator: the name of the one that has the operands; may be empty.
        extent: what they require.
        most: the largest that is possible.
    """
    whose = f"the operands of `{operator}`" if operator else "its operands"
    return f"{whose} require an extent of {extent}, but the {f'most is {most}' if extent > 0 else 'least is 0'}"


ROUTINES: dict[str, Callable[..., Any]] = {"sizes": sizes}
