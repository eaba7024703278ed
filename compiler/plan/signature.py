"""The signature of a module: inputs, outputs, dims and constraints, as stored in the manifest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from occ.compiler.ir import module
from occ.compiler.ir.dim import Dim, Sym, rebuild
from occ.compiler.ir.module import Module
from occ.compiler.ir.types import MapType, OptionalType, SequenceType, TensorType, Type
from occ.runtime.dims import DimExpr
from occ.runtime.manifest import SCALARS, Constraint, DimInfo, TensorInfo


class _Expr:
    """A size expression under construction.

    Sums and products are flat lists of any length, since readers recurse into nested expressions.
    """

    def __init__(self, data: DimExpr) -> None:
        self.data = data

    def __mul__(self, other: _Expr | int) -> _Expr:
        value = other.data if isinstance(other, _Expr) else other
        return self if value == 1 else _Expr(["*", *_terms("*", value), *_terms("*", self.data)])

    def __add__(self, other: _Expr | int) -> _Expr:
        value = other.data if isinstance(other, _Expr) else other
        return self if value == 0 else _Expr(["+", *_terms("+", self.data), *_terms("+", value)])

    __radd__ = __add__
    __rmul__ = __mul__


def _terms(op: str, e: DimExpr) -> list[DimExpr]:
    return e[1:] if isinstance(e, list) and e[0] == op else [e]


_OPS = {"floordiv": "//", "min": "min", "max": "max"}


def dim_expr(d: Dim) -> DimExpr:
    """A dim in the form of the manifest."""
    if not isinstance(d, Sym):
        return d
    made = rebuild(
        d,
        lambda s: _Expr(s.name),
        lambda name, args: _Expr([_OPS[name], *(a.data if isinstance(a, _Expr) else a for a in args)]),
    )
    return made.data


def value_info(name: str, type_: Type | None) -> TensorInfo:
    """A value of a signature."""
    match type_:
        case TensorType(shape=None):
            return TensorInfo(name, type_.dtype.name, [], "unranked")
        case TensorType():
            return TensorInfo(name, type_.dtype.name, [dim_expr(d) for d in type_.dims])
        case SequenceType(elem):
            return TensorInfo(name, value_info(name, elem).dtype, [], "sequence")
        case OptionalType(elem):
            return TensorInfo(name, value_info(name, elem).dtype, [], "optional")
        case MapType():
            return TensorInfo(name, type_.value.dtype.name, [], "map")
        case None:
            raise AssertionError(f"%{name} has no type")


def input_info(name: str, type_: Type | None) -> TensorInfo:
    """An input, with the extents required of tensors in a sequence or optional; -1 for one that may differ."""
    info, inner = value_info(name, type_), type_
    while isinstance(inner, (SequenceType, OptionalType)):
        inner = inner.elem
    if info.kind in ("sequence", "optional") and isinstance(inner, TensorType) and inner.shape is not None:
        kind = info.kind if inner.shape else SCALARS[info.kind]
        return replace(info, shape=[d if isinstance(d, int) else -1 for d in inner.shape], kind=kind)
    return info


def dim_infos(m: Module) -> list[DimInfo]:
    """The symbolic dims of a module."""
    found: list[DimInfo] = []
    for info in m.symbols.values():
        hi = info.symbol.hi if isinstance(info.symbol.hi, int) else None
        found.append(DimInfo(info.symbol.name, info.label, info.symbol.lo, hi, info.symbol.divisible_by))
    return found


def signature(m: Module) -> tuple[list[TensorInfo], list[TensorInfo], list[DimInfo], list[Constraint]]:
    """Inputs, outputs, dims and constraints of a module."""
    inputs = [input_info(a.name, a.type) for a in m.main.args]
    outputs = [value_info(n, r.type) for n, r in zip(m.main.result_names, m.main.results, strict=True)]
    return inputs, outputs, dim_infos(m), constraints_of(m, "main")


MOST_OPERATIONS = 1 << 50  # per kernel; the largest of real models have 10**13, and a core does 10**11 per second


def constraints_of(m: Module, func: str) -> list[Constraint]:
    """The constraints of a function's inputs."""
    return constraint_infos(c for c in m.constraints if c.func == func)


def constraint_infos(found: Iterable[module.Constraint]) -> list[Constraint]:
    return [Constraint(dim_expr(c.lhs), dim_expr(c.rhs), c.node) for c in found]
