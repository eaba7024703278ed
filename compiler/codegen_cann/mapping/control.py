"""Control flow as GE nodes with sub-graphs: If as If, Loop and Scan as While."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.mapping.emitter import Emitter, Unsupported, describe
from occ.compiler.codegen_cann.mapping.indexing import scattered
from occ.compiler.codegen_cann.mapping.shape import broadcast
from occ.compiler.ir.op import Op, Value

Row = Callable[..., Any]
_FOREVER = np.iinfo(np.int64).max


def _present(refs: Sequence[Ref | None]) -> list[Ref]:
    found = [r for r in refs if r is not None]
    if len(found) != len(refs):
        raise Unsupported("an operand of a sub-graph is absent")
    return found


def _if(e: Emitter, op: Op, cond: Ref, *captures: Ref | None) -> tuple[Ref, ...]:
    given = _present(captures)
    outs = [describe(r) for r in op.results]
    graphs: list[str] = []
    for func in (e.function(op.attrs["then_branch"]), e.function(op.attrs["else_branch"])):
        child = e.child(func.name, [r.desc for r in given], first_parent_input=1)
        results = child.call(func, child.data)
        child.set_results([child.cast(r, d.dtype) for r, d in zip(results, outs, strict=True)])
        if [r.desc.shape for r in child.graph.outputs] != [d.shape for d in outs]:
            raise Unsupported("its branches return results with different extents")
        graphs.append(child.graph.name)
    made = e.op("If", e.reshape(cond, ()), given, out=outs)
    made[0].node.graphs = graphs
    return made


def _while(
    e: Emitter,
    name: str,
    start: Sequence[Ref],
    cond: Callable[[Emitter, list[Ref]], Ref],
    body: Callable[[Emitter, list[Ref]], Sequence[Ref]],
) -> tuple[Ref, ...]:
    """A While over a state; returns the final state."""
    outs = [Desc(r.dtype, r.shape) for r in start]
    test = e.child(f"{name}.cond", outs)
    test.set_results([cond(test, test.data)])
    step = e.child(f"{name}.body", outs)
    step.set_results(body(step, step.data))
    if [(r.dtype, r.shape) for r in step.graph.outputs] != [(d.dtype, d.shape) for d in outs]:
        raise Unsupported("a loop-carried value changes its extents")
    made = e.op("While", list(start), out=outs)
    made[0].node.graphs = [test.graph.name, step.graph.name]
    return made


def _stored(e: Emitter, buffer: Ref, i: Ref, value: Ref) -> Ref:
    """`buffer` with `value` as its i-th slice."""
    at = e.reshape(i, (1, 1))
    return scattered(e, buffer, at, e.reshape(value, (1, *value.shape)))


def _loop(e: Emitter, op: Op, limit: Ref | None, cond: Ref | None, *rest: Ref | None) -> tuple[Ref, ...]:
    func = e.function(op.attrs["body"])
    given = _present(rest)
    n = len(given) - op.attrs["captures"]
    carried, captures = given[:n], given[n:]
    buffers = [_buffer(e, r, 0) for r in op.results[n:]]
    trips = e.reshape(limit, ()) if limit is not None else e.constant(np.array(_FOREVER))
    going = e.reshape(cond, ()) if cond is not None else e.constant(np.array(True))
    start = [e.constant(np.array(0, np.int64)), trips, going, *carried, *captures, *buffers]

    def test(c: Emitter, state: list[Ref]) -> Ref:
        i, m, go = state[:3]
        return c.op("LogicalAnd", c.op("Less", i, m, out=Desc("BOOL", ())), go, out=Desc("BOOL", ()))

    def body(c: Emitter, state: list[Ref]) -> list[Ref]:
        i, m = state[:2]
        kept = state[3 + n : 3 + len(given)]
        go, *results = c.call(func, [i, state[2], *state[3 : 3 + n], *kept])
        held = [_stored(c, b, i, v) for b, v in zip(state[3 + len(given) :], results[n:], strict=True)]
        following = c.op("Add", i, c.constant(np.array(1, np.int64)))
        return [following, m, c.reshape(go, ()), *results[:n], *kept, *held]

    last = _while(e, func.name, start, test, body)
    return *last[3 : 3 + n], *last[3 + len(given) :]


def _scan(e: Emitter, op: Op, *operands: Ref | None) -> tuple[Ref, ...]:
    func, given, a = e.function(op.attrs["body"]), _present(operands), op.a
    n_inputs = a.num_scan_inputs
    n = len(given) - op.attrs["captures"] - n_inputs
    for k, axis in enumerate(a.scan_input_axes or ()):  # what is scanned comes first
        given[n + k] = _moved(e, given[n + k], axis % len(given[n + k].shape), 0)
    n_scanned = len(op.results) - n
    out_axes = [
        ax % len(describe(r).shape) for ax, r in zip(a.scan_output_axes or [0] * n_scanned, op.results[n:], strict=True)
    ]
    backwards = list(a.scan_input_directions or [0] * n_inputs), list(a.scan_output_directions or [0] * n_scanned)
    length = given[n].shape[0]
    buffers = [_buffer(e, r, ax) for r, ax in zip(op.results[n:], out_axes, strict=True)]
    start = [e.constant(np.array(0, np.int64)), *given, *buffers]

    def test(c: Emitter, state: list[Ref]) -> Ref:
        return c.op("Less", state[0], c.constant(np.array(length, np.int64)), out=Desc("BOOL", ()))

    def body(c: Emitter, state: list[Ref]) -> list[Ref]:
        i, fixed = state[0], state[1 + n : 1 + len(given)]
        at = (i, c.op("Sub", c.constant(np.array(length - 1, np.int64)), i))
        slices = [_slice(c, x, at[back]) for x, back in zip(fixed[:n_inputs], backwards[0], strict=True)]
        results = c.call(func, [*state[1 : 1 + n], *slices, *fixed[n_inputs:]])
        rows = zip(state[1 + len(given) :], backwards[1], results[n:], strict=True)
        held = [_stored(c, buffer, at[back], v) for buffer, back, v in rows]
        return [c.op("Add", i, c.constant(np.array(1, np.int64))), *results[:n], *fixed, *held]

    last = _while(e, func.name, start, test, body)
    scanned = [_moved(e, x, 0, ax) for x, ax in zip(last[1 + len(given) :], out_axes, strict=True)]
    return *last[1 : 1 + n], *scanned


def _moved(e: Emitter, x: Ref, source: int, target: int) -> Ref:
    """An axis moved elsewhere."""
    order = [k for k in range(len(x.shape)) if k != source]
    order.insert(target, source)
    return e.transpose(x, order)


def _buffer(e: Emitter, result: Value, axis: int) -> Ref:
    """A buffer for the results of all iterations, along the first axis."""
    desc = describe(result)
    shape = [desc.shape[axis], *(d for k, d in enumerate(desc.shape) if k != axis)]
    return broadcast(e, e.scalar(0, desc.dtype), shape)


def _slice(e: Emitter, x: Ref, i: Ref) -> Ref:
    axis = e.constant(np.array(0, np.int32))
    return e.op("GatherV2", x, i, axis, out=Desc(x.dtype, x.shape[1:]))


ROWS: dict[str, Row] = {"If": _if, "Loop": _loop, "Scan": _scan}
