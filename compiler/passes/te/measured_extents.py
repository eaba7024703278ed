"""Extents that kernels for any sizes know all the same, because it was measured to pay."""

from __future__ import annotations

from occ.compiler.ir.dim import product
from occ.compiler.ir.te.expr import Index
from occ.compiler.ir.te.function import AnyStage, TeStage, loads, reduce_axes
from occ.compiler.ir.te.walks import walk
from occ.compiler.passes.te.dim_names import is_product

SMALL = 8  # extents up to this stay numbers: taps of windows, colour channels, unrolled loops
PLANE = 128  # and these, of planes that windows slide over which sum taps and colours alone, with their channels
FEW_TERMS = 32  # products of up to this many terms know their number, which then is how far apart rows are


def _slid_axes(s: AnyStage) -> set[str]:
    """Axes along which the window of a stage slides that sums taps alone: of a depthwise convolution or a pool."""
    taps = {a.name for a in reduce_axes(*s.exprs[:1])}
    if not taps or any(not isinstance(a.extent, int) or a.extent > SMALL for a in reduce_axes(*s.exprs[:1])):
        return set()
    indices = [i for n in loads(*s.exprs) for i in n.index if not isinstance(i, Index)]
    named = [{x.name for x in walk(i) if isinstance(x, Index)} for i in indices]
    return {a.name for a in s.axes for names in named if a.name in names and names & taps}


def measured_axes(s: AnyStage) -> set[str]:
    """Axes whose extents stay numbers; the pass generalize-sizes says how much slower kernels for any are."""
    slid, terms = _slid_axes(s), reduce_axes(*s.exprs[:1])
    small = {a.name for a in s.axes if a.name in slid and isinstance(a.extent, int) and a.extent <= PLANE}
    if slid and small == slid:
        return {*small, s.axes[-1].name}
    if isinstance(s, TeStage) and is_product(s) and isinstance(n := product(a.extent for a in terms), int):
        small |= {a.name for a in terms if n <= FEW_TERMS}
    return small
