"""Steps of control flow in the native entry: If, and Scan along first axes (runtime/native/control.py has the same in Python)."""

# The arithmetic of llvmlite's builder is made by decorators that hide its parameters.
# pyright: reportCallIssue=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from occ.compiler.native_entry.loops import for_loop, unless_empty
from occ.compiler.native_entry.plan import Inner, nbytes, put
from occ.compiler.native_entry.sizes import i64
from occ.compiler.native_entry.types import I8, I64
from occ.runtime.attributes import decode_attrs
from occ.runtime.dims import DimExpr
from occ.runtime.manifest import Step

if TYPE_CHECKING:
    from occ.compiler.native_entry.routine import RoutineEmitter


def emit_if(e: RoutineEmitter, k: int, step: Step) -> None:
    """`(cond, *captures)`: runs one of two functions."""
    cond, *captures = map(e.buffer, step.reads)
    outputs = [e.buffer(b) for b in step.writes]
    shapes = [e.r.plan.buffers[b].shape for b in step.writes]
    holds = e.b.icmp_signed("!=", e.b.load(cond), I8(0))
    then, otherwise, done = (e.fn.append_basic_block(n) for n in ("then", "else", "endif"))
    e.b.cbranch(holds, then, otherwise)
    for block, inner in zip((then, otherwise), e.r.inner[k], strict=True):
        e.b.position_at_end(block)
        _require_shapes(e, k, inner, shapes)
        e.run(inner.name, inner.env, captures, outputs)
        e.b.branch(done)
    e.b.position_at_end(done)


def emit_scan(e: RoutineEmitter, k: int, step: Step) -> None:
    """`(*states, *sequences, *captures) -> (*states, *scanned)`: a function over the slices of sequences.

    The states of an iteration are written to one of two slots, in turns; those of the last one are results. Slices of
    scanned results that are not aligned are written to a slot, and copied.
    """
    a = decode_attrs(step.attrs)
    n, m = a.n_states, a.n_states + a.num_scan_inputs
    (inner,), pairs, apart = e.r.inner[k], e.r.turns[k], e.r.apart[k]
    reads, writes = list(map(e.buffer, step.reads)), list(map(e.buffer, step.writes))
    shape = [e.r.plan.buffers[b].shape for b in (*step.reads, *step.writes)]
    scanned = shape[len(reads) + n :]
    length = e.sizes.of(shape[n][0])
    for s in (*shape[n:m], *scanned):
        e.require(length, e.sizes.of(s[0]), k)
    _require_shapes(e, k, inner, [*shape[:n], *(s[1:] for s in scanned)])
    strides = [_stride(e, b) for b in (*step.reads[n:m], *step.writes[n:])]
    backwards = [*_padded(a.scan_input_directions, m - n), *_padded(a.scan_output_directions, len(writes) - n)]
    count = i64(length)

    def body(i: Any, states: list[Any]) -> list[Any]:
        last = e.b.sub(count, I64(1))
        odd = e.b.icmp_signed("!=", e.b.and_(i, I64(1)), I64(0))
        ends = e.b.icmp_signed("==", i, last)
        turns = [e.b.select(odd, e.slot(p), e.slot(q)) for p, q in zip(pairs[::2], pairs[1::2], strict=True)]
        targets = [e.b.select(ends, w, t) for w, t in zip(writes, turns, strict=False)]
        moving = [*reads[n:m], *writes[n:]]
        at = [e.b.sub(last, i) if back else i for back in backwards]
        slices = [
            e.support.at(e.b, p, e.b.mul(at_, i64(stride))) for p, at_, stride in zip(moving, at, strides, strict=True)
        ]
        inputs, places = slices[: m - n], slices[m - n :]
        made = [e.slot(own) if own is not None else p for p, own in zip(places, apart, strict=True)]
        e.run(inner.name, inner.env, [*states, *inputs, *reads[m:]], [*targets, *made])
        for p, own, stride in zip(places, made, strides[m - n :], strict=True):
            if p is not own:
                e.copy(p, own, stride)
        return targets

    for_loop(e.b, I64(0), count, 1, reads[:n], body)

    def keep() -> None:
        for j in range(n):
            e.copy(writes[j], reads[j], e.bytes_of(step.reads[j]))

    unless_empty(e.b, e.b.icmp_signed("==", count, I64(0)), keep)


def _stride(e: RoutineEmitter, index: int) -> Any:
    """Bytes of a slice of a buffer along its first axis."""
    b = e.r.plan.buffers[index]
    return e.sizes.of(nbytes(b.shape[1:], b.dtype))


def _padded(values: Sequence[int] | None, n: int) -> Sequence[int]:
    return values if values else (0,) * n


def _require_shapes(e: RoutineEmitter, k: int, inner: Inner, shapes: Sequence[Sequence[DimExpr]]) -> None:
    """Fail where a function gives other extents than the step has room for."""
    plan = e.others[inner.name].r.plan
    for index, shape in zip(plan.outputs, shapes, strict=True):
        for mine, its in zip(shape, _shown(plan.buffers[index].shape, inner.env), strict=True):
            if mine != its:
                e.require(e.sizes.of(mine), e.sizes.of(its), k)


def _shown(shape: Sequence[DimExpr], env: Mapping[str, DimExpr]) -> list[DimExpr]:
    return [put(d, env) for d in shape]
