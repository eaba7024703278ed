"""Row blocks of a product, where column panels are too few for all threads, or their stride exceeds the cache."""

from __future__ import annotations

from math import ceil

from occ.compiler.ir.dim import Dim, Symbol, lower, substitute, symbol, symbols, terms_of
from occ.compiler.ir.te.function import TeStage, reduce_axes
from occ.compiler.ir.typical_sizes import nominal, nominal_count
from occ.compiler.passes.schedule.stage_facts import Contraction, ScheduleFacts, element_bits, extent_of
from occ.runtime.dataclass import dataclass

_TASKS = 16  # with fewer, the slowest thread gets much more than its share
_WORTH = 1_000_000  # operations of a task, about 10 us


@dataclass(frozen=True)
class Blocks:
    """How the rows of a product are split.

    Attributes:
        tiles: register tiles of a block.
        count: blocks at the smallest possible extent; 0 if only larger extents have several.
        outermost: whether all panels of columns are computed for one block before the next.
    """

    tiles: int
    count: int
    outermost: bool


def row_blocks(acc: TeStage, c: Contraction, width: int, rows: int, panels: int, facts: ScheduleFacts) -> Blocks | None:
    """The blocks of the rows of `acc`, or None if the panels alone suffice.

    If all weights stay in L2, a block covers all panels: its rows are read from memory once, and its output is
    contiguous. Otherwise a block is a part of a panel. A hint takes precedence.
    """
    hint, near, size = facts.hint, facts.machine.near_bytes, element_bits(acc) // 8
    depth = nominal_count(a.extent for a in reduce_axes(acc.expr))
    columns = nominal(extent_of(acc, c.lanes))
    tiles = ceil(smallest(extent_of(acc, c.tile)) / rows)
    outermost = columns * depth * size <= near
    if hint.outer:
        outermost = hint.outer == "rows"
    if hint.block:
        wanted, least = hint.block, 0
    elif outermost:
        wanted = min(near // 2 // (rows * (depth + columns) * size), ceil(tiles / _TASKS))
        least = _WORTH // (2 * rows * columns * depth)
    elif panels < _TASKS:
        wanted = ceil(tiles * panels / _TASKS)
        least = _WORTH // (2 * rows * width * depth)
    else:
        return None
    block = max(wanted, least, 1)
    if block < tiles:
        return Blocks(block, ceil(tiles / block), outermost)
    return None if isinstance(extent_of(acc, c.tile), int) else Blocks(block, 0, outermost)


def smallest(extent: Dim) -> int:
    """The least that an extent certainly is unless it is 0.

    `64*N` --> 64, `N + 31` --> 31, `100 - N` --> 1
    """
    if isinstance(extent, int):
        return extent
    factors = set.intersection(*({a.name for a, _ in m if isinstance(a, Symbol)} for m, _ in terms_of(extent)))
    found = {n: s for n, s in symbols(extent).items() if n in factors}  # none of them is 0
    at_least = {n: symbol(n, max(s.lo, 1), s.hi, s.divisible_by) for n, s in found.items()}
    bound = lower(substitute(extent, at_least))
    return int(max(bound, 1))
