"""A variant for products of bytes with at least a block of rows, for processors that multiply tiles (AMX)."""

from __future__ import annotations

from occ.compiler.ir.te.function import TeFunc, TeStage
from occ.compiler.ir.te.schedule import AtMost
from occ.compiler.passes.rules.schedule_rule import Declined, made_by, marked
from occ.compiler.passes.schedule.rules.packed_contraction import packed_contraction
from occ.compiler.passes.schedule.rules.tile_products import block_rows, tile_loops
from occ.compiler.passes.schedule.stage_facts import ScheduleFacts, contraction, extent_of
from occ.compiler.passes.schedule.variants.skinny_gemm import between, skinny_gemm
from occ.compiler.passes.schedule.variants.variant import with_variant
from occ.compiler.targets.machine import Machine


def tile_rows(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Products of bytes by a symbolic number of rows: a second schedule, in tiles, from a block on.

    With fewer rows, tiles would read past the last one; those have the variants of `skinny_gemm`.

    `out[i<N, j] = acc[i, j]` --> `out[i<N, j] = 32 <= N ? acctile[i, j] : acc[i, j]`
    """
    if not machine.tiles:
        return Declined("the processor multiplies no tiles")
    for s in f.stages:
        acc = _product(s, f) if isinstance(s, TeStage) else None
        if acc is None or not isinstance(s, TeStage):
            continue
        found = contraction(acc, f)
        assert found is not None, "it has rows"
        few = skinny_gemm(f, machine)
        onto = f if isinstance(few, Declined) else marked(few, skinny_gemm.__name__)
        test = AtMost(block_rows(found), extent_of(acc, found.tile))
        loops = lambda again, alone: tile_loops(again, ScheduleFacts(alone, machine, full_tile=True))
        made = with_variant(f, s, between(f, s, acc), test, loops, onto=onto, suffix="tile")
        if made is not onto:
            return made
    return Declined("it has no product of bytes by weights in fours of a symbolic number of rows")


def _product(s: TeStage, f: TeFunc) -> TeStage | None:
    """The product of a symbolic number of rows that is computed in the loops of `s`."""
    inside = {d.stage for d in f.schedule if d.call == "compute_at" and d.args[0] == s.name}
    for acc in f.stages:
        if (
            acc.name not in inside
            or not isinstance(acc, TeStage)
            or made_by(f, acc.name) != packed_contraction.__name__
        ):
            continue
        found = contraction(acc, f)
        if found is not None and found.tile and not isinstance(extent_of(acc, found.tile), int):
            return acc
    return None
