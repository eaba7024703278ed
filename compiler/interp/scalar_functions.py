"""numpy functions of te operators: arithmetic, comparisons, calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from occ.compiler.ir.dtype import BOOL, DType
from occ.compiler.ir.te.expr import (
    call_dtype,
)


def _truncated(a: Any, b: Any, dtype: DType) -> Any:
    if dtype.is_float or dtype.kind == "c":
        return np.divide(a, b)
    quotient = np.floor_divide(a, b)
    return np.where(
        (np.remainder(a, b) != 0) & ((np.asarray(a) < 0) != (np.asarray(b) < 0)), quotient + 1, quotient
    ).astype(dtype.numpy)


def _logical(bitwise: Any, logical: Any) -> Any:
    return lambda a, b, dtype: logical(a, b) if dtype == BOOL else bitwise(a, b)


def _shift(left: bool) -> Any:
    def shift(a: Any, b: Any, dtype: DType) -> Any:
        wide = np.asarray(b).astype(np.int64)
        moved = (np.left_shift if left else np.right_shift)(
            a, np.clip(wide, 0, dtype.bits - 1).astype(np.asarray(b).dtype)
        )
        beyond = np.where(np.asarray(a) < 0, -1, 0) if dtype.kind == "i" and not left else np.zeros_like(a)
        return np.where((wide >= dtype.bits) | (wide < 0), beyond, moved).astype(dtype.numpy)

    return shift


BINARY: dict[str, Callable[[Any, Any, DType], Any]] = {
    "add": lambda a, b, _: np.add(a, b), "sub": lambda a, b, _: np.subtract(a, b),
    "mul": lambda a, b, _: np.multiply(a, b), "div": _truncated, "rem": lambda a, b, _: np.fmod(a, b),
    "floordiv": lambda a, b, _: np.floor_divide(a, b), "mod": lambda a, b, _: np.remainder(a, b),
    "min": lambda a, b, _: np.minimum(a, b), "max": lambda a, b, _: np.maximum(a, b),
    "eq": lambda a, b, _: np.equal(a, b), "ne": lambda a, b, _: np.not_equal(a, b),
    "lt": lambda a, b, _: np.less(a, b), "le": lambda a, b, _: np.less_equal(a, b),
    "and": _logical(np.bitwise_and, np.logical_and), "or": _logical(np.bitwise_or, np.logical_or),
    "xor": _logical(np.bitwise_xor, np.logical_xor), "shl": _shift(True), "shr": _shift(False),
}  # fmt: skip
_UNARY: dict[str, Callable[..., Any]] = {
    "neg": np.negative, "abs": np.abs, "sign": np.sign, "sqrt": np.sqrt, "exp": np.exp, "log": np.log, "sin": np.sin,
    "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh,
    "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round_even": np.rint, "isnan": np.isnan, "isinf": np.isinf,
    "popcount": np.bitwise_count, "pow": lambda a, b: _power(a, b), "atan2": np.arctan2, "nearest": np.rint,
    "decay": np.exp,
    "log1p": np.log1p,
    "fma": lambda a, b, c: np.float64(a) * b + c,  # exact for f32, except that the sum is first rounded to f64
}  # fmt: skip


def _power(a: Any, b: Any) -> Any:
    """Powers; integers with a negative exponent yield 0, or a power of 1 or -1."""
    a, b = np.asarray(a), np.asarray(b)
    if b.dtype.kind != "i":
        return np.power(a, b)
    whole = np.power(a, np.maximum(b, 0))
    return np.where(b < 0, np.where(np.abs(a) == 1, np.power(a, b & 1), 0), whole)


def call(fn: str, args: list[Any], dtype: DType) -> Any:
    """The result of a te call on arrays."""
    if fn == "not":
        return np.logical_not(args[0]) if dtype == BOOL else np.bitwise_not(args[0])
    if fn == "erf":
        flat = np.asarray(args[0])
        values = np.fromiter(map(math.erf, flat.reshape(-1).tolist()), np.float64, flat.size)
        return values.reshape(flat.shape).astype(dtype.numpy)
    if dtype.is_int and fn in ("floor", "ceil", "trunc", "round_even"):
        return args[0]
    result = _UNARY[fn](*args)
    dtype = call_dtype(fn, dtype)
    return np.asarray(result).astype(dtype.numpy)
