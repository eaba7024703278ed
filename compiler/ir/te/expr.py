"""te expressions: the scalar language of operator bodies, as data.

An expression is one element of a stage as a function of the stage's axes. Nodes are frozen, hashable and compare by
structure. Numerics are defined here, once for all targets:

- integer `add sub mul` wrap; integer `div` and `rem` truncate toward zero; `floordiv` and `mod` round down;
- `min` and `max` of floats return NaN if either side is NaN, and comparisons with NaN are false (IEEE 754);
- `Cast` from float to integer truncates, and saturates if the value is out of range; from anything to bool, `x != 0`;
- `round_even` rounds ties to even, and so does `nearest`, which returns an i32: any, if the value does not fit, NaN
included;
- `fma(a, b, c)` is `a * b + c` rounded once; `Select` evaluates only the selected side, so a guarded `Load` may be out
of bounds; but not inside a `Reduce` on such a side, which is always computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

from occ.compiler.ir.dim import Dim, Sym
from occ.compiler.ir.dtype import BOOL, I32, I64, DType
from occ.runtime.dataclass import dataclass


class Expr:
    """Base of all nodes; arithmetic on expressions builds expressions, Python numbers take the other side's dtype."""

    __slots__ = ()
    dtype: DType

    def __add__(self, other: Operand) -> Expr:
        return binary("add", self, other)

    def __radd__(self, other: Operand) -> Expr:
        return binary("add", other, self)

    def __sub__(self, other: Operand) -> Expr:
        return binary("sub", self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return binary("sub", other, self)

    def __mul__(self, other: Operand) -> Expr:
        return binary("mul", self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return binary("mul", other, self)

    def __truediv__(self, other: Operand) -> Expr:
        return binary("div", self, other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return binary("div", other, self)

    def __floordiv__(self, other: Operand) -> Expr:
        return binary("floordiv", self, other)

    def __rfloordiv__(self, other: Operand) -> Expr:
        return binary("floordiv", other, self)

    def __mod__(self, other: Operand) -> Expr:
        return binary("mod", self, other)

    def __rmod__(self, other: Operand) -> Expr:
        return binary("mod", other, self)

    def __neg__(self) -> Expr:
        return call("neg", self)

    def __lt__(self, other: Operand) -> Expr:
        return binary("lt", self, other)

    def __le__(self, other: Operand) -> Expr:
        return binary("le", self, other)

    def __gt__(self, other: Operand) -> Expr:
        return binary("lt", other, self)

    def __ge__(self, other: Operand) -> Expr:
        return binary("le", other, self)

    def __and__(self, other: Operand) -> Expr:
        return binary("and", self, other)

    def __or__(self, other: Operand) -> Expr:
        return binary("or", self, other)

    def __xor__(self, other: Operand) -> Expr:
        return binary("xor", self, other)

    def __invert__(self) -> Expr:
        return call("not", self)


Number = int | float | bool | complex
Operand = Expr | Number | Sym


@dataclass(frozen=True, slots=True, eq=False)
class Const(Expr):
    """A literal. NaN equals NaN and 0.0 differs from -0.0, as they do in text."""

    value: Number
    dtype: DType

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Const) and self.dtype == other.dtype and repr(self.value) == repr(other.value)

    def __hash__(self) -> int:
        return hash((repr(self.value), self.dtype.name))


@dataclass(frozen=True, slots=True)
class Index(Expr):
    """The current position on an axis, an i64."""

    name: str
    dtype: DType = field(default=I64, repr=False)


@dataclass(frozen=True, slots=True)
class Size(Expr):
    """The value of a symbolic dim, an i64."""

    dim: Sym
    dtype: DType = field(default=I64, repr=False)


@dataclass(frozen=True, slots=True)
class Load(Expr):
    """One element of a parameter or of an earlier stage; `index` is logical, one i64 per axis."""

    source: str
    index: tuple[Expr, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Binary(Expr):
    """An operation of two operands of one dtype; see `BINARY`."""

    op: str
    lhs: Expr
    rhs: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Call(Expr):
    """An elementary function; see `CALLS`."""

    fn: str
    args: tuple[Expr, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Select(Expr):
    """`then` if `cond` holds, otherwise `other`."""

    cond: Expr
    then: Expr
    other: Expr

    @property
    def dtype(self) -> DType:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.then.dtype


@dataclass(frozen=True, slots=True)
class Cast(Expr):
    """Conversion of value to another element type."""

    arg: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Bitcast(Expr):
    """The bits of a value as another element type of the same width."""

    arg: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Axis:
    """An iteration axis: positions 0 to extent - 1."""

    name: str
    extent: Dim


@dataclass(frozen=True, slots=True)
class Reduce(Expr):
    """A reduction of `body` over `axes`, of a kind in `REDUCTIONS`.

    `argmax`/`argmin` return the first position, an i64; `fold` returns the last step over its one axis, where each sees
    the previous one as `Carried`. `settle` is a fold of integers that may end once a step changes nothing: from its
    second step on it does not use its axis.
    """

    kind: str
    axes: tuple[Axis, ...]
    body: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Carried(Expr):
    """The result of the previous step in the body of a `fold` or `settle`; 0 in the first."""

    dtype: DType


ARITHMETIC = ("add", "sub", "mul", "div", "rem", "floordiv", "mod", "min", "max", "and", "or", "xor", "shl", "shr")
COMPARISONS = ("eq", "ne", "lt", "le")
BINARY = ARITHMETIC + COMPARISONS

# name -> number of arguments; all elementwise, for their dtypes see `call_dtype`
CALLS = {
    "neg": 1, "not": 1, "abs": 1, "sign": 1, "sqrt": 1, "exp": 1, "log": 1, "sin": 1, "cos": 1, "tan": 1, "asin": 1,
    "acos": 1, "atan": 1, "sinh": 1, "cosh": 1, "tanh": 1, "asinh": 1, "acosh": 1, "atanh": 1, "erf": 1, "floor": 1,
    "ceil": 1, "trunc": 1, "round_even": 1, "isnan": 1, "isinf": 1, "pow": 2, "atan2": 2, "popcount": 1,
    "nearest": 1, "fma": 3, "decay": 1,  # e**x of an x that is never above 0
    "log1p": 1,  # ln(1 + x) of an x within 0 and 1
}  # fmt: skip
PREDICATES = ("isnan", "isinf")

REDUCTIONS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "fold", "settle")
FOLDS = ("fold", "settle")
ORDERED = ("argmax", "argmin", *FOLDS)  # those that visit the positions of one axis in order


# Constructors -------------------------------------------------------------------------------------------------------


def literal(value: Number, dtype: DType) -> Const:
    """A constant of a dtype, with the value as a Python bool, int or float."""
    if dtype == BOOL:
        return Const(bool(value), dtype)
    if dtype.is_int:
        return Const(int(value), dtype)  # pyright: ignore[reportArgumentType]
    return Const(complex(value) if dtype.kind == "c" else float(value), dtype)  # pyright: ignore[reportArgumentType]


def wrap(value: Operand, dtype: DType = I64) -> Expr:
    """An expression of a number (as `dtype`) or a dim."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, Sym):
        return Size(value) if dtype == I64 else cast(dtype, Size(value))
    return literal(value, dtype)


def _pair(a: Operand, b: Operand) -> tuple[Expr, Expr]:
    if isinstance(a, Expr):
        return a, wrap(b, a.dtype)
    assert isinstance(b, Expr), "one side must be an expression"
    return wrap(a, b.dtype), b


_FOLD: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b, "min": min, "max": max,
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "and": lambda a, b: a & b, "or": lambda a, b: a | b,
}  # fmt: skip


def binary(op: str, a: Operand, b: Operand) -> Expr:
    """`a op b`, with integer and bool constants folded unless they wrap, and neutral elements dropped."""
    lhs, rhs = _pair(a, b)
    assert lhs.dtype == rhs.dtype, f"{op} of {lhs.dtype} and {rhs.dtype}"
    dtype = BOOL if op in COMPARISONS else lhs.dtype
    if lhs.dtype.is_int or lhs.dtype == BOOL:
        folded = _fold_exact(op, lhs, rhs, dtype)
        if folded is not None:
            return folded
    return Binary(op, lhs, rhs, dtype)


def _fold_exact(op: str, lhs: Expr, rhs: Expr, dtype: DType) -> Expr | None:
    lval = lhs.value if isinstance(lhs, Const) else None
    rval = rhs.value if isinstance(rhs, Const) else None
    if lval is not None and rval is not None and op in _FOLD and not (op in ("floordiv", "mod") and rval == 0):
        value = _FOLD[op](lval, rval)
        return literal(value, dtype) if _holds(dtype, value) else None
    if lhs.dtype == BOOL:
        for const, rest in ((lval, rhs), (rval, lhs)):
            if const is not None and op in ("and", "or"):
                return rest if const == (op == "and") else literal(const, BOOL)
        return None
    if (op == "add" and lval == 0) or (op == "mul" and lval == 1):
        return rhs
    if (op in ("add", "sub") and rval == 0) or (op in ("mul", "div", "floordiv") and rval == 1):
        return lhs
    if (op == "mul" and (lval == 0 or rval == 0)) or (op in ("mod", "rem") and rval == 1):
        return literal(0, dtype)
    return None


def call(fn: str, *args: Expr) -> Expr:
    """An elementary function applied, constants of `neg` and `not` folded."""
    assert len(args) == CALLS[fn], f"{fn} takes {CALLS[fn]} arguments"
    (first, *_) = args
    if isinstance(first, Const):
        if fn == "neg" and first.dtype.is_float:
            return Const(-first.value, first.dtype)
        if fn == "neg" and first.dtype == I64:
            return literal(-first.value, I64)
        if fn == "not" and first.dtype == BOOL:
            return literal(not first.value, BOOL)
    return Call(fn, args, call_dtype(fn, first.dtype))


def call_dtype(fn: str, dtype: DType) -> DType:
    """The result dtype of a function of `dtype` arguments."""
    return BOOL if fn in PREDICATES else I32 if fn == "nearest" else dtype


def cast(dtype: DType, arg: Expr) -> Expr:
    """`arg` as another element type; exact constants are folded."""
    if arg.dtype == dtype:
        return arg
    if isinstance(arg, Const) and isinstance(arg.value, int) and _holds(dtype, arg.value):
        return literal(arg.value != 0 if dtype == BOOL else arg.value, dtype)
    return Cast(arg, dtype)


def _holds(dtype: DType, value: int) -> bool:
    """Whether a type represents an integer exactly."""
    if dtype.is_int:
        return dtype.lowest <= value <= dtype.highest
    return dtype == BOOL or abs(value) <= {"f64": 2**53, "f32": 2**24}.get(dtype.name, -1)


def where(cond: Expr, then: Operand, other: Operand) -> Expr:
    """`then` if `cond` holds, otherwise `other`; only the selected side is evaluated."""
    a, b = _pair(then, other)
    assert a.dtype == b.dtype, f"select of {a.dtype} and {b.dtype}"
    if isinstance(cond, Const):
        return a if cond.value else b
    return Select(cond, a, b)


def minimum(a: Operand, b: Operand) -> Expr:
    """The minimum; NaN if either is NaN."""
    return binary("min", a, b)


def maximum(a: Operand, b: Operand) -> Expr:
    """The maximum; NaN if either is NaN."""
    return binary("max", a, b)


def clamp(x: Expr, lo: Operand, hi: Operand) -> Expr:
    """`min(max(x, lo), hi)`."""
    return minimum(maximum(x, lo), hi)


def equal(a: Operand, b: Operand) -> Expr:
    """Elementwise equality (`==` compares expressions as data)."""
    return binary("eq", a, b)


def not_equal(a: Operand, b: Operand) -> Expr:
    """Elementwise inequality."""
    return binary("ne", a, b)
