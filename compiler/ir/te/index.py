"""Index arithmetic: te index expressions as dims, and back, which simplifies them.

The position on an axis of extent `N` is a symbol with bounds `[0, N - 1]`, so `(16*o + i)//16` with `i < 16` is `o`,
and the index maps of Reshape and of layouts simplify completely.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from occ.compiler.ir import dim
from occ.compiler.ir.dim import Dim, Sym, Symbol
from occ.compiler.ir.dtype import I32, I64
from occ.compiler.ir.te.expr import Axis, Binary, Cast, Const, Expr, Index, Load, Size, binary, literal, wrap
from occ.compiler.ir.te.function import AnyStage, Scatter, TeStage, reduce_axes
from occ.compiler.ir.te.walks import transform, walk

_MARK = "'"  # suffix of an axis symbol, so that it differs from a dim, whose name is a word
_TO_DIM: dict[str, Any] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "min": dim.minimum,
    "max": dim.maximum, "floordiv": dim.floordiv, "mod": lambda a, b: a - b * dim.floordiv(a, b),
}  # fmt: skip


def axis_symbol(axis: str) -> str:
    """The symbol that stands for the position on an axis."""
    return axis + _MARK


def is_axis(symbol: str) -> bool:
    """Whether a symbol stands for the position on an axis, and not for a size."""
    return symbol.endswith(_MARK)


def axis_of(symbol: str) -> str:
    """The axis that such a symbol stands for."""
    return symbol.removesuffix(_MARK)


def axis_symbols(axes: Iterable[Axis]) -> dict[str, Dim]:
    """Each axis as a dim: a symbol within its extent, or 0 where the extent is 1."""
    return {a.name: _position(a) for a in axes}


@lru_cache(maxsize=1 << 14)
def _position(a: Axis) -> Dim:
    return 0 if a.extent == 1 else dim.symbol(axis_symbol(a.name), 0, a.extent - 1)


def to_dim(e: Expr, axes: Mapping[str, Dim]) -> Dim | None:
    """`e` as a dim over axis symbols, or None if it depends on data."""
    if isinstance(e, Index):
        return axes.get(e.name)
    if isinstance(e, Binary):
        if e.dtype != I64 or e.op not in _TO_DIM:
            return None
        lhs = to_dim(e.lhs, axes)
        rhs = None if lhs is None else to_dim(e.rhs, axes)
        if lhs is None or rhs is None or (e.op in ("floordiv", "mod") and rhs == 0):
            return None
        return _TO_DIM[e.op](lhs, rhs)
    if isinstance(e, Const):
        return e.value if e.dtype == I64 and isinstance(e.value, int) else None
    return e.dim if isinstance(e, Size) else None


@lru_cache(maxsize=1 << 12)
def from_dim(d: Dim) -> Expr:
    """A dim over axis symbols as an expression; parts that depend on no axis stay one `Size`."""
    if isinstance(d, int):
        return literal(d, I64)
    if not any(map(is_axis, dim.symbols(d))):
        return Size(d)
    moving = [term for term in d.terms if any(map(is_axis, dim.symbols(Sym((term,)))))]
    rest = d - sum((Sym((term,)) for term in moving), start=0)
    total: Expr | None = None
    for mono, coeff in moving:
        factor: Dim = coeff
        value: Expr | None = None
        for atom, power in mono:
            of_atom = dim.monomial((atom, 1))
            if not any(map(is_axis, dim.symbols(of_atom))):
                factor = factor * dim.product([of_atom] * power)
                continue
            base = _atom(atom)
            for _ in range(power):
                value = base if value is None else value * base
        assert value is not None
        if isinstance(factor, int) and factor < 0 and total is not None:
            total = total - value * -factor
        else:
            total = value * wrap(factor) if total is None else total + value * wrap(factor)
    assert total is not None
    if isinstance(rest, int) and rest < 0:
        return total - -rest
    return total + wrap(rest)


def _atom(atom: dim.Atom) -> Expr:
    if isinstance(atom, Symbol):
        return Index(axis_of(atom.name))
    args = [from_dim(a) for a in atom.args]
    return binary(atom.name, *args)


def simplify(e: Expr, axes: Mapping[str, Dim]) -> Expr:
    """`e` with all index arithmetic and all comparisons of indices in canonical form."""

    def visit(node: Expr) -> Expr | None:
        match node:
            case Binary() if node.dtype == I64 and node.op in _TO_DIM:
                as_dim = to_dim(node, axes)
                return None if as_dim is None else _shorter(node, from_dim(as_dim))
            case Index() if axes.get(node.name) == 0:
                return literal(0, I64)
            case Binary(op="lt" | "le" | "eq" | "ne") if node.lhs.dtype == I64:
                return _decide(node, axes)
            case _:
                return None

    return transform(e, visit)


def _shorter(old: Expr, new: Expr) -> Expr:
    """The canonical form, unless distributing a `%` over a sum made it longer than the original."""
    if isinstance(old, Binary) and old.op == "mod":
        size = sum(1 for _ in walk(new))
        return new if size <= sum(1 for _ in walk(old)) else old
    return new


def _decide(node: Binary, axes: Mapping[str, Dim]) -> Expr | None:
    lhs, rhs = to_dim(node.lhs, axes), to_dim(node.rhs, axes)
    if lhs is None or rhs is None:
        return None
    gap = rhs - lhs
    low, high = dim.lower(gap), dim.upper(gap)
    match node.op:
        case "lt":
            known = True if low >= 1 else False if high <= 0 else None
        case "le":
            known = True if low >= 0 else False if high < 0 else None
        case _:
            same = True if low == high == 0 else False if low > 0 or high < 0 else None
            known = None if same is None else same == (node.op == "eq")
    return None if known is None else wrap(known, node.dtype)


def simplify_stage(stage: AnyStage) -> AnyStage:
    """A stage with simplified index arithmetic."""
    if isinstance(stage, Scatter):
        outer, inner = axis_symbols(stage.axes), axis_symbols(stage.over)
        return replace(
            stage,
            init=simplify(stage.init, outer),
            target=tuple(simplify(e, inner) for e in stage.target),
            value=simplify(stage.value, inner),
        )
    assert isinstance(stage, TeStage)
    return replace(stage, expr=simplify(stage.expr, axis_symbols((*stage.axes, *reduce_axes(stage.expr)))))


def step(load: Load, axis: str, symbols: Mapping[str, Dim], sources: Mapping[str, tuple[Dim, ...]]) -> Dim | None:
    """The stride of a load along an axis; None if it is not constant.

    Several positions along it may load the same element.
    """
    here = symbols[axis]
    if isinstance(here, int):
        return 0
    symbol, grown = axis_symbol(axis), 0
    stride: Dim = 1
    for i, n in zip(reversed(load.index), reversed(sources[load.source]), strict=True):
        d = to_dim(i, symbols)
        if d is None and any(isinstance(e, Index) and e.name == axis for e in walk(i)):
            return None
        if d is None:
            stride = stride * n
            continue
        moved = dim.substitute(d, {symbol: here + 1}) - d
        grown = grown + moved * stride if moved != 0 else grown
        stride = stride * n
    return None if symbol in dim.symbols(grown) else grown


def within(e: Expr, extent: Dim, axes: Mapping[str, Dim]) -> bool:
    """Whether `0 <= e < extent` is proven for all positions."""
    d = to_dim(e, axes)
    if isinstance(d, Sym) and d.is_symbol and d.symbols[0].lo == 0 and d.symbols[0].hi == extent - 1:
        return True  # the position on an axis of that extent
    return d is not None and dim.lower(d) >= 0 and dim.is_positive(extent - d)


def near_positions(e: Expr, extent: Dim, axes: Mapping[str, Dim], positions: Mapping[str, Dim]) -> bool:
    """Whether `0 <= e < extent` is proven where stages have values of at least 0 and less than an extent each."""
    found = dict(axes)

    def named(n: Expr) -> Expr | None:
        if not isinstance(n, Cast) or not isinstance(n.arg, Load) or n.arg.source not in positions:
            return None
        axis = Axis(f"{n.arg.source}{len(found)}", positions[n.arg.source])
        found[axis.name] = _position(axis)
        return Index(axis.name)

    return within(transform(e, named), extent, found)


def clamped_below(s: AnyStage) -> Dim | None:
    """The extent `n` of an axis to which a stage clamps its values: `cast<i32>(min(max(e, 0), n - 1))`."""
    e = s.expr.arg if isinstance(s, TeStage) and isinstance(s.expr, Cast) else None
    if not isinstance(s, TeStage) or s.dtype != I32 or not isinstance(e, Binary) or e.op != "min":
        return None
    if e.dtype != I64 or not isinstance(e.lhs, Binary) or e.lhs.op != "max" or e.lhs.rhs != wrap(0):
        return None
    last = to_dim(e.rhs, {})
    return None if last is None else last + 1
