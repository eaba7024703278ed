"""Extents that kernels for any sizes know all the same, because it was measured to pay."""

from __future__ import annotations

from collections.abc import Collection

from occ.compiler.ir.dim import is_multiple, product
from occ.compiler.ir.dtype import U8
from occ.compiler.ir.te.expr import Cast, Index, Load
from occ.compiler.ir.te.function import AnyStage, TeFunc, TeStage, loads, reduce_axes
from occ.compiler.ir.te.roles import COLUMNS, PAD
from occ.compiler.ir.te.walks import of_kind
from occ.compiler.passes.te.dim_names import is_product

SMALL = 8  # extents up to this stay numbers: taps of windows, colour channels, unrolled loops
PLANE = 128  # and these, of planes that windows slide over which sum taps and colours alone, with their channels
BORDERED = 128  # rows up to this long that get a border
PART = 128  # and rows up to this long that are parts of longer ones
CODES = 256  # tables of this many elements, which bytes index
FEW_TERMS = 32  # products of up to this many terms know their number, which then is how far apart rows are


def _slid_axes(s: AnyStage) -> set[str]:
    """Axes along which the window of a stage slides that sums taps alone: of a depthwise convolution or a pool."""
    taps = {a.name for a in reduce_axes(*s.exprs[:1])}
    if not taps or any(not isinstance(a.extent, int) or a.extent > SMALL for a in reduce_axes(*s.exprs[:1])):
        return set()
    indices = [i for n in loads(*s.exprs) for i in n.index if not isinstance(i, Index)]
    named = [{x.name for x in of_kind(Index, i)} for i in indices]
    return {a.name for a in s.axes for names in named if a.name in names and names & taps}


def _is_border(s: AnyStage, f: TeFunc) -> bool:
    """Whether a stage is the result of a kernel that puts a border around a tensor."""
    return isinstance(s, TeStage) and s.role == PAD and s.name in {r.name for r in f.results}


def _pitch_axes(s: TeStage, f: TeFunc) -> set[str]:
    """The terms or the columns of a product of two operands in rows that unrolls its terms, whichever are fewer.

    One of them says how far apart the rows of an operand are. Where neither is known, each of the unrolled terms finds
    its rows from the rows of the term before: LLVM then loads all terms first, which do not fit the registers.
    """
    panels = {p.name for p in f.params if p.type.layout.tiles}
    panels |= {t.name for t in f.stages if isinstance(t, TeStage) and t.role == COLUMNS}
    terms = reduce_axes(s.expr)
    unrolled = {d.args[0] for d in f.schedule if (d.stage, d.call) == (s.name, "unroll")}
    if unrolled.isdisjoint(a.name for a in terms) or any(n.source in panels for n in loads(s.expr)):
        return set()
    known = {a.name: a.extent for a in (*s.axes[-1:], *terms) if isinstance(a.extent, int)}
    return {min(known, key=known.__getitem__)} if known else set()


def _lanes_of_sum(s: TeStage) -> set[str]:
    """The last axis of a sum that adds up lanes of a row apart.

    It is one vector, which stays in a register.
    `part[i, l] = sum[q](%p0[i, q * 16 + l] * %p1[q * 16 + l])`: a window that slides along rows has a last axis beside
    its taps too, but its weights are the same everywhere.
    """
    lane, terms = s.axes[-1].name, {a.name for a in reduce_axes(s.expr)}
    named = [[{x.name for x in of_kind(Index, i)} for i in n.index] for n in loads(s.expr)]
    return {lane} if all(any(lane in i and terms & i for i in index) for index in named) else set()


def measured_axes(s: AnyStage, f: TeFunc) -> set[str]:
    """Axes of a stage of a function whose extents stay numbers.

    The pass generalize-sizes says how much slower kernels for any are.
    """
    if isinstance(s, TeStage) and s.role == COLUMNS:
        return {s.axes[-1].name}  # the width of a panel
    if _is_border(s, f):
        return {a.name for a in s.axes[-1:] if isinstance(a.extent, int) and a.extent <= BORDERED}
    slid, terms = _slid_axes(s), reduce_axes(*s.exprs[:1])
    small = {a.name for a in s.axes if a.name in slid and isinstance(a.extent, int) and a.extent <= PLANE}
    if slid and small == slid:
        return {*small, s.axes[-1].name}
    if isinstance(s, TeStage) and is_product(s):
        n = product(a.extent for a in terms)
        small |= {a.name for a in terms} if isinstance(n, int) and n <= FEW_TERMS else _pitch_axes(s, f)
        small |= _lanes_of_sum(s) if s.axes else set()
    return small


def short_rows(s: AnyStage) -> set[str]:
    """The last axis of sums, if it is short.

    How many vectors it has decides how many rows are computed together.
    """
    if not isinstance(s, TeStage) or not reduce_axes(s.expr):
        return set()
    return {a.name for a in s.axes[-1:] if isinstance(a.extent, int) and a.extent <= PLANE}


def short_parts(s: AnyStage, read: Collection[tuple[str, int]]) -> set[str]:
    """The last axis of a stage that copies parts of rows, if these are short.

    Args:
        s: a stage.
        read: axes of tensors of which parts are read, by name and position.
    """
    if reduce_axes(*s.exprs[:1]):
        return set()
    found = {
        x.name
        for n in loads(*s.exprs)
        for k, i in enumerate(n.index)
        if (n.source, k) in read
        for x in of_kind(Index, i)
    }
    return {a.name for a in s.axes[-1:] if a.name in found and isinstance(a.extent, int) and a.extent <= PART}


def uneven_channels(f: TeFunc) -> set[str]:
    """The last axes of results that do not fill the vectors in which they are computed."""
    vectors = {(d.stage, d.args[0]) for d in f.schedule if d.call == "vectorize"}
    splits = [d for d in f.schedule if d.call == "split" and (d.stage, d.args[2]) in vectors]
    lanes = {d.stage: d.args[3] for d in splits if isinstance(d.args[3], int)}
    results = [s for s in f.stages if s.name in lanes.keys() & {r.name for r in f.results}]
    return {a.name for s in results for a in s.axes[-1:] if not is_multiple(a.extent, lanes[s.name])}


def code_tables(s: AnyStage, f: TeFunc) -> set[tuple[str, int]]:
    """Tables with an element for each code of a byte, by name, and the position of the axis of codes."""
    found: set[tuple[str, int]] = set()
    for n in loads(*s.exprs):
        for k, (i, extent) in enumerate(zip(n.index, f.shapes[n.source], strict=True)):
            code = i.arg if isinstance(i, Cast) else i
            if isinstance(code, Load) and code.dtype == U8 and extent == CODES:
                found.add((n.source, k))
    return found
