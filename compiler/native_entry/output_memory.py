"""Which step results can be written to their final place, and which are copied there."""

from __future__ import annotations

from itertools import accumulate

from occ.compiler.native_entry.plan import Routine, bytes_of
from occ.runtime.buffers import ALIGNMENT
from occ.runtime.dims import DimExpr
from occ.runtime.manifest import Buffer
from occ.runtime.signature import numpy_dtype


def written_before_sized(r: Routine) -> dict[int, DimExpr]:
    """Storages of outputs that steps write before the output has memory, and their bytes.

    An example is the result of a Compress whose Reshape to a run-time shape is the output: data decide both, one after
    the other. The storage is copied into the output at the end.
    """
    phases = list(accumulate(bool(step.binds) for step in r.plan.steps))
    sized = {
        r.plan.buffers[r.plan.outputs[k]].storage: p
        for p in range(1, max(phases, default=0) + 1)
        for k in r.outputs_of_phase(p)
    }
    found: dict[int, DimExpr] = {}
    for step, phase in zip(r.plan.steps, phases, strict=True):
        for b in (r.plan.buffers[w] for w in step.writes if w >= 0):
            if b.storage in r.output_of and b.storage not in found and phase < sized.get(b.storage, 0):
                found[b.storage] = bytes_of(b)
    return found


def is_aligned(b: Buffer) -> bool:
    """Whether all rows of a tensor of that shape start at aligned addresses."""
    size = numpy_dtype(b.dtype).itemsize
    for n in b.shape:
        if not isinstance(n, int):
            return False
        size *= n
    return size % ALIGNMENT == 0
