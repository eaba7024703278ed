"""Data-dependent shapes: a step of the plan turns computed values into sizes.

Exporters slice by an iteration number, make ranges up to a counted length, and reshape to a shape that is an input.
Known facts about such an op's shape are written as symbols, which `sizes` binds at run time; the op itself and all that
follow it are then ordinary kernels over symbolic extents. `ir/ops/own/data_dependent_sizes.py` has the ops.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.access import access
from occ.compiler.ir.deferred import has_unknown_rank
from occ.compiler.ir.dim import Dim, Sym
from occ.compiler.ir.dtype import I64, STR
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value
from occ.compiler.ir.ops.attention import reshape
from occ.compiler.ir.ops.own.computed_scales import SCALED
from occ.compiler.ir.ops.own.data_dependent_sizes import on_axes
from occ.compiler.ir.ops.resize_plan import EXACT
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.shape import depends_on_data, may_copy, normalize_axes
from occ.compiler.ir.types import TensorType
from occ.compiler.passes.infer.decision import Decision
from occ.compiler.passes.infer.known_elements import Known


def decide(m: Module, known: Known) -> bool:
    """Define run-time sizes for ops whose shapes depend on data; returns whether there were any.

    Every value has a type.

    `%y = Slice(%x, %b, %e)`
    --> `%p = slice_places(%x, %b, %e)  sizes(%p) {defines=[dim<_u0>, dim<_u1>]}  %y = part(%x, ...)`
    """
    return _replaced(m, known, lambda op: _RULES.get(op.name) if _waits(op, known) else None)


def resolve_broadcasts(m: Module, known: Known) -> bool:
    """Define run-time sizes for ops whose broadcast is unknown, once all other sizes are known.

    So too for a Reshape to sizes of which a 0 copies an extent.

    `%y = Add(%a, %b)`
    --> `sizes(common_shape(%a, %b)) {defines=[dim<_u0>]}  %y = Add(spread(%a, _u0), spread(%b, _u0))`
    """

    def rule(op: Op) -> Rule | None:
        if _may_copy(op, known):
            return _reshape
        return _expand if _may_spread(op, known) else _alike if _is_unlike(op) else None

    return _replaced(m, known, rule)


def _replaced(m: Module, known: Known, choose: Callable[[Op], Rule | None]) -> bool:
    """Replace the selected ops by what the rules build; returns whether there were any."""
    rw, made = Rewriter(m), False
    for func in m.funcs.values():
        for op in func.body.body:
            rule, result = choose(op), None
            if rule is None:
                continue
            with suppress(Invalid):  # in a branch that does not fit, an error only if it is taken
                result = rule(Decision(m, known, op, rw))
            if result is not None:
                assert result.defining_op is not None, "a rule ends with an op"
                rw.replace(op, result.defining_op.results)
                made = True
    return made


def _waits(op: Op, known: Known) -> bool:
    """Whether an op has operands of known rank, and depends on the elements of a computed one."""
    if not all(isinstance(v.type, TensorType) and v.type.shape is not None for v in op.inputs):
        return False
    static = [v for k, v in enumerate(op.operands) if v is not None and op.spec.operand_name(k) in op.spec.static]
    return any(None in (known.elements(v) or (None,)) for v in static if v.tensor.size != 0)


def _may_spread(op: Op, known: Known) -> bool:
    """Whether run-time sizes alone decide which extents an Expand spreads."""
    if op.name != "Expand" or not all(isinstance(v.type, TensorType) and v.type.shape is not None for v in op.inputs):
        return False
    asked = known.elements(op.inputs[1])
    return bool(asked) and _differ([op.inputs[0].tensor.dims, asked])


def _may_copy(op: Op, known: Known) -> bool:
    """Whether a size of the run, where it is 0, makes a Reshape copy another extent."""
    if op.name != "Reshape" or op.a.allowzero or has_unknown_rank(op):
        return False
    asked = known.elements(op.inputs[1]) or ()
    return any(
        isinstance(d, Sym) and depends_on_data(d) and may_copy(d, n)
        for d, n in zip(asked, op.inputs[0].tensor.dims, strict=False)
    )


def _is_unlike(op: Op) -> bool:
    """Whether an elementwise op's broadcast is unknown until run time: either of two extents may be 1."""
    types = [v.type for v in op.inputs]
    shapes = [t.shape for t in types if isinstance(t, TensorType) and t.shape is not None]
    return 1 < len(shapes) == len(types) and _differ(shapes) and access(op).elementwise


def _differ(shapes: Sequence[Sequence[Dim | float | None]]) -> bool:
    """Whether shapes have data-dependent extents that may be equal or 1."""
    return any(
        len(found) > 1 and any(isinstance(d, Sym) and depends_on_data(d) for d in found) for found in on_axes(shapes)
    )


def _slice(d: Decision) -> Value | None:
    begin, end = d.elements(1), d.elements(2)
    if begin is None or end is None or len(begin) != len(end):
        return None
    on, by = d.ints(3, range(len(begin))), d.ints(4, [1] * len(begin))
    if on is None or by is None or not len(on) == len(by) == len(begin) or 0 in by:
        return None
    on = normalize_axes(on, d.given(0).tensor.rank, "Slice")
    axes, strides = tuple(on), tuple(by)
    places = d.b.op("slice_places", d.given(0), d.given(1), d.given(2), axes=axes, strides=strides)
    finds: list[Dim] = []
    for axis, first, step in zip(axes, begin, strides, strict=True):
        empty = d.given(0).tensor.dims[axis] == 0
        finds += [0 if empty or (first == 0 and step > 0) else d.symbol(), 0 if empty else d.symbol()]
    return d.b.op("part", d.given(0), d.sizes(places, finds), axes=axes, strides=strides)


def _pad(d: Decision) -> Value | None:
    """A Pad, of which no number is negative, of the part that is kept."""
    x, listed = d.given(0), d.elements(1)
    on = d.ints(3, range(x.tensor.rank))
    if listed is None or on is None or len(listed) != 2 * len(on) or x.tensor.dtype == STR:
        return None
    axes = normalize_axes(on, x.tensor.rank, "Pad")
    finds: list[list[Dim]] = []
    for axis, *ends in zip(axes, listed, listed[len(axes) :], strict=False):
        added = [n for n in ends if isinstance(n, int) and n >= 0]
        finds.append([0, x.tensor.dims[axis], *added] if len(added) == 2 else [d.symbol() for _ in range(4)])
    d.sizes(d.b.op("pad_places", x, d.given(1), axes=axes), [n for found in finds for n in found])
    kept = d.b.op("part", x, d.dims([n for found in finds for n in found[:2]]), axes=axes, strides=(1,) * len(axes))
    added = d.dims([found[k] for k in (2, 3) for found in finds])
    return d.b.op("Pad", kept, added, *d.op.operands[2:], **d.op.attrs)


def _range(d: Decision) -> Value | None:
    start, limit, delta = (d.given(k) for k in range(3))
    if any(v.tensor.size != 1 for v in (start, limit, delta)):
        return None
    count = d.b.op("range_count", start, limit, delta)
    return d.b.op("ramp", start, delta, d.sizes(count, [d.symbol()]))


def _expand(d: Decision) -> Value | None:
    asked, x = d.elements(1), d.given(0)
    if asked is None:
        return None
    rank = max(x.tensor.rank, len(asked))
    own = (*(1,) * (rank - x.tensor.rank), *x.tensor.dims)
    finds = [_spread(d, n, s) for n, s in zip(own, (*(1,) * (rank - len(asked)), *asked), strict=True)]
    return d.b.op("spread", x, d.sizes(d.b.op("expanded_shape", x, d.given(1)), finds))


def _alike(d: Decision) -> Value | None:
    """An elementwise op on operands that are spread to one shape at run time."""
    operands = list(dict.fromkeys(d.op.inputs))
    shapes = [v.tensor.dims for v in operands]
    finds = [_of_all(d, found) for found in on_axes(shapes)]
    whole = d.sizes(d.b.op("common_shape", *operands), finds)
    spread = {
        x: d.b.op("spread", x, whole)
        for x, own in zip(operands, shapes, strict=True)
        if any(n not in (1, m) for n, m in zip(own, finds[len(finds) - len(own) :], strict=True))
    }
    return d.b.op(d.op.name, *(v and spread.get(v, v) for v in d.op.operands), **d.op.attrs)


def _of_all(d: Decision, found: Collection[Dim]) -> Dim:
    """The extent of an axis on which operands have these extents, apart from 1."""
    certain = [n for n in found if isinstance(n, int)] or (list(found) if len(found) == 1 else [])
    return certain[0] if certain else d.symbol() if found else 1


def _spread(d: Decision, n: Dim, asked: Dim | float | None) -> Dim:
    """The extent of an expanded axis, if it is known."""
    if isinstance(n, int) and n != 1:
        return n
    return asked if n == 1 and isinstance(asked, (int, Sym)) else d.symbol()


def _reshape(d: Decision) -> Value | None:
    asked = d.elements(1)
    if asked is None:
        return None
    finds = [n if isinstance(n, int) and n > 0 else d.symbol() for n in asked]
    shape = d.b.op("reshaped_shape", d.given(0), d.given(1), allowzero=int(bool(d.op.a.allowzero)))
    return d.b.Reshape(d.given(0), d.sizes(shape, finds), allowzero=1)


def _as_given(d: Decision, k: int) -> Value | None:
    """The elements of operand `k`, a vector or a number, as sizes."""
    vector, asked = d.given(k), d.elements(k)
    if vector.tensor.rank == 0:
        vector, asked = reshape(d.b, vector, (1,)), [None]
    if asked is None:
        return None
    if vector.tensor.dtype != I64:
        vector = d.b.Cast(vector, to=I64)
    return d.sizes(vector, [n if isinstance(n, (int, Sym)) else d.symbol() for n in asked])


def _of_sizes(*places: int, alike: tuple[int, ...] = ()) -> Rule:
    """The same op, whose operands at `places` are sizes: counts and extents that its definition takes as they are.

    Args:
        places: of operands whose elements are counts or extents.
        alike: of others that must have the same type, which is i64 for sizes.
    """

    def rule(d: Decision) -> Value | None:
        given = {k: d.given(k) for k in places if d.operand(k) is not None}
        known = {k for k, v in given.items() if None not in (d.known.elements(v) or (None,))}
        if known == given.keys():
            return None
        sizes = {k: v if k in known and v.tensor.dtype == I64 else _as_given(d, k) for k, v in given.items()}
        if None in sizes.values():
            return None
        sizes |= {k: d.b.Cast(d.given(k), to=I64) for k in alike if d.given(k).tensor.dtype != I64}
        operands = [sizes.get(k, v) for k, v in enumerate(d.op.operands)]
        made = d.b.op(d.op.name, *operands, n_results=len(d.op.results), **d.op.attrs)
        return made[0] if isinstance(made, tuple) else made

    return rule


def _resize(d: Decision) -> Value | None:
    """A Resize to sizes of a run, or by scales of which some are unknown.

    Axes whose scale is known to be 1 stay as they are. With `antialias`, the scale decides how many neighbours there
    are.
    """
    if len(d.op.operands) > 3 and d.operand(3) is not None:
        return _of_sizes(3)(d)
    x, scales, given = d.given(0), d.elements(2), d.op.a.axes
    axes = list(range(x.tensor.rank)) if given is None else list(normalize_axes(given, x.tensor.rank, "Resize"))
    crops = d.op.a.coordinate_transformation_mode == "tf_crop_and_resize"
    if scales is None or len(scales) != len(axes) or crops or d.op.a.antialias or d.is_of_constants(2):
        return None
    kept = [k for k, s in enumerate(scales) if s != 1]
    wanted = d.b.Gather(d.given(2), d.dims(kept), axis=0) if len(kept) < len(axes) else d.given(2)
    on = tuple(axes[k] for k in kept)
    fractions = d.b.op("scale_fractions", wanted, exact=int(d.op.name == EXACT))
    extents = d.b.op("scaled_extents", x, fractions, axes=on)
    sizes = d.sizes(extents, [d.symbol() for _ in on])
    return d.b.op(SCALED, x, None, fractions, sizes, n_results=1, **{**vars(d.op.a), "axes": on})


Rule = Callable[[Decision], Value | None]
_RULES: Mapping[str, Rule] = {
    "Slice": _slice, "Pad": _pad, "Range": _range, "Expand": _expand, "Reshape": _reshape, "Tile": _of_sizes(1),
    "ConstantOfShape": _of_sizes(0), "TopK": _of_sizes(1), "OneHot": _of_sizes(1), "AffineGrid": _of_sizes(1),
    "CenterCropPad": _of_sizes(1), "HannWindow": _of_sizes(0), "HammingWindow": _of_sizes(0),
    "BlackmanWindow": _of_sizes(0), "STFT": _of_sizes(1, 3), "MaxUnpool": _of_sizes(2),
    "Split": _of_sizes(1), "Resize": _resize, EXACT: _resize, "DFT": _of_sizes(1),
    "MelWeightMatrix": _of_sizes(0, 1, alike=(2,)), "Col2Im": _of_sizes(1),
}  # fmt: skip
