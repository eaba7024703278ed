"""Steps with data-dependent result sizes in the native entry: NonZero, Compress."""

# The arithmetic of llvmlite's builder is made by decorators that hide its parameters.
# pyright: reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from occ.compiler.native_entry.bounds import LARGEST, any_zero_empties_all
from occ.compiler.native_entry.loops import for_loop, while_loop
from occ.compiler.native_entry.nms import emit_suppression
from occ.compiler.native_entry.routine import RoutineEmitter, StepEmitter
from occ.compiler.native_entry.sizes import i64
from occ.compiler.native_entry.types import DOUBLE, FLOAT, I1, I8, I16, I32, I64
from occ.compiler.native_entry.unique import emit_unique
from occ.runtime.attributes import decode_attrs
from occ.runtime.manifest import Step
from occ.runtime.native.call import IMPOSSIBLE, MISFIT
from occ.runtime.signature import numpy_dtype

_INTEGERS = {1: I8, 2: I16, 4: I32, 8: I64}
_FLOATS = {"f32": FLOAT, "f64": DOUBLE}


def emit_non_zero(e: RoutineEmitter, k: int, step: Step) -> dict[str, Any]:
    """`(x) -> i64[rank, count]`: the indices of non-zero elements, in row-major order; NaN counts as non-zero."""
    x, out = e.buffer(step.reads[0]), e.buffer(step.writes[0])
    info = e.r.plan.buffers[step.reads[0]]
    extents = [i64(e.sizes.of(d)) for d in info.shape] or [I64(1)]  # a scalar is one element

    def sweep(visit: Callable[[list[Any], Any], None], most: Any = None) -> Any:
        """Visit all elements, with indices and how many before are set, until there are `most`; returns their number."""

        def axis(k: int, at: list[Any], flat: Any, count: Any) -> Any:
            def body(i: Any, carried: list[Any]) -> list[Any]:
                here = e.b.add(e.b.mul(flat, extents[k]), i)
                if k + 1 < len(extents):
                    return [axis(k + 1, [*at, i], here, carried[0])]
                found = _is_set(e, x, here, info.dtype)
                visit([*at, i], carried[0])
                return [e.b.add(carried[0], e.b.zext(found, I64))]

            def holds(i: Any, carried: list[Any]) -> Any:
                more = e.b.icmp_signed("<", i, extents[k])
                last = most is not None and k + 1 == len(extents)
                return e.b.and_(more, e.b.icmp_signed("<", carried[0], most)) if last else more

            return while_loop(e.b, I64(0), 1, [count], holds, body)[1][0]

        return axis(0, [], I64(0), I64(0))

    count = sweep(lambda *_: None)
    _check_known(e, count, 1, step, k)

    def note(at: list[Any], before: Any) -> None:
        for row, i in enumerate(at):
            place = e.b.add(e.b.mul(I64(row), count), before)
            e.support.store(e.b, i, e.b.gep(out, [e.b.mul(place, I64(8))]), 0)

    # Without a branch, which mispredicts half of random elements: indices of zeros are overwritten by the next ones.
    # 65,536 truths at random: 700 --> 170 us (Sapphire Rapids).
    sweep(note, count)
    return {name: count for _, _, name in step.binds}


def emit_compress(e: RoutineEmitter, k: int, step: Step) -> dict[str, Any]:
    """`(x, condition)`: the slices of x along an axis where the condition holds; it may have another length."""
    x, condition, out = e.buffer(step.reads[0]), e.buffer(step.reads[1]), e.buffer(step.writes[0])
    info, flags = (e.r.plan.buffers[b] for b in step.reads)
    axis = decode_attrs(step.attrs).axis
    shape = [e.sizes.of(d) for d in info.shape]
    size = numpy_dtype(info.dtype).itemsize
    if axis is None:
        outer, extent, inner = 1, e.sizes.of(["*", *info.shape, 1]), size
    else:
        axis %= len(shape)
        outer, extent = e.sizes.of(["*", *info.shape[:axis], 1]), shape[axis]
        inner = e.sizes.of(["*", *info.shape[axis + 1 :], size])
    given = i64(e.sizes.of(flags.shape[0]))
    length = e.b.select(e.b.icmp_signed("<", given, i64(extent)), given, i64(extent))

    def holds(j: Any) -> Any:
        return e.b.icmp_signed("!=", e.b.load(e.b.gep(condition, [j])), I8(0))

    (count,) = for_loop(e.b, I64(0), length, 1, [I64(0)], lambda j, n: [e.b.add(n[0], e.b.zext(holds(j), I64))])
    _check_known(e, count, axis or 0, step, k)

    def block(o: Any, _: list[Any]) -> list[Any]:
        def slice_(j: Any, done: list[Any]) -> list[Any]:
            here = holds(j)
            with e.b.if_then(here):
                source = e.b.mul(e.b.add(e.b.mul(o, i64(extent)), j), i64(inner))
                target = e.b.mul(e.b.add(e.b.mul(o, count), done[0]), i64(inner))
                e.support.memcpy(e.b, e.b.gep(out, [target]), e.b.gep(x, [source]), inner)
            return [e.b.add(done[0], e.b.zext(here, I64))]

        for_loop(e.b, I64(0), length, 1, [I64(0)], slice_)
        return []

    for_loop(e.b, I64(0), i64(outer), 1, [], block)
    return {name: count for _, _, name in step.binds}


def emit_sizes(e: RoutineEmitter, k: int, step: Step) -> dict[str, Any]:
    """`(x)`: the elements of i64[n] are sizes.

    Known sizes must match, the others must be at most `most`.

    Empty tensors need no memory: then sizes may be larger.
    """
    x, out, a = e.buffer(step.reads[0]), e.buffer(step.writes[0]), step.attrs
    elements = [e.support.load(e.b, x, 8 * at, I64) for at in range(len(a["defines"]))]
    found = {name: elements[at] for _, at, name in step.binds}
    sizes = e.sizes.at(e.b, found)  # another one may bound it
    none: Any = I1(0)
    for n in found.values() if any_zero_empties_all(e.r.plan, step) else ():
        none = e.b.or_(none, e.b.icmp_signed("==", n, I64(0)))
    for at, (n, known, most) in enumerate(zip(elements, a["defines"], a["upper_bounds"], strict=True)):
        e.support.store(e.b, n, out, 8 * at)
        if isinstance(known, str) and known in found:
            limit = e.b.select(none, I64(LARGEST), i64(sizes.of(most)))
            outside = e.b.or_(e.b.icmp_signed("<", n, I64(0)), e.b.icmp_signed(">", n, limit))
            e.fail_if(outside, MISFIT, k, I32(IMPOSSIBLE), n, limit)
            e.require(n, found[known], k)
        else:
            e.require(n, e.sizes.of(known), k)
    return found


def _check_known(e: RoutineEmitter, count: Any, axis: int, step: Step, k: int) -> None:
    """Fail if an extent differs from the one that another step defined."""
    if not step.binds:
        e.require(count, e.sizes.of(e.r.plan.buffers[step.writes[0]].shape[axis]), k)


def _is_set(e: RoutineEmitter, x: Any, index: Any, dtype: str) -> Any:
    """Whether an element is not zero, an i1."""
    size = numpy_dtype(dtype).itemsize
    p = e.b.gep(x, [e.b.mul(index, I64(size))])
    if dtype in _FLOATS:
        kind = _FLOATS[dtype]
        return e.b.fcmp_unordered("!=", e.b.load(e.b.bitcast(p, kind.as_pointer())), kind(0.0))
    bits = e.b.load(e.b.bitcast(p, _INTEGERS[size].as_pointer()))
    if dtype in ("f16", "bf16"):  # without the sign bit, which zero may have
        bits = e.b.and_(bits, I16(0x7FFF))
    return e.b.icmp_signed("!=", bits, _INTEGERS[size](0))


HOST_STEPS: dict[str, StepEmitter] = {
    "NonZero": emit_non_zero, "Compress": emit_compress, "NonMaxSuppression": emit_suppression, "sizes": emit_sizes,
    "Unique": emit_unique,
}  # fmt: skip
