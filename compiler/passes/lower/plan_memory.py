"""Memory planning: calls become kernels on buffers that share memory by liveness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from occ.compiler.ir.dim import Dim, symbols
from occ.compiler.ir.func import Func
from occ.compiler.ir.location import UNKNOWN
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.rewriter import Rewriter, erase_dead
from occ.compiler.ir.shape import depends_on_data
from occ.compiler.ir.te.function import Scatter, TeFunc
from occ.compiler.ir.types import TensorType
from occ.compiler.ir.verify_plan import STEPS
from occ.compiler.passes.base import Context, Pass
from occ.compiler.passes.layout.use_joins import axis_of
from occ.runtime.buffers import assign_offsets
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class PlanMemory(Pass):
    """Allocates a buffer for every call result; buffers with disjoint lifetimes share bytes.

    `%y = call(%x) {te="k"}  return %y` --> `%y = alloc() {output=0}  kernel(%x, %y) {te="k", writes=1}  return %y`

    If all sizes are constant, offsets are fixed here; otherwise the runtime assigns them for each set of extents, in
    the same way.
    """

    name: ClassVar[str] = "plan-memory"

    def run(self, m: Module, ctx: Context) -> bool:
        erase_dead(m)
        rw = Rewriter(m)
        waiting = [func for func in m.funcs.values() if not _is_planned(func)]
        for func in waiting:
            _plan(func, m.te, rw)
        return bool(waiting)


def _is_planned(func: Func) -> bool:
    """Whether only ops that stand for memory have results."""
    return all(
        op.name in (*STEPS, "alloc", "view") and bool(op.results) == (op.name in ("alloc", "view"))
        for op in func.body.body
    )


def _plan(func: Func, te: Mapping[str, TeFunc], rw: Rewriter) -> None:
    for op in func.body.body:
        if op.name not in ("view", "join") and op.results:
            _to_destination(op, _bases(op, te), rw)
    place = {op: k for k, op in enumerate(func.body.body) if op.name == "alloc"}
    heads: dict[Value, Value] = {}
    for op in reversed(func.body.body):  # a join inside another one comes first
        if op.name == "join":
            _join(op, heads, place, rw)
    storage: dict[Value, Value] = {}  # a view -> the value whose bytes it shares
    for op in func.body.body:
        if op.name == "view":
            source = op.operands[0]
            assert source is not None
            storage[op.result] = storage.get(source, source)
    outputs = _claim_outputs(func, storage, rw)
    _set_lifetimes(func, storage, outputs)


def _bases(op: Op, te: Mapping[str, TeFunc]) -> dict[int, Value]:
    """The operands of a call that share memory with results, by result number."""
    f = te.get(op.attrs.get("te", ""))
    if f is None:
        return {}
    given = dict(zip((p.name for p in f.params), op.operands, strict=True))
    numbers = {r.name: k for k, r in enumerate(f.results)}
    found = {numbers[s.name]: given[s.base] for s in f.stages if isinstance(s, Scatter) and s.base is not None}
    return {k: v for k, v in found.items() if v is not None}


def _to_destination(op: Op, bases: Mapping[int, Value], rw: Rewriter) -> None:
    """Turn an op with results into one that writes into buffers allocated before it."""
    home = op.parent
    assert home is not None
    buffers: list[Value] = []
    for number, result in enumerate(op.results):
        if (base := bases.get(number)) is not None:
            assert base.defining_op is not None
            assert base.defining_op.name == "alloc", "values that others may read are copied"
            buffers.append(base)
            result.replace_uses(base)
            continue
        alloc = home.insert(_buffer("alloc", (), result), op)
        buffers.append(alloc.result)
        result.replace_uses(alloc.result)
    attrs = dict(op.attrs) | {"writes": len(buffers)}
    kind = {"call": "kernel", "foreign": "foreign"}.get(op.name, "host")
    if op.name == "copy":
        attrs |= {"routine": "copy"}
    elif kind == "host":
        attrs = dict(vars(op.a)) | attrs | {"routine": _routine(op), "n_results": len(buffers)}
        for value in buffers:
            assert value.defining_op is not None
            value.defining_op.attrs["host"] = True  # the routine allocates it
    regions = () if kind == "foreign" else op.regions
    rw.exchange(op, Op(kind, [*op.operands, *buffers], attrs, (), regions=regions, loc=op.loc))


def _join(op: Op, heads: dict[Value, Value], place: Mapping[Op, int], rw: Rewriter) -> None:
    """Make the buffers of a join's operands parts of its result's buffer.

    Args:
        op: the join; enclosing joins are done.
        heads: buffers of joins inside other ones.
        place: where each alloc was.
        rw: of the module.
    """
    home, whole = op.parent, op.result.tensor
    first = min(_leaves(op), key=place.__getitem__)
    assert home is not None
    if op.result not in heads:
        heads[op.result] = home.insert(_buffer("alloc", (), op.result), first).result
    head, axis = heads[op.result], axis_of(op)
    step = whole.strides[(whole.layout.order or tuple(range(whole.rank))).index(axis)]
    start: Dim = 0
    for value in op.inputs:
        maker = value.defining_op
        assert maker is not None, "the inputs of a join are computed in place"
        part = _buffer("view", [head], value, start=start)
        start = start + value.tensor.dims[axis] * step
        if maker.name == "join":
            heads[value] = home.insert(part, first).result
            continue
        home.insert(part, maker)
        value.replace_uses(part.result)
        rw.erase(maker)
        first = part if maker is first else first
    op.result.replace_uses(head)
    rw.erase(op)


def _leaves(op: Op) -> list[Op]:
    """The allocs of a join's operands, including those of nested joins."""
    makers = [v.defining_op for v in op.inputs]
    return [leaf for m in makers if m is not None for leaf in (_leaves(m) if m.name == "join" else [m])]


def _buffer(name: str, operands: Sequence[Value], like: Value, **attrs: Any) -> Op:
    loc = like.defining_op.loc if like.defining_op is not None else UNKNOWN
    return Op(name, operands, attrs, [like.type], result_names=[like.name], loc=loc)


def _routine(op: Op) -> str:
    """The runtime name of an op: a routine of hostops, `deferred`, or control flow."""
    return op.spec.host or {"SequenceMap": "map"}.get(op.name, op.name.lower())


def _claim_outputs(func: Func, storage: dict[Value, Value], rw: Rewriter) -> set[Value]:
    """Make each output's buffer the caller's own; what cannot be (inputs, constants, one value twice) is copied."""
    end = func.body.terminator
    claimed: set[Value] = set()
    for k, value in enumerate(end.inputs):
        root = storage.get(value, value)
        maker = root.defining_op
        if (maker is not None and "host" in maker.attrs) or not _has_buffer(value):
            continue  # returned as it is
        taken = root in claimed or isinstance(root, Weight) or _is_defined_later(value, root)
        if maker is None or maker.name != "alloc" or taken:
            alloc = Op("alloc", (), {}, [value.type], result_names=[value.name])
            func.body.insert(alloc, end)
            func.body.insert(Op("host", [value, alloc.result], {"routine": "copy", "writes": 1}, ()), end)
            rw.replace_operand(end, k, alloc.result)
            root, maker = alloc.result, alloc
        maker.attrs["output"] = k
        claimed.add(root)
    return claimed


def _is_defined_later(value: Value, root: Value) -> bool:
    """Whether a view's extents may be known later than its bytes, as for a Reshape to a computed shape."""
    shown = symbols(*root.tensor.dims)
    return any(depends_on_data(d) and not symbols(d).keys() <= shown.keys() for d in value.tensor.dims)


def _has_buffer(value: Value) -> bool:
    """Whether a value is a tensor whose extents the plan can compute."""
    return isinstance(value.type, TensorType) and value.type.shape is not None and value.type.dtype.kind != "s"


def _set_lifetimes(func: Func, storage: dict[Value, Value], outputs: set[Value]) -> None:
    steps = [op for op in func.body.body if op.name in STEPS]
    first: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for k, op in enumerate(steps):
        for value in op.inputs:
            root = storage.get(value, value)
            first.setdefault(root, k)
            last[root] = max(k, last.get(root, 0))
        if "checks" in op.attrs:
            last[op.inputs[-1]] = len(steps)  # the runtime reads flags after it has run the kernels
    allocs = [op for op in func.body.body if op.name == "alloc" and op.result not in outputs and "host" not in op.attrs]
    for op in allocs:
        op.attrs |= {"first": first.get(op.result, 0), "last": last.get(op.result, 0)}
    sizes = [op.result.tensor.nbytes for op in allocs]
    if all(isinstance(n, int) for n in sizes):
        known = [n for n in sizes if isinstance(n, int)]
        offsets, _ = assign_offsets(known, [(op.attrs["first"], op.attrs["last"]) for op in allocs])
        for op, offset in zip(allocs, offsets, strict=True):
            op.attrs["offset"] = offset
