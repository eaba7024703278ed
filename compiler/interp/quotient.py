"""Rational functions of symbolic sizes, for shape arithmetic such as `ceil((T - 2) / 2.0 + 1)`.

Floats round to the same sizes, up to 2**24 for f32: halves and quarters are exact, and any other quotient is either an
integer or farther from one than the rounding error. This stays true after sums with exact numbers and further
quotients, but not after products and sums of two such quotients (`T / 49.0 * 49.0` may be less than `T`): those become
unknown.
"""

from __future__ import annotations

from fractions import Fraction
from math import isfinite, lcm
from typing import Any

from occ.compiler.ir import dim
from occ.compiler.ir.dim import Dim
from occ.runtime.dataclass import dataclass

_LARGEST = 64  # denominator of a constant: 0.5 and 1/64 are exact, 0.1 is not what it appears to be


@dataclass(frozen=True, slots=True)
class Quotient:
    """The number `top / by`, not an integer for all sizes; `by` is at least 2."""

    top: Dim
    by: int

    def rounded(self, way: str) -> Dim | float | None:
        """`floor`, `ceil` or `trunc` of it; None for other functions."""
        ways = {"floor": dim.floordiv, "ceil": dim.ceildiv, "trunc": truncated}
        found = ways[way](self.top, self.by) if way in ways else None
        return float(found) if isinstance(found, int) else found

    def __neg__(self) -> Quotient:
        return Quotient(-self.top, self.by)


Number = Dim | float | Quotient


def without_quotients(found: tuple[Any, ...] | None) -> tuple[Dim | float | None, ...] | None:
    """Elements, with None for quotients, which are not sizes yet."""
    return tuple(None if isinstance(x, Quotient) else x for x in found) if found else found


def truncated(x: Dim, y: Dim) -> Dim | None:
    """The quotient rounded towards zero, as ONNX Div rounds.

    For `H - 3`, which no bound of H keeps from being negative, that is `max((H - 3)//4, min(H//4, 0))`, and hence
    `max((H - 3)//4, 0)`.
    """
    if dim.lower(x) >= 0:
        return dim.floordiv(x, y)
    return dim.maximum(x // y, dim.minimum(dim.ceildiv(x, y), 0)) if dim.is_positive(y) else None


def difference(a: Number, b: Number) -> Dim | None:
    """A size with the sign of `a - b`."""
    p, q = _fraction(a), _fraction(b)
    if p is None or q is None or not (_is_exact(p) or _is_exact(q)):
        return None
    return p[0] * q[1] - q[0] * p[1]


def arithmetic(op: str, a: Number, b: Number) -> Number | None:
    """`add`, `sub`, `mul`, `div`, `min` or `max` of real numbers; None if the result is not representable."""
    p, q = _fraction(a), _fraction(b)
    if p is None or q is None:
        return None
    (x, m), (y, n) = p, q
    exact = _is_exact(p), _is_exact(q)
    match op:
        case "mul" if all(exact) or (exact[0] and _is_power(x)) or (exact[1] and _is_power(y)):
            return _number(x * y, m * n)
        case "div" if m == n == 1 and (whole := dim.exact_quotient(x, y)) is not None:
            return _number(whole, 1)
        case "div" if isinstance(y, int) and y and exact[1]:
            return _number(x * n * (1 if y > 0 else -1), m * abs(y))
        case "add" | "sub" | "min" | "max" if any(exact):
            by = lcm(m, n)
            x, y = x * (by // m), y * (by // n)
            ways = {"add": lambda: x + y, "sub": lambda: x - y, "min": lambda: dim.minimum(x, y)}
            return _number(ways.get(op, lambda: dim.maximum(x, y))(), by)
        case _:
            return None


def _is_exact(x: tuple[Dim, int]) -> bool:
    return _is_power(x[1])


def _is_power(x: Dim) -> bool:
    """Whether it is a power of two."""
    return isinstance(x, int) and abs(x).bit_count() == 1


def _fraction(x: Number) -> tuple[Dim, int] | None:
    if isinstance(x, Quotient):
        return x.top, x.by
    if not isinstance(x, float):
        return x, 1
    exact = Fraction(x) if isfinite(x) else None
    return (exact.numerator, exact.denominator) if exact is not None and exact.denominator <= _LARGEST else None


def _number(top: Dim, by: int) -> Number:
    if isinstance(top, int):
        return top / by
    exact = dim.exact_quotient(top, by)
    return Quotient(top, by) if exact is None else float(exact) if isinstance(exact, int) else exact
