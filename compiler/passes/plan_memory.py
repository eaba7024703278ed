"""From calls to a straight plan over buffers: allocation by liveness, destination passing, copies where outputs need them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from occ.compiler.ir.module import Func, Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.rewriter import erase_dead
from occ.compiler.ir.types import TensorType
from occ.compiler.ir.value import Value, Weight
from occ.compiler.passes.base import Context, Pass
from occ.runtime.buffers import assign_offsets

STEPS = ("kernel", "host", "foreign")  # ops of the stage `lowered` that are steps of the plan


@dataclass(frozen=True)
class PlanMemory(Pass):
    """Gives every result of a call a buffer, and buffers that are not alive together the same bytes.

    `%y = call(%x) {te="k"}  return %y` --> `%y = alloc() {output=0}  kernel(%x, %y) {te="k", writes=1}  return %y`

    Offsets are fixed here where all sizes are constant; else the runtime assigns them per set of extents, by the same
    method.
    """

    name: ClassVar[str] = "plan-memory"

    def run(self, m: Module, ctx: Context) -> bool:
        erase_dead(m)
        waiting = [func for func in m.funcs.values() if not _is_planned(func)]
        for func in waiting:
            _plan(func)
        return bool(waiting)


def _is_planned(func: Func) -> bool:
    """Whether no op gives a result but those that stand for memory."""
    return all(
        op.name in (*STEPS, "alloc", "view") and bool(op.results) == (op.name in ("alloc", "view"))
        for op in func.body.body
    )


def _plan(func: Func) -> None:
    storage: dict[Value, Value] = {}  # a view -> the value whose bytes it shows
    for op in func.body.body:
        if op.name == "view":
            source = op.operands[0]
            assert source is not None
            storage[op.result] = storage.get(source, source)
        elif op.results:
            _to_destination(op)
    outputs = _claim_outputs(func, storage)
    _set_lifetimes(func, storage, outputs)


def _to_destination(op: Op) -> None:
    """Turn an op with results into one that writes into buffers allocated before it."""
    home = op.parent
    assert home is not None
    buffers: list[Value] = []
    for result in op.results:
        alloc = Op("alloc", (), {}, [result.type], result_names=[result.name], loc=op.loc)
        home.insert(alloc, op)
        buffers.append(alloc.result)
        for user, k in list(result.uses):
            user.set_operand(k, alloc.result)
    attrs = dict(op.attrs) | {"writes": len(buffers)}
    kind = {"call": "kernel", "foreign": "foreign"}.get(op.name, "host")
    if kind == "host":
        attrs = dict(vars(op.a)) | attrs | {"routine": _routine(op), "n_results": len(buffers)}
        for value in buffers:
            assert value.defining_op is not None
            value.defining_op.attrs["host"] = True  # the routine makes it
    regions = () if kind == "foreign" else op.regions
    made = Op(kind, [*op.operands, *buffers], attrs, (), regions=regions, loc=op.loc)
    home.insert(made, op)
    op.set_operands(())
    home.remove(op)


def _routine(op: Op) -> str:
    """What the runtime knows an op by: a routine of hostops, `late`, or a kind of control flow."""
    return op.spec.host or {"SequenceMap": "map"}.get(op.name, op.name.lower())


def _claim_outputs(func: Func, storage: dict[Value, Value]) -> set[Value]:
    """Make the buffer of each output the caller's own; what cannot be (inputs, constants, one value twice) is copied."""
    end = func.body.terminator
    claimed: set[Value] = set()
    for k, value in enumerate(end.inputs):
        root = storage.get(value, value)
        maker = root.defining_op
        if (maker is not None and "host" in maker.attrs) or not _has_buffer(value):
            continue  # given out as it is
        if maker is None or maker.name != "alloc" or root in claimed or isinstance(root, Weight):
            alloc = Op("alloc", (), {}, [value.type], result_names=[value.name])
            func.body.insert(alloc, end)
            func.body.insert(Op("host", [value, alloc.result], {"routine": "copy", "writes": 1}, ()), end)
            end.set_operand(k, alloc.result)
            root, maker = alloc.result, alloc
        maker.attrs["output"] = k
        claimed.add(root)
    return claimed


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
