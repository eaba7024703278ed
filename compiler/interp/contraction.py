"""Sums of products of te functions, as numpy einsum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from occ.compiler.ir.te.expr import (
    Binary,
    Expr,
    Reduce,
)


def is_contraction(e: Expr) -> bool:
    """Whether an expression is a sum of products."""
    return isinstance(e, Reduce) and e.kind == "sum" and len(factors_of(e.body)) > 1


def factors_of(e: Expr) -> list[Expr]:
    """The factors of a product; the expression itself if it is not one."""
    if isinstance(e, Binary) and e.op == "mul" and e.dtype.kind in "fiu":
        return factors_of(e.lhs) + factors_of(e.rhs)
    return [e]


def contract(factors: list[Any], shape: tuple[int, ...], rank: int) -> np.ndarray:
    """Sum of a product over the axes from `rank` on, as an einsum of its factors."""
    arrays = [np.asarray(x) for x in factors]
    arrays = [x.reshape((1,) * (len(shape) - x.ndim) + x.shape) for x in arrays]
    varying = [k for k in range(len(shape)) if any(x.shape[k] > 1 for x in arrays)]
    operands: list[Any] = []
    for x in arrays:
        axes = [k for k in varying if x.shape[k] > 1]
        operands += [x.reshape([x.shape[k] for k in axes]) if x.flags.c_contiguous else _squeeze(x, axes), axes]
    kept = [k for k in varying if k < rank]
    total = np.einsum(*operands, kept, optimize=True)
    constant = math.prod(shape[k] for k in range(rank, len(shape)) if k not in varying)
    total = total * total.dtype.type(constant) if constant != 1 else total
    return total.reshape([shape[k] if k in kept else 1 for k in range(rank)])


def _squeeze(x: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    return x[tuple(slice(None) if k in axes else 0 for k in range(x.ndim))]
