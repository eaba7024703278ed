"""The schedule of products of bytes for processors that multiply tiles (AMX)."""

from __future__ import annotations

from occ.compiler.ir.dim import is_multiple, lower, product
from occ.compiler.ir.dtype import I8, I32, U8
from occ.compiler.ir.te.expr import Reduce
from occ.compiler.ir.te.function import AnyStage, TeFunc, TeStage, product_in_pairs
from occ.compiler.ir.te.stage_schedule import StageSchedule
from occ.compiler.ir.typical_sizes import nominal, nominal_count
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.passes.schedule.loops import Directives, parallel, tasks
from occ.compiler.passes.schedule.rules.row_blocks import smallest
from occ.compiler.passes.schedule.stage_facts import (
    Contraction,
    ScheduleFacts,
    contraction,
    extent_of,
    facts_of,
    same_axes,
    work,
)
from occ.compiler.targets.machine import Machine

_TILE = 16  # rows of codes, fours of terms, and columns of a tile
# Terms: sums go from tiles through memory to vectors. 512 rows, 64 columns: 64 terms 1.06 of the speed of VNNI, 128
# 1.15, 256 1.7; 256 columns: 64 terms 0.73, 128 1.08.
_LEAST = 128
_TASKS = 16  # with fewer, the slowest thread gets much more than its share


def tile_products(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Products of bytes in tiles of 16 rows, two by two of them: all sums stay in tile registers.

    The last block of rows starts before its end. Sapphire Rapids, one thread, 128 rows by [768, 768]: 178 us by VNNI,
    41 us.
    """
    facts = facts_of(f, machine)
    return facts.scheduled(tile_loops(facts.root, facts))


def tile_loops(s: AnyStage, facts: ScheduleFacts) -> Directives | Declined:
    """The directives of `tile_products` for a stage."""
    if not facts.machine.tiles:
        return Declined("the processor multiplies no tiles")
    sums = facts.reductions(s) if isinstance(s, TeStage) else []
    found = contraction(sums[0], facts.f) if len(sums) == 1 else None
    if not isinstance(s, TeStage) or found is None or not same_axes(s, sums[0]):
        return Declined("it has no sum of products, of its own shape, along a contiguous axis of one operand alone")
    acc = sums[0]
    if why := _unfit(acc, found, facts):
        return Declined(why)
    rows = block_rows(found)
    least = rows if facts.full_tile else smallest(extent_of(acc, found.tile))
    if least < _TILE:
        return Declined(f"it may have fewer than {_TILE} rows")
    return _blocks(s, acc, found, rows if least >= rows else _TILE, facts)


def block_rows(c: Contraction) -> int:
    """Rows of a block: with its columns up to four tiles, since two more hold codes, and two weights."""
    return 2 * _TILE if c.panel <= 2 * _TILE else _TILE


def _unfit(acc: TeStage, c: Contraction, facts: ScheduleFacts) -> str:
    """Why a product cannot be computed in tiles, or empty."""
    if acc.dtype != I32 or c.b.dtype != I8 or c.a.dtype not in (I8, U8) or not c.dot or not c.order or not c.tile:
        return "its operands are other than bytes, or its weights are not in fours"
    if not c.panel or c.panel % _TILE or (isinstance(acc.expr, Reduce) and product_in_pairs(acc.expr) is not None):
        return f"its weights are not in panels of {_TILE} columns"
    if not is_multiple(extent_of(acc, c.order[0]), _TILE):
        return f"its terms are not a multiple of {4 * _TILE}"
    if lower(product(extent_of(acc, a) for a in c.order)) < _LEAST // 4:
        return f"it has fewer than {_LEAST} terms"
    params = {p.name for p in facts.f.params}
    if c.b.source not in params:
        return "its weights are computed"
    return "" if c.a.source in params | facts.root_names else "its codes are computed where they are read"


def _blocks(s: TeStage, acc: TeStage, c: Contraction, rows: int, facts: ScheduleFacts) -> Directives:
    out = StageSchedule(s)
    here = {a.name: loop for a, loop in zip(acc.axes, out.axes, strict=True)}
    size = extent_of(acc, c.lanes)
    tail = "Auto" if isinstance(size, int) and size % c.panel == 0 else "GuardWithIf"
    panels, within = out.split(here[c.lanes], c.panel, tail)
    vectors, lane = out.split(within, facts.machine.lanes(32), into="uv", root=here[c.lanes])
    blocks, row = out.split(here[c.tile], rows, "ShiftInwards")
    outer = [*(here[a] for a in c.batch), *(here[a] for a in c.outer)]
    counts = [*(tasks(extent_of(acc, a)) for a in (*c.batch, *c.outer))]
    together = _panels_together(acc, c, rows, facts)
    if together > 1:
        groups, panels = out.split(panels, together, "GuardWithIf", "go", root=here[c.lanes])
        inner = [
            (groups, tasks(size, c.panel * together)),
            (blocks, tasks(extent_of(acc, c.tile), rows)),
            (panels, together),
        ]
    else:
        inner = [(panels, tasks(size, c.panel)), (blocks, tasks(extent_of(acc, c.tile), rows))]
    loops = [*outer, *(loop for loop, _ in inner)]
    out.reorder(lane, vectors, row, *reversed(loops)).vectorize(lane).unroll(vectors)
    parallel(out, loops, [*counts, *(n for _, n in inner)], work(s, facts))
    start = StageSchedule(acc).compute_at(s.name, loops[-1])
    n, m = start.loop(c.lanes), start.loop(c.tile)
    start.reorder_storage(n, m, *(x for x in reversed(start.axes) if x not in (n, m)))
    if tail != "Auto":
        start.align_bounds(n, c.panel)
    start.bound_extent(n, c.panel).bound_extent(m, rows).in_tiles()
    update = StageSchedule(acc, update=1)
    fours, four = update.split(update.loop(c.order[0]), _TILE)
    rest = [x for x in update.axes if x not in (c.lanes, c.tile)]
    taps = [update.loop(a) for a in c.order[1:]]
    update.reorder(update.loop(c.dot), four, update.loop(c.lanes), update.loop(c.tile), fours, *taps, *reversed(rest))
    return [*out.directives, *start.directives, *update.directives]


def _panels_together(acc: TeStage, c: Contraction, rows: int, facts: ScheduleFacts) -> int:
    """Panels of weights that a block of rows takes in turn, so that its results are contiguous.

    They stay in L2 for the next block, and there are enough groups of them for all threads. 128 rows by [768, 768]: one
    panel at a time 74 us, all 41; by [3072, 768]: 211 and 310.
    """
    columns, blocks = (-(-nominal(extent_of(acc, a)) // step) for a, step in ((c.lanes, c.panel), (c.tile, rows)))
    panel = nominal_count(extent_of(acc, a) for a in (*c.order, c.dot)) * c.panel
    return max(min(facts.machine.l2_bytes // 2 // panel, -(-columns * blocks // _TASKS), columns), 1)
