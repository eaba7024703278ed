"""Variants for skinny matrix products: few rows, in a number known only at run time."""

from __future__ import annotations

from dataclasses import replace

from occ.compiler.ir.dim import Dim, lower
from occ.compiler.ir.te.function import AnyStage, TeFunc, TeStage, loads
from occ.compiler.ir.te.roles import CONV
from occ.compiler.ir.te.schedule import AtMost
from occ.compiler.passes.rules.schedule_rule import Declined, made_by
from occ.compiler.passes.schedule.loops import Directives, tile_cost
from occ.compiler.passes.schedule.normalise.pack_rhs import unpacked
from occ.compiler.passes.schedule.rules.packed_contraction import packed_contraction, product_loops
from occ.compiler.passes.schedule.rules.window import window_loops
from occ.compiler.passes.schedule.stage_facts import (
    FEW_ROWS,
    ScheduleFacts,
    contraction,
    element_bits,
    extent_of,
    facts_of,
)
from occ.compiler.passes.schedule.variants.variant import with_variant
from occ.compiler.targets.machine import Machine

_HALF = 4  # rows of a lower tile, or 3 of one of 4
_HIDDEN = 8  # sums of a tile that hide the latency of a multiply-add


def skinny_gemm(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Products with possibly few rows: a second schedule, row by row, and one with a lower tile.

    If the number of rows is symbolic, tiles are computed whole, so one row, as in a recurrence, takes as long as a
    tile. With `FEW_ROWS` rows or fewer the product is computed row by row instead, or with one if there are lower tiles
    of packed weights: 2 rows of [576, 1536] take 100 us row by row, in a tile of 3 69. In lower tiles where those waste
    less: 6 rows of [576, 1536] in tiles of 4 take 143 us, in tiles of 3 115 (x86-64-v3).

    `out[i<N, j] = acc[i, j]` --> `out[i<N, j] = N <= 2 ? accfew[i, j] : half <= 0 ? acchalf[i, j] : acc[i, j]`, where
    `half` is what the lower tiles take more.
    """
    for s in f.stages:
        acc = _guarded_product(s, f)
        if acc is not None and isinstance(s, TeStage):
            made = _with_few(f, _with_half(f, s, acc, machine), s, acc, machine)
            return Declined(f"there are never {FEW_ROWS} rows or less") if made is f else made
    return Declined(
        f"it has no product, but for convolutions, of a symbolic number of rows that may be {FEW_ROWS} or less"
    )


def _guarded_product(s: AnyStage, f: TeFunc) -> TeStage | None:
    """The product computed in the loops of `s` in tiles of rows with a guarded tail."""
    inside = {d.stage for d in f.schedule if d.call == "compute_at" and d.args[0] == s.name}
    bounded = {(d.stage, d.args[0]) for d in f.schedule if d.call == "bound_extent"}
    for acc in f.stages:
        if acc.name not in inside or not isinstance(acc, TeStage) or acc.role == CONV:
            continue  # images have more positions than that
        found = contraction(acc, f)
        if (
            found is None
            or (acc.name, found.tile) not in bounded
            or made_by(f, acc.name) != packed_contraction.__name__
        ):
            continue
        rows = extent_of(acc, found.tile)
        if not isinstance(rows, int) and lower(rows) <= FEW_ROWS:
            return acc
    return None


def _with_half(f: TeFunc, s: TeStage, acc: TeStage, machine: Machine) -> TeFunc:
    """A variant for lower tiles: a GRU of 80 with a batch of 3 gains 80 %."""
    found = contraction(acc, f)
    assert found is not None, "it has a tile"
    bounds = {d.args[0]: d.args[1] for d in f.schedule if (d.stage, d.call) == (acc.name, "bound_extent")}
    tile, width = bounds[found.tile], bounds[found.lanes]
    if machine.rows or not isinstance(tile, int) or not isinstance(width, int):
        return f
    rows = min(_HALF, tile - 1)
    low = replace(machine, rows=rows)
    test = _half_pays(extent_of(acc, found.tile), tile, rows, width // machine.lanes(max(element_bits(acc), 32)))
    if test is None:
        return f

    def half(again: TeStage, alone: TeFunc) -> Directives | Declined:
        return product_loops(again, facts_of(alone, low))

    return with_variant(f, s, between(f, s, acc), test, half, suffix="half")


def _half_pays(count: Dim, tile: int, rows: int, vectors: int) -> AtMost | None:
    """The condition on a number of rows under which a lower tile takes less time; None if it never does.

    A lower tile of too few sums waits for each multiply-add, and pays only where one such tile is enough.
    """
    if tile >= _HALF and rows * vectors >= _HIDDEN:
        return AtMost(tile_cost(count, rows), tile_cost(count, tile))
    few, half = (AtMost(count, n).simplest for n in (FEW_ROWS, _HALF))
    return None if tile < 2 * _HALF or half == few else half  # of `5*N` rows, no N gives 3 to 4


def _with_few(f: TeFunc, onto: TeFunc, s: TeStage, acc: TeStage, machine: Machine) -> TeFunc:
    found = contraction(acc, f)
    assert found is not None, "it has a tile"
    direct = unpacked(acc, f)
    test = AtMost(extent_of(acc, found.tile), FEW_ROWS if onto is f or direct is not acc else 1)

    def few(again: TeStage, alone: TeFunc) -> Directives | Declined:
        facts = ScheduleFacts(alone, machine, skinny=True)
        made = product_loops(again, facts)
        return window_loops(again, facts) if isinstance(made, Declined) and direct is not acc else made

    return with_variant(f, s, [direct if x is acc else x for x in between(f, s, acc)], test, few, onto=onto)


def between(f: TeFunc, s: TeStage, acc: TeStage) -> list[TeStage]:
    """The product and the inlined stages through which `s` reads it."""
    stored = {r.name for r in f.results} | {d.stage for d in f.schedule if d.call.startswith("compute_")}
    found = {acc.name: acc}
    for x in f.stages:
        if x is s or x.name in stored or not isinstance(x, TeStage):
            continue
        if any(n.source in found for n in loads(x.expr)):
            found[x.name] = x
    return list(found.values())
