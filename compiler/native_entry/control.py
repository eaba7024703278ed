"""If, Loop and Scan (along first axes) in the native entry."""

# The arithmetic of llvmlite's builder is made by decorators that hide its parameters.
# pyright: reportCallIssue=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from occ.compiler.native_entry.loops import for_loop, unless_empty, while_loop
from occ.compiler.native_entry.plan import CallSite, put
from occ.compiler.native_entry.routine import RoutineEmitter, StepEmitter
from occ.compiler.native_entry.scanned_results import ScannedResult, slice_bytes
from occ.compiler.native_entry.sizes import i64
from occ.compiler.native_entry.types import I1, I8, I64
from occ.runtime.attributes import decode_attrs
from occ.runtime.dims import DimExpr
from occ.runtime.manifest import Step

_FOREVER = (1 << 63) - 1


def emit_if(e: RoutineEmitter, k: int, step: Step) -> dict[str, Any]:
    """`(cond, *captures)`: runs one of two functions. Returns the data-dependent extents of its results."""
    cond, *captures = map(e.buffer, step.reads)
    outputs = [e.buffer(b) for b in step.writes]
    cased = {e.r.plan.outputs[output] for output in e.r.cases}
    open_ = {step.writes[place] for place, _, _ in step.binds}
    shapes = [None if b in cased or b in open_ else e.r.plan.buffers[b].shape for b in step.writes]
    holds = _is_true(e, cond)
    if cased & set(step.writes):  # the caller knows the shapes if sizes decide the branch
        left, right = (i64(e.sizes.of(s)) for s in step.attrs["when"])
        e.require_that(e.b.icmp_signed("==", holds, e.b.icmp_signed("==", left, right)), k)
    then, otherwise, done = (e.fn.append_basic_block(n) for n in ("then", "else", "endif"))
    e.b.cbranch(holds, then, otherwise)
    wanted = [(place, axis, name) for place, axis, name in step.binds if step.writes[place] not in cased]
    extents: list[tuple[list[Any], Any]] = []  # in each branch, and at its end
    for block, inner in zip((then, otherwise), e.r.inner[k], strict=True):
        e.b.position_at_end(block)
        _require_shapes(e, k, inner, shapes)
        returned = e.run(inner.name, inner.env, captures, outputs)
        sizes, plan = e.sizes.at(e.b, returned), e.others[inner.name].r.plan
        results = [plan.buffers[b].shape for b in plan.outputs]
        extents.append(([i64(sizes.of(put(results[place][axis], inner.env))) for place, axis, _ in wanted], e.b.block))
        e.b.branch(done)
    e.b.position_at_end(done)
    found = {name: e.b.phi(I64) for _, _, name in wanted}
    for values, block in extents:
        for phi, value in zip(found.values(), values, strict=True):
            phi.add_incoming(value, block)
    return found


def emit_scan(e: RoutineEmitter, k: int, step: Step) -> None:
    """`(*states, *sequences, *captures) -> (*states, *scanned)`: a function over the slices of sequences.

    The states of an iteration are written to one of two slots, alternately; those of the last one are results.
    Unaligned slices of scanned results are written to a slot, and copied.
    """
    a = decode_attrs(step.attrs)
    n, m = a.n_states, a.n_states + a.num_scan_inputs
    (inner,), pairs = e.r.inner[k], e.r.double_buffers[k]
    reads, states_ = list(map(e.buffer, step.reads)), list(map(e.buffer, step.writes[:n]))
    scanned = [ScannedResult(e, k, step, n + at, own) for at, own in enumerate(e.r.staging[k])]
    shape = [e.r.plan.buffers[b].shape for b in (*step.reads, *step.writes)]
    slices = shape[len(reads) + n :]
    length = e.sizes.of(shape[n][0])
    for s in (*shape[n:m], *slices):
        e.require(length, e.sizes.of(s[0]), k)
    _require_shapes(e, k, inner, [*shape[:n], *(s[1:] for s in slices)])
    strides = [slice_bytes(e, b) for b in step.reads[n:m]]
    backwards = [_padded(a.scan_input_directions, m - n), _padded(a.scan_output_directions, len(scanned))]
    count = i64(length)

    def body(i: Any, states: list[Any]) -> list[Any]:
        last = e.b.sub(count, I64(1))
        ends = e.b.icmp_signed("==", i, last)
        buffers = _written_of(e, i, pairs)
        targets = [e.b.select(ends, w, t) for w, t in zip(states_, buffers, strict=True)]
        taken, given = ([e.b.sub(last, i) if back else i for back in row] for row in backwards)
        inputs = [
            e.support.at(e.b, p, e.b.mul(at, i64(stride)))
            for p, at, stride in zip(reads[n:m], taken, strides, strict=True)
        ]
        places = [s.of_iteration(at) for s, at in zip(scanned, given, strict=True)]
        made = [s.written_at(p) for s, p in zip(scanned, places, strict=True)]
        e.run(inner.name, inner.env, [*states, *inputs, *reads[m:]], [*targets, *made])
        for s, p in zip(scanned, places, strict=True):
            s.keep(p)
        return targets

    for_loop(e.b, I64(0), count, 1, reads[:n], body)

    def keep() -> None:
        for j in range(n):
            e.copy(states_[j], reads[j], e.bytes_of(step.reads[j]))

    unless_empty(e.b, e.b.icmp_signed("==", count, I64(0)), keep)


def emit_loop(e: RoutineEmitter, k: int, step: Step) -> dict[str, Any]:
    """`(limit, condition, *carried, *captures) -> (*carried, *scanned)`: a loop.

    A function is repeated until its condition fails or the limit is reached. It is an error if there are more
    iterations than scanned results have space for, or fewer unless the step defines and returns their number as a size.
    If nothing bounds it, scanned results grow.
    """
    n = decode_attrs(step.attrs).n_carried
    (inner,), (*pairs, number, before, after) = e.r.inner[k], e.r.double_buffers[k]
    given = [e.buffer(b) for b in step.reads[2:]]
    scanned = [ScannedResult(e, k, step, n + at, own) for at, own in enumerate(e.r.staging[k])]
    shape = [e.r.plan.buffers[b].shape for b in step.writes]
    _require_shapes(e, k, inner, [[], *shape[:n], *(s[1:] for s in shape[n:])])
    limit = I64(_FOREVER) if step.reads[0] < 0 else e.support.load(e.b, e.buffer(step.reads[0]), 0, I64)

    def body(i: Any, carried: list[Any]) -> list[Any]:
        for s in scanned:
            if s.length is not None:
                e.require_that(e.b.icmp_signed("<", i, i64(s.length)), k)
        e.support.store(e.b, i, e.slot(number), 0)
        e.support.store(e.b, e.b.zext(carried[0], I8), e.slot(before), 0)
        buffers = _written_of(e, i, pairs)
        places = [s.of_iteration(i) for s in scanned]
        made = [s.written_at(p) for s, p in zip(scanned, places, strict=True)]
        inputs = [e.slot(number), e.slot(before), *carried[1:], *given[n:]]
        e.run(inner.name, inner.env, inputs, [e.slot(after), *buffers, *made])
        for s, p in zip(scanned, places, strict=True):
            s.keep(p)
        return [_is_true(e, e.slot(after)), *buffers]

    going = I1(1) if step.reads[1] < 0 else _is_true(e, e.buffer(step.reads[1]))
    count, (_, *last) = while_loop(
        e.b,
        I64(0),
        1,
        [going, *given[:n]],
        lambda i, carried: e.b.and_(carried[0], e.b.icmp_signed("<", i, limit)),
        body,
    )
    for s in scanned:
        s.end(count)
    for value, b in zip(last, step.writes, strict=False):
        e.copy(e.buffer(b), value, e.bytes_of(b))
    return dict.fromkeys((name for _, _, name in step.binds), count)


def _written_of(e: RoutineEmitter, i: Any, pairs: Sequence[int]) -> list[Any]:
    """For each pair of slots, the one that an iteration writes to."""
    odd = e.b.icmp_signed("!=", e.b.and_(i, I64(1)), I64(0))
    return [e.b.select(odd, e.slot(p), e.slot(q)) for p, q in zip(pairs[::2], pairs[1::2], strict=True)]


def _is_true(e: RoutineEmitter, p: Any) -> Any:
    return e.b.icmp_signed("!=", e.b.load(p), I8(0))


def _padded(values: Sequence[int] | None, n: int) -> Sequence[int]:
    return values if values else (0,) * n


def _require_shapes(e: RoutineEmitter, k: int, inner: CallSite, shapes: Sequence[Sequence[DimExpr] | None]) -> None:
    """Fail if a function's result shapes exceed the step's buffers.

    None where they cannot.
    """
    plan = e.others[inner.name].r.plan
    for index, shape in zip(plan.outputs, shapes, strict=True):
        if shape is None:
            continue
        for mine, its in zip(shape, _shown(plan.buffers[index].shape, inner.env), strict=True):
            if mine != its:
                e.require(e.sizes.of(mine), e.sizes.of(its), k)


def _shown(shape: Sequence[DimExpr], env: Mapping[str, DimExpr]) -> list[DimExpr]:
    return [put(d, env) for d in shape]


CONTROL_STEPS: dict[str, StepEmitter] = {"if": emit_if, "scan": emit_scan, "loop": emit_loop}
