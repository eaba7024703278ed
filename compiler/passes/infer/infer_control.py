"""Type inference of control flow: into functions from operands, out of functions to results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.build_te import Elements
from occ.compiler.ir.containers import is_empty, joined_containers, loose
from occ.compiler.ir.dim import Dim, product
from occ.compiler.ir.dtype import BOOL, I64
from occ.compiler.ir.func import Func
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.shape import data_dim, depends_on_data, equal_dims, normalize_axis
from occ.compiler.ir.types import EmptySequenceType, SequenceType, TensorType, Type
from occ.compiler.passes.infer.region_types import (
    Inference,
    Types,
    element_type,
    extent_symbol,
    fresh_data_dims,
    join,
    result_type,
    stacked_type,
)
from occ.compiler.passes.infer.trip_counts import trip_count

_ROUNDS = 8  # rounds of generalising loop-carried types; each makes an extent symbolic or a rank unknown


def infer_control(inf: Inference, op: Op) -> list[Type | None]:
    """Result types of If, Loop, Scan or SequenceMap; extents that differ from run to run are `data_dim`s.

    Raises:
        Invalid: the functions do not fit the op.
    """
    return _RULES[op.name](inf, op)


def inline_branch(m: Module, op: Op, taken: str) -> list[Op]:
    """Replace an `If` by the ops of one branch; returns them.

    `%y = If(true, %x) {then_branch=@f, ...}` --> the ops of `@f`
    """
    home = op.parent
    assert home is not None
    func = m.funcs[op.attrs[taken]]
    given: dict[Value, Value | None] = dict(zip(func.args, op.operands[1:], strict=True))
    moved = func.body.body
    rw = Rewriter(m)
    rw.move(moved, home, op)
    for inner in moved:
        rw.map_operands(inner, given)
    results = [given.get(v, v) for v in func.results]
    rw.replace_operands(func.body.terminator, ())
    rw.replace(op, [v for v in results if v is not None])
    m.drop_unused_funcs()
    return [inner for inner in moved if inner.parent is home]


def _if(inf: Inference, op: Op) -> list[Type | None]:
    captures = op.operands[1:]
    _is_one(op, 0, "condition")
    found = [
        inf.function(f, [v and v.type for v in captures], [v and inf.elements(v) for v in captures], optional=True)
        for f in inf.m.called(op)
    ]
    then, other = found
    if len(then) != len(other) or len(then) != len(op.results):
        raise Invalid(
            f"the branches of `If` return {len(then)} and {len(other)} values, the node has {len(op.results)}"
        )
    fresh = fresh_data_dims()
    return [join(a, b, fresh) for a, b in zip(then, other, strict=True)]


def _is_one(op: Op, k: int, what: str) -> None:
    """Require that an operand has one element."""
    v = op.operands[k] if k < len(op.operands) else None
    if v is not None and isinstance(v.type, TensorType) and v.type.shape is not None:
        equal_dims(product(v.type.shape), 1, f"the {what} of `{op.name}` must have one element, not")


def _loop(inf: Inference, op: Op) -> list[Type | None]:
    (func,) = inf.m.called(op)
    _is_one(op, 0, "trip count")
    _is_one(op, 1, "condition")
    n = len(op.operands) - 2 - op.attrs["captures"]
    captures = op.operands[2 + n :]
    head: list[Type | None] = [TensorType(I64, ()), TensorType(BOOL, ())]
    carried = _start(inf, func, [v and _first_type(v) for v in op.operands[2 : 2 + n]], 2)

    def body(types: Types) -> list[Type | None]:
        values: list[Elements | None] = [None] * (2 + n) + [v and inf.elements(v) for v in captures]
        return inf.function(func, [*head, *types, *(v and v.type for v in captures)], values)

    carried, yields = _to_fixpoint(inf, func, carried, body, 2, lambda found: found[1 : 1 + n])
    _count_fits(op, len(yields) - 1)
    trips = _trips(inf, op, func)
    fresh = fresh_data_dims()
    scanned = [stacked_type(t, trips, 0) for t in yields[1 + n :]]
    return [*(result_type(t, fresh) for t in carried), *(result_type(t, fresh) for t in scanned)]


def _trips(inf: Inference, op: Op, func: Func) -> Dim:
    """The trip count, if it is known and the body cannot stop earlier."""
    found = trip_count(inf, op, func)
    return data_dim(99) if found is None else found


def _scan(inf: Inference, op: Op) -> list[Type | None]:
    (func,) = inf.m.called(op)
    a = op.a
    n = len(op.operands) - a.captures - a.num_scan_inputs
    states, sequences, captures = (
        op.operands[:n],
        op.operands[n:][: a.num_scan_inputs],
        op.operands[n + a.num_scan_inputs :],
    )
    axes = _one_each(a.scan_input_axes, len(sequences), "scan_input_axes")
    _one_each(a.scan_input_directions, len(sequences), "scan_input_directions")
    slices: list[Type | None] = []
    length: Dim | None = None
    for v, axis in zip(sequences, axes, strict=True):
        assert v is not None
        dims = list(v.tensor.dims)
        steps = dims.pop(normalize_axis(axis, len(dims), "Scan"))
        length = (
            steps if length is None else equal_dims(length, steps, "the sequences of `Scan` have different lengths")
        )
        slices.append(TensorType(v.tensor.dtype, tuple(dims)))
    carried = _start(inf, func, [v and v.type for v in states], 0)

    def body(types: Types) -> list[Type | None]:
        values: list[Elements | None] = [None] * (n + len(slices)) + [v and inf.elements(v) for v in captures]
        return inf.function(func, [*types, *slices, *(v and v.type for v in captures)], values)

    carried, yields = _to_fixpoint(inf, func, carried, body, 0, lambda found: found[:n])
    _count_fits(op, len(yields))
    out_axes = _one_each(a.scan_output_axes, len(yields) - n, "scan_output_axes")
    _one_each(a.scan_output_directions, len(yields) - n, "scan_output_directions")
    fresh = fresh_data_dims()
    length = data_dim(99) if length is None else length
    scanned = [stacked_type(t, length, axis) for t, axis in zip(yields[n:], out_axes, strict=True)]
    return [*(result_type(t, fresh) for t in carried), *(result_type(t, fresh) for t in scanned)]


def _one_each(given: Sequence[int] | None, count: int, name: str) -> Sequence[int]:
    """A Scan attribute with one element per scanned value; zeros if it is left out."""
    if given and len(given) != count:
        raise Invalid(
            f"`{name}` of `Scan` has {len(given)} elements for {count} values that are scanned", code="OCC0107"
        )
    return given or (0,) * count


def _sequence_map(inf: Inference, op: Op) -> list[Type | None]:
    (func,) = inf.m.called(op)
    types = [
        v.type.elem
        if v is not None and isinstance(v.type, SequenceType) and k < len(op.operands) - op.attrs["captures"]
        else v and v.type
        for k, v in enumerate(op.operands)
    ]
    inner = [element_type(inf, func, k, t) for k, t in enumerate(types)]
    found = inf.function(func, inner, [None] * len(types))
    _count_fits(op, len(found))
    return [SequenceType(loose(t)) for t in found if t is not None]


_RULES: dict[str, Callable[[Inference, Op], list[Type | None]]] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
    "SequenceMap": _sequence_map,
}


def _count_fits(op: Op, n: int) -> None:
    if n != len(op.results):
        raise Invalid(f"the body of `{op.name}` returns {n} values, the node has {len(op.results)}")


def _to_fixpoint(
    inf: Inference, func: Func, carried: list[Type | None], body: Callable[[Types], list[Type | None]], first: int,
    pick: Callable[[list[Type | None]], list[Type | None]],
) -> tuple[list[Type | None], list[Type | None]]:  # fmt: skip
    """Widen loop-carried types until the body returns what it accepts."""
    for _ in range(_ROUNDS):
        mark = inf.mark
        found = body(carried)
        wider = [_widen(inf, func, first + k, a, b) for k, (a, b) in enumerate(zip(carried, pick(found), strict=True))]
        if wider == carried and not any(isinstance(t, EmptySequenceType) for t in carried):
            return carried, found
        inf.forget(func, mark)
        carried = wider if wider != carried else [t and loose(t) for t in carried]  # nothing is ever inserted
    raise Invalid(f"a loop-carried value of `{func.name}` changes its type in every iteration")


def _first_type(v: Value) -> Type | None:
    """The type of a loop-carried value in the first iteration."""
    return EmptySequenceType(v.type.elem) if isinstance(v.type, SequenceType) and is_empty(v) else v.type


def _start(inf: Inference, func: Func, types: Types, first: int) -> list[Type | None]:
    """Initial types: the operands', with extents symbolic that an earlier inference found to vary."""
    return [_widen(inf, func, first + k, t, func.args[first + k].type, only_known=True) for k, t in enumerate(types)]


def _widen(
    inf: Inference, func: Func, k: int, carried: Type | None, found: Type | None, *, only_known: bool = False
) -> Type | None:
    """The common supertype of both.

    An extent that differs becomes a symbol, the same one throughout the life of the function.
    """
    if not isinstance(carried, TensorType) or not isinstance(found, TensorType):
        if only_known or carried == found or found is None:
            return carried
        return joined_containers(carried, loose(found))
    if only_known and (found.shape is None or carried.shape is None or len(found.shape) != len(carried.shape)):
        return carried if found.shape is not None else found
    if carried.dtype != found.dtype:
        raise Invalid(f"a loop carries {carried} into an iteration and {found} out of it")
    if carried.shape is None or found.shape is None or len(carried.shape) != len(found.shape):
        return TensorType(carried.dtype, None)
    dims: list[Dim] = []
    for axis, (a, b) in enumerate(zip(carried.shape, found.shape, strict=True)):
        varies = depends_on_data(b) if only_known else a != b
        dims.append(extent_symbol(inf, func, k, axis, b) if varies else a)
    return TensorType(carried.dtype, tuple(dims))
