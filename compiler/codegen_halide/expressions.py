"""te expressions as Halide C++.

Positions and sizes are `int` in Halide; where te uses them as data they are cast. Data keep their element types.
Helpers with the prefix `te_` are in native/te.h: they cover what te defines and plain Halide arithmetic does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from occ.compiler.codegen_halide.codes import code_of_quotient, saturated
from occ.compiler.codegen_halide.literals import cpp_type, dim_text, is_counted, literal_text
from occ.compiler.ir.dim import Dim, Sym, symbols
from occ.compiler.ir.dtype import BOOL, F16, F32, I32, U64
from occ.compiler.ir.dtype import I64 as I64_TYPE
from occ.compiler.ir.te.expr import (
    Binary,
    Bitcast,
    Call,
    Carried,
    Cast,
    Const,
    Expr,
    Index,
    Load,
    Select,
    Size,
    literal,
    where,
)
from occ.compiler.ir.te.function import Scatter
from occ.compiler.ir.te.index import near_positions, to_dim, within
from occ.compiler.ir.te.ranges import Ranges
from occ.compiler.ir.te.walks import walk

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}
_SMALL = 2.0**22
_BORDER = 8  # positions that a border adds to an axis, at most
_PLAIN_CALLS = {
    "abs": "abs", "sqrt": "sqrt", "tan": "tan", "sinh": "sinh", "cosh": "cosh", "asinh": "asinh", "acosh": "acosh",
    "atanh": "atanh", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round_even": "round",
    "atan2": "atan2", "popcount": "popcount",
}  # fmt: skip


class Printer:
    """Prints the expressions of one stage.

    Attributes:
        sources: shape of everything that can be loaded.
        axes: the axes in scope as dims, for range proofs.
        layouts: layouts of parameters that are not row-major.
        tiled: stages that a schedule computes in tiles of constant size, and those through which they are read.
        names: C++ names of hoisted reductions and shared subexpressions, by id of the node.
        carried: result of a fold's previous step.
        border: the axis along which a border is tested; Halide computes the inside in a separate loop, without tests.
        positions: stages whose values are at least 0 and less than an extent.
        halves_in_f32: whether f16 arithmetic is done in f32, see `half_text`.
        relaxed: whether floats may deviate from IEEE 754: in approximations, which state where they are exact.
    """

    def __init__(
        self,
        sources: Mapping[str, tuple[Dim, ...]],
        axes: Mapping[str, Dim],
        layouts: Mapping[str, object],
        tiled: frozenset[str] = frozenset(),
    ) -> None:
        self.sources, self.axes, self.layouts, self.tiled = sources, axes, layouts, tiled
        self.names: dict[int, str] = {}
        self.carried = ""
        self.relaxed = False
        self.halves_in_f32 = False
        self.border = ""
        self.positions: Mapping[str, Dim] = {}
        self._ranges = Ranges()

    def data(self, e: Expr, *, guarded: bool = False) -> str:
        """An expression of its own element type."""
        if id(e) in self.names:
            return self.names[id(e)]
        if is_index(e):
            return f"cast<{cpp_type(e.dtype)}>({self._number(e)})"
        match e := _by_zero(e):
            case Const():
                return literal_text(e.value, e.dtype)
            case Load():
                return self._load(e, guarded=guarded)
            case Binary():
                return self._binary(e, guarded=guarded)
            case Call():
                return self._call(e, guarded=guarded)
            case Select() if self.border:
                return self._bordered(e)
            case Select():
                cond = self.data(e.cond, guarded=guarded)
                if (
                    self.tiled
                    and not _on_sizes(e.cond)
                    and any(isinstance(n, Load) and n.source in self.tiled for n in walk(e))
                ):
                    cond = f"te_opaque({cond})"  # otherwise Halide would cut the tile where the condition is false
                return f"select({cond}, {self.data(e.then, guarded=True)}, {self.data(e.other, guarded=True)})"
            case Cast():
                return self._cast(e, guarded=guarded)
            case Bitcast():
                return f"reinterpret<{cpp_type(e.dtype)}>({self.data(e.arg, guarded=guarded)})"
            case Carried():
                return self.carried
            case _:
                raise AssertionError(type(e))

    def _bordered(self, e: Select) -> str:
        """Conditions on other axes separated from those on the vector axis, so that Halide can split the loop."""
        tests = _conjunction(e.cond)
        along = [c for c in tests if self._is_along_border(c)]
        inside, outside = self.data(e.then, guarded=True), self.data(e.other, guarded=True)
        for group in (along, [c for c in tests if c not in along]):
            if group:
                inside = f"select({' && '.join(map(self.data, group))}, likely({inside}), {outside})"
        return inside

    def _number(self, e: Expr) -> str:
        """Index arithmetic as data: an int if that is wide enough."""
        return self.index(e, wide=not self._is_counted(e))

    def _is_counted(self, e: Expr) -> bool:
        if isinstance(e, Select):
            return self._is_counted(e.then) and self._is_counted(e.other)
        d = to_dim(e, self.axes)
        return d is not None and is_counted(d)

    def _compared(self, e: Expr, other: Expr) -> str:
        """A side of a comparison: positions stay close to their tensors, sizes may not."""
        return self._number(e) if _on_sizes(e) and not self._is_near(e, other) else self.index(e)

    def _is_near(self, size: Expr, position: Expr) -> bool:
        """Whether a size differs from the extent of an axis by no more than a border."""
        at, d = self.axes.get(position.name) if isinstance(position, Index) else None, to_dim(size, self.axes)
        last = next(iter(symbols(at).values())).hi if isinstance(at, Sym) else None
        return last is not None and d is not None and isinstance(n := d - last, int) and abs(n) <= _BORDER

    def index(self, e: Expr, *, wide: bool = False) -> str:
        """Index arithmetic as C++ ints, or as int64_t if `wide`."""
        match e:
            case Const():
                return dim_text(int(e.value), wide=wide)  # pyright: ignore[reportArgumentType]
            case Index():
                return f"cast<int64_t>({e.name})" if wide else e.name
            case Size():
                return dim_text(e.dim, wide=wide)
            case Cast(arg=Load() as position):  # `near_positions`
                return f"clamp({self.data(position)}, 0, {dim_text(self.positions[position.source] - 1)})"
            case Call(fn="neg"):
                return f"(-{self.index(e.args[0], wide=wide)})"
            case Select():
                return f"select({self.data(e.cond)}, {self.index(e.then, wide=wide)}, {self.index(e.other, wide=wide)})"
            case Binary():
                return self._index_of(e.op, e, *(self.index(x, wide=wide) for x in (e.lhs, e.rhs)))
            case _:
                raise AssertionError(type(e))

    def _index_of(self, op: str, e: Binary, a: str, b: str) -> str:
        match op:
            case "floordiv" | "mod":  # Halide rounds down
                by = e.rhs.dim if isinstance(e.rhs, Size) else None
                is_product = "*" in b and isinstance(by, Sym) and len(by.terms) == 1
                return f"({a} {'/' if op == 'floordiv' else '%'} {f'({b})' if is_product else b})"
            case "min" if self._is_along_border(e.lhs):
                return f"min(likely({a}), {b})"
            case "min" | "max":
                return f"{op}({a}, {b})"
            case _:
                return f"({a} {_SIGNS[op]} {b})"

    def position(self, e: Expr, extent: Dim, *, guarded: bool) -> str:
        """One index of a load, clamped to its source if it is data-dependent or guarded."""
        if is_index(e):
            text = self.index(e)
            if guarded and not within(e, extent, self.axes):
                inner = f"likely({text})" if self._is_along_border(e) else text
                return f"clamp({inner}, 0, {dim_text(extent - 1)})"
            return text
        found = f"cast<int>({self.data(e, guarded=guarded)})"
        read = e.arg if isinstance(e, Cast) else e
        if isinstance(read, Load) and self.positions.get(read.source) == extent:
            return found
        if self.positions and near_positions(e, extent, self.axes, self.positions):
            return self.index(e)
        if self._fits_int(e):
            return f"clamp({found}, 0, {dim_text(extent - 1)})"
        kind, last = cpp_type(e.dtype), dim_text(extent - 1, wide=True)
        return f"cast<int>(clamp({self.data(e, guarded=guarded)}, cast<{kind}>(0), cast<{kind}>({last})))"

    def place(self, s: Scatter, target: Sequence[Expr]) -> str:
        """An element of a scatter, clamped to its box."""
        where = [self.position(e, n, guarded=True) for e, n in zip(target, s.shape, strict=True)]
        return f"{s.name}({', '.join(reversed(where))})"

    def _is_along_border(self, e: Expr) -> bool:
        return bool(self.border) and any(isinstance(n, Index) and n.name == self.border for n in walk(e))

    def _load(self, e: Load, *, guarded: bool) -> str:
        shape = self.sources[e.source]
        where = [self.position(i, n, guarded=guarded) for i, n in zip(e.index, shape, strict=True)]
        layout = self.layouts.get(e.source)
        if layout is not None:
            where = physical_index(where, layout)
        return f"{e.source}({', '.join(reversed(where))})"

    def _binary(self, e: Binary, *, guarded: bool) -> str:
        a, b = (self.data(x, guarded=guarded) for x in (e.lhs, e.rhs))
        if is_index(e.lhs) and is_index(e.rhs):  # a comparison of positions
            a, b = self._compared(e.lhs, e.rhs), self._compared(e.rhs, e.lhs)
        match e.op:
            case "add" | "sub" | "mul" | "div" | "mod" if e.dtype == F16 and self.halves_in_f32:
                return half_text(e.op, a, b)
            case "and" | "or" | "xor" if e.lhs.dtype == BOOL:
                return f"({a} != {b})" if e.op == "xor" else f"({a} {'&&' if e.op == 'and' else '||'} {b})"
            case "and" | "or" | "xor":
                return f"({a} {dict(zip(('and', 'or', 'xor'), '&|^', strict=True))[e.op]} {b})"
            case _ if e.op in _SIGNS and e.lhs.dtype.is_float and not self.relaxed:
                return self._ieee(e, a, b, guarded=guarded)
            case "add" | "sub" | "mul" if self._wraps(e):
                return f"te_{e.op}({a}, {b})"
            case _ if e.op in _SIGNS:
                return f"({a} {_SIGNS[e.op]} {b})"
            case "div" if e.dtype.is_float and self.relaxed:
                return f"({a} / {b})"
            case "min" | "max":
                return self._extremum(e, a, b)
            case _:
                return f"te_{e.op}({a}, {b})"

    def _wraps(self, e: Expr) -> bool:
        """Whether this may overflow: Halide assumes that signed integers of 32 bits and more do not."""
        return e.dtype.kind == "i" and e.dtype.bits >= 32 and self._ranges.overflows(e)

    def _ieee(self, e: Binary, a: str, b: str, *, guarded: bool) -> str:
        """A float operation on its own.

        A product and the sum that uses it may be fused.
        """
        if e.op in ("add", "sub"):
            if _is_product(e.rhs, e.lhs) and id(e.rhs) not in self.names:
                return f"({a} {_SIGNS[e.op]} {self._product(e.rhs, guarded=guarded)})"
            if _is_product(e.lhs, e.rhs) and id(e.lhs) not in self.names:
                return f"({self._product(e.lhs, guarded=guarded)} {_SIGNS[e.op]} {b})"
        return f"te_{e.op}({a}, {b})"

    def term(self, e: Expr, *, guarded: bool = False) -> str:
        """A term of a sum: a product may be fused with it."""
        is_product = isinstance(e, Binary) and e.op == "mul" and e.dtype.is_float
        return self._product(e, guarded=guarded) if is_product else self.data(e, guarded=guarded)

    def _product(self, e: Expr, *, guarded: bool) -> str:
        assert isinstance(e, Binary)
        if e.dtype == F16 and self.halves_in_f32:
            return self.data(e, guarded=guarded)
        return f"({self.data(e.lhs, guarded=guarded)} * {self.data(e.rhs, guarded=guarded)})"

    def _extremum(self, e: Binary, a: str, b: str) -> str:
        if not e.dtype.is_float:
            return f"{e.op}({a}, {b})"
        for x, other, const in ((a, b, e.rhs), (b, a, e.lhs)):
            if isinstance(const, Const) and const.value == const.value:  # one comparison, false for NaN, keeps it
                return f"te_{e.op}_const({x}, {other})"
        return f"te_{e.op}({a}, {b})"

    def _call(self, e: Call, *, guarded: bool) -> str:
        args = [self.data(a, guarded=guarded) for a in e.args]
        if e.fn == "neg" and e.dtype == F16 and self.halves_in_f32:
            return half_text("neg", *args)
        if e.fn == "neg":
            exact = not self.relaxed if e.dtype.is_float else self._wraps(e)
            return f"te_neg({args[0]})" if exact else f"(-{args[0]})"
        if e.fn == "not":
            return f"(!{args[0]})" if e.dtype == BOOL else f"(~{args[0]})"
        if e.fn == "nearest" and e.args[0].dtype == F32 and self._is_small(e.args[0]):
            if (found := code_of_quotient(e.args[0])) is not None:
                return f"te_nearest_quotient({self.data(found[0], guarded=guarded)}, {_texts(*found[1:])})"
            return f"te_nearest_small({args[0]})"
        if e.args[0].dtype.is_int and e.fn in ("floor", "ceil", "trunc", "round_even"):
            return args[0]
        if e.fn == "abs" and self._wraps(e):
            return f"te_abs({args[0]})"
        if e.fn == "abs" and e.dtype.kind == "i":  # Halide's is unsigned
            return f"cast<{cpp_type(e.dtype)}>(abs({args[0]}))"
        if e.fn in _PLAIN_CALLS:
            if e.args[0].dtype.bits > 16 or not e.args[0].dtype.is_float:
                return f"{_PLAIN_CALLS[e.fn]}({', '.join(args)})"
            # Halide's own functions of narrow floats are emulated, without NaN and infinity, and round to 16-bit
            # integers
            text = f"{_PLAIN_CALLS[e.fn]}({', '.join(f'cast<float>({a})' for a in args)})"
            return f"cast<{cpp_type(e.dtype)}>({text})" if e.dtype.is_float else text
        return f"te_{e.fn}({', '.join(args)})"

    def _is_small(self, e: Expr) -> bool:
        """Whether adding 1.5 * 2**23 to an f32 leaves the nearest integer in the low bits of the sum."""
        low, high = self._ranges.of(e)
        return low >= -_SMALL and high <= _SMALL

    def _cast(self, e: Cast, *, guarded: bool) -> str:
        arg = self._number(e.arg) if is_index(e.arg) else self.data(e.arg, guarded=guarded)
        if e.dtype == BOOL:
            return f"te_ne({arg}, {literal_text(0, e.arg.dtype)})" if e.arg.dtype.is_float else f"({arg} != 0)"
        if (found := saturated(e)) is not None:
            return f"te_saturated<{cpp_type(e.dtype)}>({self.data(found[0], guarded=guarded)}, {found[1]})"
        if e.arg.dtype.is_float and e.dtype.is_int:
            return f"te_to_int<{cpp_type(e.dtype)}>({arg})"
        if e.dtype.name == "bf16" and e.arg.dtype.is_float:
            return f"te_to_bf16({arg})"
        if e.dtype == I32 and e.arg.dtype.is_int and not self._fits_int(e.arg):
            low = f"(cast<uint64_t>({arg}) + {literal_text(1 << 31, U64)}) & {literal_text((1 << 32) - 1, U64)}"
            return f"cast<int32_t>(cast<int64_t>({low}) - {literal_text(1 << 31, I64_TYPE)})"
        return f"cast<{cpp_type(e.dtype)}>({arg})"

    def _fits_int(self, e: Expr) -> bool:
        """Whether a number fits in 32 bits."""  # Halide 21 bounds an int32 of 0 to 2**32 - 1 by 0 and -1
        low, high = self._ranges.of(e)
        return low >= -(2**31) and high < 2**31


def _by_zero(e: Expr) -> Expr:
    """`x / 0.0` --> `x > 0 ? inf : x < 0 ? -inf : nan`: Halide refuses constant zero divisors."""
    match e:
        case Binary("div", x, Const(int() | float() as value)) if e.dtype.is_float and not value:
            most = math.copysign(math.inf, value)
            zero, above, below = (literal(v, e.dtype) for v in (0.0, most, -most))
            return where(x > zero, above, where(x < zero, below, literal(math.nan, e.dtype)))
        case _:
            return e


def _texts(*constants: Expr) -> str:
    return ", ".join(literal_text(c.value, c.dtype) for c in constants if isinstance(c, Const))


def half_text(op: str, *operands: str) -> str:
    """f16 arithmetic in f32, rounded once, with equal results (Figueroa, "When is double rounding innocuous?", 1995).

    Halide does the same, but in its code generator, where a processor without such an instruction rounds by integer
    arithmetic that turns NaN into infinity; casts in the source are corrected (native/mends.h).
    """
    return f"cast<float16_t>(te_{op}({', '.join(f'cast<float>({x})' for x in operands)}))"


def physical_index(index: list[str], layout: object) -> list[str]:
    """The memory offset of an element in a tiled layout."""
    from occ.compiler.ir.layout import Layout

    assert isinstance(layout, Layout)
    tiles = dict(layout.tiles)
    outer = [f"({index[a]} / {tiles[a]})" if a in tiles else index[a] for a in layout.order]
    return [*outer, *(f"({index[a]} % {size})" for a, size in layout.tiles)]


def _is_product(e: Expr, other: Expr) -> bool:
    """Whether an expression is a product that may be fused with another one's sum.

    Halide would drop a product with zero, and factor out common factors.
    """
    if not isinstance(e, Binary) or e.op != "mul":
        return False
    return not any(x == other or (isinstance(x, Const) and x.value == 0) for x in (e.lhs, e.rhs))


def _conjunction(e: Expr) -> list[Expr]:
    """The terms of a chain of `and`."""
    if isinstance(e, Binary) and e.op == "and":
        return [*_conjunction(e.lhs), *_conjunction(e.rhs)]
    return [e]


def _on_sizes(e: Expr) -> bool:
    return not any(isinstance(n, (Index, Load)) for n in walk(e))


def is_index(e: Expr) -> bool:
    """Whether an i64 expression consists of positions and sizes only."""
    match e:
        case Index() | Size():
            return True
        case Const():
            return e.dtype == I64_TYPE and abs(int(e.value)) < 2**31  # pyright: ignore[reportArgumentType]
        case Binary():
            known = e.dtype == I64_TYPE and e.op in ("add", "sub", "mul", "floordiv", "mod", "min", "max")
            return known and is_index(e.lhs) and is_index(e.rhs)
        case Call(fn="neg"):
            return e.dtype == I64_TYPE and is_index(e.args[0])
        case Select():
            return is_index(e.then) and is_index(e.other)
        case _:
            return False
