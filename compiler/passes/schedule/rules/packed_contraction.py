"""The schedule of matrix products and convolutions: register tiles over packed panels.

Measurements: Zen 4, one core, 117 GFLOP/s of fp32 multiply-add.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from occ.compiler.ir.dim import Dim, evaluate
from occ.compiler.ir.dtype import I16, I64
from occ.compiler.ir.te.cost import SERIAL
from occ.compiler.ir.te.expr import PREDICATES, Binary, Call, Expr, Index, Reduce, Select
from occ.compiler.ir.te.function import AnyStage, TeFunc, TeStage, product_in_pairs, reduce_axes
from occ.compiler.ir.te.roles import CONV
from occ.compiler.ir.te.stage_schedule import StageSchedule
from occ.compiler.ir.te.walks import walk
from occ.compiler.ir.typical_sizes import nominal, nominal_count
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.passes.schedule.loops import Directives, parallel, row_tail, tasks, tile_cost, tile_size
from occ.compiler.passes.schedule.prefetch import fetch_ahead
from occ.compiler.passes.schedule.rules.row_blocks import row_blocks
from occ.compiler.passes.schedule.stage_facts import (
    FEW_ROWS,
    Contraction,
    ScheduleFacts,
    contraction,
    crossed_product,
    element_bits,
    extent_of,
    facts_of,
    same_axes,
    work,
)
from occ.compiler.targets.machine import Machine

_TWOS = 2  # unroll factor of products of i16 pairs: with more, LLVM reorders the sums and spills
_LARGE = 16  # sums of a tile that hide what the loop around them takes
_PLANES = 7  # divides the rows of planes of 7, 14, 28, 56 and 112, which most nets on photos have
_NEAR = 1.02  # rows of tiles that take at most this much longer than the best are as good
_ROWS = 4  # of convolutions with one filter, and of byte products in pairs: with more, what they share leaves registers
_MANY = 32  # registers that hold a whole tile of products in pairs
# Functions of few instructions; others are polynomials of some twenty.
_SHORT = ("neg", "not", "abs", "sign", "sqrt", "floor", "ceil", "trunc", "round_even", "nearest", "fma", *PREDICATES)
_SMALL = 100_000  # multiply-adds that take less than 2 us: a second thread would not have started


def packed_contraction(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Matrix products and convolutions: a tile of rows by vectors stays in registers, with the left operand broadcast.

    Lanes run along a contiguous axis of the right operand. 97-100 % of peak on packed panels; about 14 accumulators are
    best, and 28 spill.
    """
    facts = facts_of(f, machine)
    return facts.scheduled(product_loops(facts.root, facts))


def product_loops(s: AnyStage, facts: ScheduleFacts) -> Directives | Declined:
    """The directives of `packed_contraction` for a stage."""
    if not isinstance(s, TeStage):
        return Declined("it writes at computed positions")
    sums = facts.reductions(s)
    found = contraction(sums[0], facts.f) if len(sums) == 1 else None
    if found is None or not same_axes(s, sums[0]):
        return Declined("it has no sum of products, of its own shape, along a contiguous axis of one operand alone")
    acc = sums[0]
    if facts.skinny:
        found = found.with_rows_as_loop()
    one_filter = _down_rows(acc, found)
    found = one_filter or found
    lanes = facts.machine.lanes(max(element_bits(acc), 32))
    width = found.panel or _width(extent_of(acc, found.lanes), lanes)
    if width % lanes:
        lanes = width if width < lanes else lanes // 2
    if width == 0 or width % lanes:
        return Declined(
            "the contiguous axis of the right operand is of symbolic length, or shorter than a quarter of a vector"
        )
    wanted = facts.hint.vectors * lanes
    if wanted and (width % wanted == 0 or (not found.panel and nominal(extent_of(acc, found.lanes)) >= wanted)):
        width = wanted
    most = _most_rows(width // lanes, facts.machine, in_pairs=bool(found.dot))
    most = min(most, _ROWS) if one_filter or _fills_registers(acc, facts.machine) else most
    rows = _rows(extent_of(acc, found.tile), most, facts.machine.rows) if found.tile else 1
    return _tile(s, acc, found, width, lanes, rows, facts)


def _most_rows(vectors: int, machine: Machine, *, in_pairs: bool) -> int:
    """Rows of a tile of some vectors whose sums stay in registers.

    Three vectors leave 16 registers for four rows, five for two, beside a row of weights and a broadcast element: six
    rows of three spilled, and a ShuffleNet takes 0.79 of the time, MobileNet v2 0.95 (AVX2). Products in pairs, which
    are made before they are summed, take one more: of four rows four to ten spilled.
    """
    if vectors <= 2:
        return max(machine.accumulators // vectors, 1)
    fitting = (machine.registers - vectors - 1 - in_pairs) // vectors if vectors % 2 else machine.registers
    return min(machine.accumulators // 2, fitting)


def _fills_registers(acc: TeStage, machine: Machine) -> bool:
    """Whether a product of bytes takes registers beside its sums: weights in pairs, products, and ones to add pairs."""
    pairs = isinstance(acc.expr, Reduce) and product_in_pairs(acc.expr) is not None and machine.registers < _MANY
    return pairs or crossed_product(acc.expr) is not None


def _rows(extent: Dim, most: int, wanted: int) -> int:
    """Rows of a tile: a multiple of 7 where that is as good as the best.

    Planes of 56 then share a kernel with planes of 14. A ResNet-50 has 18 kernels instead of 19, a MobileNet v2 28
    instead of 30, in 0.99 to 1.01 of the time (Zen 4).
    """
    best = tile_size(extent, most, wanted)
    if wanted or not isinstance(extent, int) or extent <= most:
        return best
    whole = [t for t in range(most, most // 2, -1) if t % _PLANES == 0 and extent % t == 0]
    cost = lambda t: evaluate(tile_cost(extent, t), {})
    return next((t for t in whole if cost(t) <= _NEAR * cost(best)), best)


def _down_rows(acc: TeStage, c: Contraction) -> Contraction | None:
    """The tile of a convolution with one filter: vectors along rows, a few rows at once.

    The rows share what they read if the innermost loop runs down the window.

    Zen 5, one thread, 8 channels of 5x5 on 172x264: 338 --> 142 us.
    """
    if acc.role != CONV or c.tile or c.panel or not c.batch or not isinstance(extent_of(acc, c.batch[-1]), int):
        return None
    row = c.batch[-1]
    taps = [n for i in c.b.index if row in (names := _names(i)) for n in c.order if n in names]
    if not taps:
        return None
    order = (*taps, *(n for n in c.order if n not in taps))
    return replace(c, tile=row, batch=c.batch[:-1], order=order)


def _names(e: Expr) -> set[str]:
    return {n.name for n in walk(e) if isinstance(n, Index)}


def _width(extent: Dim, lanes: int) -> int:
    """Width of a tile if `B` is not packed: whole vectors, and nothing read past the end of a row."""
    if not isinstance(extent, int):
        return 0
    for width in (2 * lanes, lanes, lanes // 2, lanes // 4):
        if width and extent >= width:
            return width
    return 0


def _unrolled(extent: Dim, wanted: int, sums: int) -> int:
    """The unroll factor of the innermost reduced axis: the user's, all of a short one, or a divisor.

    A test for the end in the innermost loop costs more than unrolling gains, and the sums of a large tile hide what the
    loop takes. By 2 in place of 8, convolutions of 24 sums run as fast (0.98 to 1.01, eight nets), and Halide and LLVM
    compile them with 0.55 to 0.65 of the instructions (Zen 4). Of 12 sums, with AVX2, a SqueezeNet would take 1.04.

    Args:
        extent: of the axis.
        wanted: by the user, or 0.
        sums: vectors of the tile.
    """
    if not isinstance(extent, int):
        return 1
    if wanted and extent % wanted == 0:
        return wanted
    if sums >= _LARGE and extent % 2 == 0:
        return 2
    return extent if extent <= 8 else max(k for k in range(1, 9) if extent % k == 0)


def _tile(
    s: TeStage,
    acc: TeStage,
    c: Contraction,
    width: int,
    lanes: int,
    rows: int,
    facts: ScheduleFacts,
) -> Directives:
    out = StageSchedule(s)
    here = {a.name: loop for a, loop in zip(acc.axes, out.axes, strict=True)}
    n, m = here[c.lanes], here.get(c.tile)
    size = extent_of(acc, c.lanes)
    packed_tail = "GuardWithIf" if not isinstance(size, int) or size % width else "Auto"
    panels, within = out.split(n, width, packed_tail if c.panel else "ShiftInwards")
    vectors, lane = out.split(within, lanes, into="uv", root=n)
    inner = [lane, vectors]
    loops = [*(here[a] for a in c.batch), panels, *(here[a] for a in c.outer)]
    counts = [tasks(extent_of(acc, a), width if a == c.lanes else 1) for a in (*c.batch, c.lanes, *c.outer)]
    tail = ""
    if m is not None:
        tail = row_tail(extent_of(acc, c.tile), rows)
        tiles, row = out.split(m, rows, tail)
        inner.append(row)
        blocks = None if c.outer else row_blocks(acc, c, width, rows, prod(max(k, 1) for k in counts), facts)
        if blocks is not None:
            block, tiles = out.split(tiles, blocks.tiles, "GuardWithIf", "bo", root=m)
            at = len(c.batch) + (not blocks.outermost)
            loops.insert(at, block)
            counts.insert(at, blocks.count)
        loops.append(tiles)
        counts.append(tasks(extent_of(acc, c.tile), rows))
    out.reorder(*inner, *reversed(loops)).vectorize(lane)
    for loop in inner[1:2] if _rolls(s, tail, facts) else inner[1:]:
        out.unroll(loop)
    parallel(out, loops, counts, _cost(s, acc, c, facts))
    start = StageSchedule(acc).compute_at(s.name, loops[-1])
    _start(
        start,
        c,
        width,
        lanes,
        aligned=bool(c.panel) and packed_tail != "Auto",
        rows=rows if tail == "GuardWithIf" else 0,
    )
    update = _update(acc, c, lanes, rows * width // lanes, facts)
    streams = c.panel and c.tile
    fetch = fetch_ahead(acc, c.b.source, len(c.b.index) + bool(c.dot), facts) if streams else []
    return [*out.directives, *start.directives, *update, *fetch]


def _rolls(s: TeStage, tail: str, facts: ScheduleFacts) -> bool:
    """Whether what follows the sums is a loop over the rows of a tile, not copies.

    Copies of a sigmoid for 8 rows are longer than the product, and so are shorter copies, each with a test for the end
    of rows. As loops, such kernels compile in 0.77 of the time (AVX-512; as before with AVX2), and eight models run in
    0.98 to 1.02 of it (Zen 4). A lone bias or activation is not worth the way of sums through memory.
    """
    nodes = [n for x in (s, *facts.inlined_into(s)) if not isinstance(x.expr, Reduce) for n in walk(x.expr)]
    if any(isinstance(n, Call) and n.fn not in _SHORT for n in nodes):
        return True
    return tail == "GuardWithIf" and sum(n.dtype != I64 for n in nodes if isinstance(n, (Binary, Call, Select))) > 1


def _start(start: StageSchedule, c: Contraction, width: int, lanes: int, *, aligned: bool, rows: int) -> None:
    """The initial tile: zeros in registers. `rows` bounds its rows, if the last tile may have fewer."""
    n = start.loop(c.lanes)
    others = [x for x in start.axes if x != n]
    if others:
        start.reorder_storage(n, *reversed(others))
    if aligned:
        start.align_bounds(n, width)
    start.bound_extent(n, width)
    if rows:
        start.bound_extent(start.loop(c.tile), rows)
    vectors, lane = start.split(n, lanes, into="uv")
    start.reorder(lane, vectors, *reversed(others)).vectorize(lane).unroll(vectors)
    if c.tile:
        start.unroll(start.loop(c.tile))


def _update(acc: TeStage, c: Contraction, lanes: int, sums: int, facts: ScheduleFacts) -> Directives:
    """The loops in which a tile is summed."""
    update = StageSchedule(acc, update=1)
    tile, dot = ([update.loop(a)] if a else [] for a in (c.tile, c.dot))
    n, order = update.loop(c.lanes), [update.loop(a) for a in c.order]
    rest = [x for x in update.axes if x not in (n, *tile)]
    vectors, lane = update.split(n, lanes, into="wx")
    # Rows are unrolled inside the vectors; the other way round, all broadcast rows would be live at once.
    update.reorder(*dot, lane, vectors, *tile, *order, *reversed(rest))
    if dot:
        update.atomic().vectorize(*dot)
    update.vectorize(lane).unroll(vectors)
    for loop in tile:
        update.unroll(loop)
    in_pairs = isinstance(acc.expr, Reduce) and product_in_pairs(acc.expr) is not None
    wanted = facts.hint.unroll or (_TWOS if c.dot and (c.a.dtype == I16 or in_pairs) else 0)
    if c.order and (times := _unrolled(extent_of(acc, c.order[0]), wanted, sums)) > 1:
        update.unroll(order[0], times)
    return update.directives


def _cost(s: TeStage, acc: TeStage, c: Contraction, facts: ScheduleFacts) -> int:
    """Operations, for `parallel`: a small product finishes before a second thread starts.

    A symbolic row count, especially the pixels of images, is known at run time: the native entry keeps small ones on
    its own thread.
    """
    if facts.hint.parallel is not None:
        return work(s, facts)
    if not facts.skinny and not all(isinstance(n, int) for n in acc.shape):
        return max(work(s, facts), SERIAL)
    products = nominal_count(acc.shape) * nominal_count(a.extent for a in reduce_axes(acc.expr))
    if facts.skinny:
        products = products * FEW_ROWS // nominal(extent_of(acc, c.outer[-1]))
    return 0 if products < _SMALL else work(s, facts)
