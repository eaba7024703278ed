"""Evaluates te functions on symbolic sizes, for the values of shape tensors.

The bodies that compute data also resolve Shape -> Gather -> Concat -> Reshape chains; there is no second propagation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from occ.compiler.interp.quotient import Quotient, arithmetic, difference, truncated
from occ.compiler.ir import dim
from occ.compiler.ir.build_te import LARGEST_KNOWN
from occ.compiler.ir.dim import Dim, Sym
from occ.compiler.ir.dtype import BOOL, DType
from occ.compiler.ir.te.expr import Binary, Call, Cast, Const, Expr, Index, Load, Reduce, Select, Size
from occ.compiler.ir.te.function import TeFunc, TeStage

Element = Dim | float | bool | Quotient | None  # None: not known at compile time
Numbers = tuple[Element, ...]


def elements(f: TeFunc, inputs: Sequence[Numbers | None]) -> list[Numbers | None]:
    """The elements of each result, None for a result that is too large or of symbolic shape.

    Args:
        f: the function; its stages must be small.
        inputs: elements of each parameter in row-major order, None if nothing is known.
    """
    sources: dict[str, tuple[tuple[Dim, ...], Numbers | None]] = {
        p.name: (p.type.dims, known) for p, known in zip(f.params, inputs, strict=True)
    }
    for s in f.stages:
        extents = [n for n in s.shape if isinstance(n, int)]
        if not isinstance(s, TeStage) or len(extents) < len(s.shape) or math.prod(extents) > LARGEST_KNOWN:
            sources[s.name] = (s.shape, None)
            continue
        names = [a.name for a in s.axes]
        values = tuple(
            _Scalar(sources, dict(zip(names, at, strict=True))).value(s.expr)
            for at in itertools.product(*map(range, extents))
        )
        sources[s.name] = (s.shape, values)
    return [sources[r.name][1] for r in f.results]


class _Scalar:
    """Values of expressions at one position."""

    def __init__(self, sources: Mapping[str, tuple[tuple[Dim, ...], Numbers | None]], index: dict[str, int]) -> None:
        self.sources, self.index = sources, index

    def value(self, e: Expr) -> Element:
        """The value of an expression, within the range of its type."""
        return _held(e.dtype, self._value(e))

    def _value(self, e: Expr) -> Element:
        match e:
            case Const():
                return e.value if isinstance(e.value, (int, float)) else None
            case Size():
                return e.dim
            case Index():
                return self.index[e.name]
            case Load():
                return self._load(e)
            case Binary():
                return _binary(e.op, self.value(e.lhs), self.value(e.rhs), real=e.lhs.dtype.is_float)
            case Select():
                cond = self.value(e.cond)
                if cond is None:
                    then, other = self.value(e.then), self.value(e.other)
                    return then if then == other else None
                return self.value(e.then if cond else e.other)
            case Cast():
                return _cast(e, self.value(e.arg))
            case Call():
                return _call(e.fn, [self.value(a) for a in e.args], e.args[0].dtype)
            case Reduce():
                return self._reduce(e)
            case _:
                return None

    def _load(self, e: Load) -> Element:
        shape, known = self.sources[e.source]
        if known is None:
            return None
        flat = 0
        for i, n in zip(e.index, shape, strict=True):
            at = self.value(i)
            if not isinstance(at, int) or not isinstance(n, int) or not 0 <= at < n:
                return None
            flat = flat * n + at
        return known[flat]

    def _reduce(self, e: Reduce) -> Element:
        extents = [a.extent for a in e.axes if isinstance(a.extent, int)]
        if len(extents) < len(e.axes) or math.prod(extents) > LARGEST_KNOWN or e.kind not in _FOLD:
            return None
        op, total = _FOLD[e.kind]
        for at in itertools.product(*map(range, extents)):
            inner = _Scalar(self.sources, self.index | {a.name: i for a, i in zip(e.axes, at, strict=True)})
            value = inner.value(e.body)
            total = value if total is None else _binary(op, total, value)
            if total is None:
                return None
        return total


def _held(dtype: DType, x: Element) -> Element:
    """A number as a type stores it: integers wrap, floats are rounded.

    10 times 0.7 in f32 is 7, and is less in f64. Boolean constants are 0 and 1. Sizes are assumed to fit 32 bits. They
    are unknown in narrower types, or if they are too long to work with.
    """
    if isinstance(x, Quotient):
        return x if dtype.bits >= 32 and dim.weight(x.top) <= dim.LONGEST else None
    if dtype == BOOL and isinstance(x, (int, float)):
        return bool(x)
    if dtype.is_float and isinstance(x, (int, float)):
        with np.errstate(over="ignore"):
            return float(np.asarray(x, np.float64).astype(dtype.numpy))
    if not dtype.is_int or isinstance(x, (bool, float)) or x is None:
        return x
    if isinstance(x, Sym):
        if dim.weight(x) > dim.LONGEST:
            return None
        fits = dtype.bits >= 32 or (dim.lower(x) >= dtype.lowest and dim.upper(x) <= dtype.highest)
        return x if fits else None
    return (x - dtype.lowest) % (1 << dtype.bits) + dtype.lowest


_FOLD: dict[str, tuple[str, Element]] = {
    "sum": ("add", 0), "prod": ("mul", 1), "max": ("max", None), "min": ("min", None), "any": ("or", False),
    "all": ("and", True),
}  # fmt: skip


def _exact(x: Element) -> Dim | None:
    """A number as a dim: whole floats count, because shapes pass through casts to float and back."""
    if isinstance(x, float):
        return int(x) if x.is_integer() else None
    return None if isinstance(x, Quotient) else x


def _binary(op: str, a: Element, b: Element, *, real: bool = False) -> Element:
    if op in ("and", "or") and (isinstance(a, bool) or isinstance(b, bool)):
        decided = op == "or"
        if a is decided or b is decided:
            return decided
        return None if a is None or b is None else not decided
    if op == "mul" and (a == 0 or b == 0) and not isinstance(a, float) and not isinstance(b, float):
        return 0
    if a is None or b is None:
        return None
    if not isinstance(a, (Sym, Quotient)) and not isinstance(b, (Sym, Quotient)):
        return _numbers(op, a, b)
    if real and op not in ("floordiv", "mod"):
        gap = difference(b, a) if op in ("eq", "ne", "lt", "le") else None
        return arithmetic(op, a, b) if gap is None else _compare(op, 0, gap)
    x, y = _exact(a), _exact(b)
    if x is None or y is None:
        return None
    match op:
        case "add":
            return x + y
        case "sub":
            return x - y
        case "mul":
            return x * y
        case "div" | "floordiv":
            exact = dim.exact_quotient(x, y)
            if exact is not None or y == 0:
                return exact
            if real or dim.lower(y) < 0:
                return None
            return dim.floordiv(x, y) if op == "floordiv" else truncated(x, y)
        case "mod":
            return None if y == 0 else x - y * dim.floordiv(x, y)
        case "min":
            return dim.minimum(x, y)
        case "max":
            return dim.maximum(x, y)
        case "eq" | "ne" | "lt" | "le":
            return _compare(op, x, y)
        case _:
            return None


def _compare(op: str, a: Dim, b: Dim) -> bool | None:
    gap = b - a
    low, high = dim.lower(gap), dim.upper(gap)
    match op:
        case "lt":
            return True if low > 0 else False if high <= 0 else None
        case "le":
            return True if low >= 0 else False if high < 0 else None
        case _:
            same = True if low == high == 0 else False if low > 0 or high < 0 else None
            return None if same is None else same == (op == "eq")


def _numbers(op: str, a: float, b: float) -> Element:
    whole = isinstance(a, int) and isinstance(b, int)
    if op in ("div", "floordiv", "mod", "rem") and b == 0:
        return None
    match op:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "div":
            return -(-a // b) if whole and (a < 0) != (b < 0) else a // b if whole else a / b
        case "floordiv":
            return a // b
        case "mod":
            return a % b
        case "rem":
            return int(math.fmod(a, b)) if whole else math.fmod(a, b)
        case "min":
            return min(a, b)
        case "max":
            return max(a, b)
        case "eq":
            return a == b
        case "ne":
            return a != b
        case "lt":
            return a < b
        case "le":
            return a <= b
        case "and":
            return int(a) & int(b)
        case "or":
            return int(a) | int(b)
        case _:
            return None


def _cast(e: Cast, x: Element) -> Element:
    if x is None:
        return None
    if isinstance(x, Quotient):
        return None if e.dtype == BOOL else truncated(x.top, x.by) if e.dtype.is_int else x
    if e.dtype == BOOL:
        return _compare("ne", x, 0) if isinstance(x, Sym) else bool(x)
    if isinstance(x, Sym):
        return x
    if e.dtype.is_int:
        if isinstance(x, float):
            return min(max(int(x), e.dtype.lowest), e.dtype.highest) if math.isfinite(x) else None
        return int(x)
    return float(x)


def _call(fn: str, args: list[Element], dtype: DType) -> Element:
    (x, *_) = args
    if x is None:
        return None
    if isinstance(x, Quotient):
        return -x if fn == "neg" else x.rounded(fn)
    if isinstance(x, Sym):
        if fn in ("floor", "ceil", "trunc", "round_even"):
            return x
        if fn == "neg":
            return -x
        return x if fn == "abs" and dim.lower(x) >= 0 else None
    match fn:
        case "neg":
            return -x
        case "abs":
            return abs(x)
        case "not":
            return not x if dtype == BOOL else ~int(x)  # known bools may be 0 and 1
        case "floor" | "ceil" | "trunc":
            return float(getattr(math, fn)(x)) if isinstance(x, float) and math.isfinite(x) else x
        case "round_even":
            return float(round(x)) if isinstance(x, float) and math.isfinite(x) else x
        case "sqrt":
            return math.sqrt(x) if x >= 0 else None
        case "isnan":
            return math.isnan(x)
        case _:
            return None
