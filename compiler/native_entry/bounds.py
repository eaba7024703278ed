"""Upper bounds of data-dependent sizes, for which memory is planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from occ.runtime.attributes import decode_attrs
from occ.runtime.dims import DimExpr, symbols
from occ.runtime.manifest import Buffer, Plan, Step

LARGEST = 2**31 - 1  # bound of an unknown size: kernels use 32 bits

Bounds = Mapping[str, DimExpr]


def upper(e: DimExpr, bounds: Bounds) -> DimExpr:
    """An upper bound of an expression.

    Its symbols in `bounds` range from 0 to their bound; those that are their own bound stay.
    """
    return _ends(e, bounds)[1]


def _ends(e: DimExpr, bounds: Bounds) -> tuple[DimExpr, DimExpr]:
    """Lower and upper bounds of an expression."""
    if not symbols(e) & bounds.keys():
        return e, e
    if isinstance(e, str):
        return (e, e) if bounds[e] == e else (0, bounds[e])
    assert not isinstance(e, int)
    op, first, *rest = e
    ends = _ends(first, bounds)
    for other in rest:
        ends = _combined(op, ends, _ends(other, bounds))
    return ends


def _combined(op: str, a: tuple[DimExpr, DimExpr], b: tuple[DimExpr, DimExpr]) -> tuple[DimExpr, DimExpr]:
    (low, high), (least, most) = a, b
    match op:
        case "*":
            outer = (["*", _above(high), _above(most)], ["*", _below(low), _below(least)])
            crossed = (["*", _below(low), _above(most)], ["*", _above(high), _below(least)])
            return ["min", *crossed], ["max", *outer]
        case "//" if least == most and isinstance(least, int) and least > 0:
            return ["//", low, least], ["//", high, least]
        case "//":  # by what is at least 1
            return _below(low), _above(high)
        case _:
            return [op, low, least], [op, high, most]


def _above(e: DimExpr) -> DimExpr:
    return max(e, 0) if isinstance(e, int) else ["max", e, 0]


def _below(e: DimExpr) -> DimExpr:
    return min(e, 0) if isinstance(e, int) else ["min", e, 0]


def any_zero_empties_all(plan: Plan, step: Step) -> bool:
    """Whether the sizes that a step defines need no memory if one of them is 0.

    That holds however large the others are, as for a Reshape of nothing: all tensors with one of them as an extent have
    all of them, and no other step defines sizes from them.
    """
    found = {name for _, _, name in step.binds}
    others = [s for s in plan.steps if s is not step and (s.binds or s.kind not in ("kernel", "copy", "host"))]
    by = [e for s in others for b in (*s.reads, *s.writes) if b >= 0 for e in plan.buffers[b].shape]
    by += [e for s in others for e in s.attrs.get("upper_bounds", ())]
    shapes = [b.shape for b in plan.buffers if any(symbols(e) & found for e in b.shape)]
    return not any(symbols(e) & found for e in by) and all(found <= _factors(["*", *shape]) for shape in shapes)


def _factors(e: DimExpr) -> set[str]:
    """Symbols of a product that is 0 if one of them is."""
    if isinstance(e, str):
        return {e}
    return set() if isinstance(e, int) or e[0] != "*" else {s for x in e[1:] for s in _factors(x)}


def _non_zero(step: Step, buffers: Sequence[Buffer]) -> list[DimExpr]:
    return [["*", *buffers[step.reads[0]].shape, 1]]


def _compress(step: Step, buffers: Sequence[Buffer]) -> list[DimExpr]:
    x, condition = (buffers[b] for b in step.reads)
    axis = decode_attrs(step.attrs).axis
    return [["min", ["*", *x.shape, 1] if axis is None else x.shape[axis], condition.shape[0]]]


def _unique(step: Step, buffers: Sequence[Buffer]) -> list[DimExpr]:
    return [_compared(step, buffers) for _ in step.binds]


def _compared(step: Step, buffers: Sequence[Buffer]) -> DimExpr:
    """How many elements or slices a Unique compares."""
    shape, axis = buffers[step.reads[0]].shape, decode_attrs(step.attrs).axis
    return ["*", *shape, 1] if axis is None else shape[axis]


def _sizes(step: Step, _: Sequence[Buffer]) -> list[DimExpr]:
    found = {name for _, _, name in step.binds}
    return [_without(step.attrs["upper_bounds"][k], found) for _, k, _ in step.binds]


def _without(e: DimExpr, names: set[str]) -> DimExpr:
    """A bound without sizes that are only being defined: sizes that turned out to be equal may bound themselves."""
    if not symbols(e) & names:
        return e
    kept = [x for x in e[1:] if not symbols(x) & names] if isinstance(e, list) and e[0] == "min" else []
    return LARGEST if not kept else kept[0] if len(kept) == 1 else ["min", *kept]


def _suppression(step: Step, buffers: Sequence[Buffer]) -> list[DimExpr]:
    return [["*", *buffers[step.reads[1]].shape]]


# Host steps of a native entry, with the upper bound of the size each produces.
HOST: dict[str, Callable[[Step, Sequence[Buffer]], list[DimExpr]]] = {
    "NonZero": _non_zero,
    "Compress": _compress,
    "NonMaxSuppression": _suppression,
    "sizes": _sizes,
    "Unique": _unique,
}

# Bytes of scratch memory that some of them need.
SCRATCH: dict[str, Callable[[Step, Sequence[Buffer]], DimExpr]] = {
    "NonMaxSuppression": lambda step, buffers: ["*", buffers[step.reads[1]].shape[2], 28],
    "Unique": lambda step, buffers: ["+", ["*", _compared(step, buffers), 56], 32],
}

# Element types of the first operand that some of them take; the others take all.
TYPES: dict[str, frozenset[str]] = {
    "Unique": frozenset(("f32", "f64", "bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")),
}
