"""Results of Loop and Scan with a slice per iteration, along their first axis."""

# The arithmetic of llvmlite's builder is made by decorators that hide its parameters.
# pyright: reportCallIssue=false
from __future__ import annotations

from typing import Any

from llvmlite import ir

from occ.compiler.native_entry.bounds import upper
from occ.compiler.native_entry.plan import nbytes
from occ.compiler.native_entry.routine import RoutineEmitter
from occ.compiler.native_entry.sizes import i64
from occ.compiler.native_entry.types import I32, PTR
from occ.runtime.manifest import Step
from occ.runtime.native.call import NO_MEMORY


def slice_bytes(e: RoutineEmitter, index: int) -> Any:
    """Bytes of a slice of a buffer along its first axis."""
    b = e.r.plan.buffers[index]
    return e.sizes.of(nbytes(b.shape[1:], b.dtype))


class ScannedResult:
    """A result to which each iteration adds a slice.

    Unaligned slices, which kernels cannot write, go to a staging slot and are copied. A result of unbounded length
    grows, and is copied to its memory once the number of iterations is known.

    Args:
        e: the routine.
        k, step: the step that it is a result of.
        place: index of the result in the step.
        own: the staging slot of unaligned slices; None for aligned ones.
    """

    def __init__(self, e: RoutineEmitter, k: int, step: Step, place: int, own: int | None) -> None:
        self._e, self._step, self._own = e, k, own
        self.index, self.stride = step.writes[place], slice_bytes(e, step.writes[place])
        length = e.r.plan.buffers[self.index].shape[0]
        self.found = any(place == p and not axis for p, axis, _ in step.binds)
        self._grown = e.late.growing(e.head) if self.found and length in e.r.open else None
        self.length = None if self._grown else e.sizes.of(upper(length, e.r.bounds) if self.found else length)

    def of_iteration(self, i: Any) -> Any:
        """Address of the slice of an iteration; its number is less than `length`."""
        e, at = self._e, self._e.b.mul(i, i64(self.stride))
        if self._grown is None:
            return e.support.at(e.b, e.buffer(self.index), at)
        made = self._grown.room(e.b, at, self.stride)
        e.fail_if(e.b.icmp_unsigned("==", made, ir.Constant(PTR, None)), NO_MEMORY, self._step, I32(0))
        return made

    def written_at(self, place: Any) -> Any:
        """Where an iteration writes the slice for an address."""
        return place if self._own is None else self._e.slot(self._own)

    def keep(self, place: Any) -> None:
        """Copy a slice to its address, if it was written elsewhere."""
        if self._own is not None:
            self._e.copy(place, self._e.slot(self._own), self.stride)

    def end(self, count: Any) -> None:
        """Finish after a number of iterations, which must equal the length unless it defines that."""
        e, grown = self._e, self._grown
        if grown is not None:
            used = e.b.mul(count, i64(self.stride))
            e.once_sized(lambda: grown.release(e.b, e.buffer(self.index), used))
        elif not self.found:
            e.require_that(e.b.icmp_signed("==", count, i64(self.length)), self._step)
