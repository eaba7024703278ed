"""A variant for transpositions of symbolic lengths that have at least one block of squares."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from occ.compiler.ir.dim import minimum
from occ.compiler.ir.te.function import TeFunc, TeStage
from occ.compiler.ir.te.schedule import AtMost
from occ.compiler.passes.rules.schedule_rule import Declined, made_by
from occ.compiler.passes.schedule.rules.elementwise import across, elementwise
from occ.compiler.passes.schedule.rules.transpose_tiles import block_side, square_loops, with_squares
from occ.compiler.passes.schedule.stage_facts import ScheduleFacts, facts_of
from occ.compiler.passes.schedule.variants.variant import with_variant
from occ.compiler.targets.machine import Machine


def full_squares(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Transpositions with possibly long sides: a second schedule in squares, for sides of at least a cache line.

    Their last block is shifted inwards, so that none is partial.

    Sapphire Rapids, 64 planes of 56x56 to channels last: 51 --> 37 us.
    """
    *before, s = f.stages
    if not isinstance(s, TeStage) or made_by(f, s.name) != elementwise.__name__:
        return Declined("it is not elementwise")
    facts = facts_of(f, machine)
    *made, last = with_squares(s, facts, any_size=True)
    if not made:
        return Declined("it reads no tensor across rows")
    sides = [a.extent for a in s.axes if a.name in (across(s, facts), s.axes[-1].name)]
    shortest = reduce(minimum, (n for n in sides if not isinstance(n, int)))
    test = AtMost(block_side(s, machine), shortest)
    loops = lambda x, alone: square_loops(x, ScheduleFacts(alone, machine, full_tile=True))
    return with_variant(replace(f, stages=(*before, *made, last)), last, made, test, loops, suffix="squares")
