"""Data-dependent sizes within a device part, as from NonZero and NonMaxSuppression.

GE learns such extents when its kernel has run (kernels of the third kind report the shapes of their results), so a
graph has -1 there. Like the graph of ranges, a part's graph is made from graphs at several sizes; what differs becomes
an expression in the extents of the operators that decide them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager

from occ.compiler.codegen_cann.graph.ranges import Range, samples
from occ.compiler.codegen_cann.parts.partition import Part, is_free, reads
from occ.compiler.ir.dim import Atom, Dim, Sym, Symbol, evaluate, minimum, product, substitute, symbols
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Weight
from occ.compiler.ir.shape import depends_on_data, is_data_name
from occ.compiler.ir.types import TensorType, Type

Sizes = Mapping[str, int]
_SMALL = (2, 1, 0)  # sizes below those without a special form


def _non_zero(op: Op) -> Dim:
    return _tensor(op, 0).size


def _along(op: Op) -> Dim:
    """The elements of the first operand, or its extent on the axis of the op."""
    t, axis = _tensor(op, 0), op.attrs.get("axis")
    return t.size if axis is None else t.dims[axis]


def _boxes(op: Op) -> Dim:
    batch, classes, boxes = _tensor(op, 1).dims
    limit = op.operands[2] if len(op.operands) > 2 else None
    most = minimum(boxes, max(int(limit.data.reshape(-1)[0]), 0)) if isinstance(limit, Weight) else boxes
    return product((batch, classes, most))


# Operators whose result sizes the device reports, with the upper bound of the size.
MOST: dict[str, Callable[[Op], Dim]] = {
    "Compress": _along,
    "NonMaxSuppression": _boxes,
    "NonZero": _non_zero,
    "Unique": _along,
}


def _tensor(op: Op, k: int) -> TensorType:
    value = op.operands[k]
    assert value is not None, f"{op.name} has its operand {k}"
    return value.tensor


def _symbols_of(t: Type | None) -> set[str]:
    shape = t.shape if isinstance(t, TensorType) else None
    return {s for d in shape or () for s in symbols(d) if is_data_name(s)}


def used(op: Op) -> set[str]:
    """The data-dependent sizes that an op uses or defines."""
    found = {s for v in (*reads(op), *op.results) for s in _symbols_of(v.type)}
    found |= {s for v in reads(op) if v.defining_op is not None and is_free(v.defining_op) for s in _in(v.defining_op)}
    return found | _in(op)


def _in(op: Op) -> set[str]:
    lists = [v for v in op.attrs.values() if isinstance(v, tuple)]
    return {s for v in lists for d in v if isinstance(d, Sym) and depends_on_data(d) for s in symbols(d)}


def defined_sizes(op: Op) -> set[str]:
    """The sizes that only one op defines."""
    shown = {s for v in reads(op) for s in _symbols_of(v.type)}
    return {s for r in op.results for s in _symbols_of(r.type)} - shown


def bounds(m: Module) -> dict[str, Dim]:
    """The upper bound of each size that operators in `MOST` define, in terms of the input sizes."""
    found: dict[str, Dim] = {}
    for op in m.main.body.body:
        if op.name in MOST:
            most = substitute(MOST[op.name](op), found)
            found |= dict.fromkeys(defined_sizes(op), most)
    return found


def most(d: Dim, bound: Mapping[str, Dim]) -> Dim | None:
    """The upper bound of an extent; None if it is not known to grow with its sizes."""
    if not isinstance(d, Sym) or not symbols(d).keys() & bound.keys():
        return d
    return substitute(d, bound) if _grows(d) else None


def _grows(d: Dim) -> bool:
    """Whether an extent certainly does not decrease when its symbols grow."""
    if not isinstance(d, Sym):
        return d >= 0
    return all((f > 0 or not mono) and all(_atom_grows(a) for a, _ in mono) for mono, f in d.terms)


def _atom_grows(atom: Atom) -> bool:
    if isinstance(atom, Symbol):
        return True
    first, *rest = atom.args
    if atom.name == "floordiv":
        return _grows(first) and isinstance(rest[0], int) and rest[0] > 0
    return all(_grows(a) or isinstance(a, int) for a in atom.args)


def sets_of(m: Module, ops: Sequence[Op], names: set[str]) -> list[dict[str, int]]:
    """The sizes for which graphs of some ops are made, to be merged.

    An extent such as the minimum of a size and a number must differ between them, or it would be taken for the number.
    """
    limits = bounds(m)
    ends = {s: limits.get(s) for s in sorted(names)}
    found = samples({s: Range(0, end if isinstance(end, int) else None) for s, end in ends.items()})
    types = (v.type for op in ops for v in (*reads(op), *op.results))
    dims = {d for t in types if isinstance(t, TensorType) for d in t.shape or () if isinstance(d, Sym)}
    for d in (d for d in dims if symbols(d).keys() <= names):
        at = {evaluate(d, each) for each in found}
        less = (dict.fromkeys(ends, k) for k in _SMALL)
        found += next(([each] for each in less if len(at) == 1 and evaluate(d, each) not in at), [])
    return found


@contextmanager
def at_sizes(m: Module, sizes: Sizes) -> Generator[None]:
    """A context in which some symbolic sizes of the main function are numbers."""
    body = m.main.body.body
    values = [*m.main.args, *(r for op in body for r in op.results)]
    types, attrs = [v.type for v in values], [(op, dict(op.attrs)) for op in body]
    try:
        for v in values:
            if isinstance(v.type, TensorType) and v.type.shape is not None:
                v.type = v.type.with_shape(tuple(substitute(d, sizes) for d in v.type.shape))
        for op in body:
            for key, value in op.attrs.items():
                if isinstance(value, tuple) and any(isinstance(d, Sym) for d in value):
                    op.attrs[key] = tuple(substitute(d, sizes) if isinstance(d, Sym) else d for d in value)
        yield
    finally:
        for v, t in zip(values, types, strict=True):
            v.type = t
        for op, kept in attrs:
            op.attrs = kept


def misplaced(m: Module, parts: Sequence[Part]) -> dict[Op, str]:
    """Ops that a cut leaves without a size that they need, with the reason."""
    found: dict[Op, str] = {}
    limits = bounds(m)
    for part in parts:
        for v in part.outputs if part.on_device else ():
            if v.defining_op is not None and any(most(d, limits) is None for d in v.tensor.dims):
                found[v.defining_op] = "no memory can be reserved for its result"
        own = {s for op in part.ops for s in defined_sizes(op)}
        shown = {s for v in part.inputs for s in _symbols_of(v.type)}
        for op in part.ops:
            outside = used(op) - own
            if part.on_device and outside:
                found[op] = "its extents depend on data in another part"
            elif not part.on_device and outside - shown:
                makers = [o for p in parts if p.on_device for o in p.ops if defined_sizes(o) & outside]
                found |= dict.fromkeys(makers, "the CPU needs the size that it computes")
    return found
