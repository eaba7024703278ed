"""Memory offsets of a routine whose sizes are known only at run time.

The layout is chosen for typical sizes. What carries over to other sizes is only the order: the offset of each tensor is
the end of the highest of those below it that are alive with it. That is a chain of additions and maxima, and right for
all sizes; for typical ones the arena is as small as with `assign_offsets`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from occ.compiler.ir.typical_sizes import NOMINAL
from occ.compiler.native_entry.plan import Slot
from occ.runtime.buffers import assign_offsets
from occ.runtime.dims import evaluate
from occ.runtime.manifest import DimInfo


def typical(dims: Sequence[DimInfo], names: Sequence[str]) -> dict[str, int]:
    """A value for each symbol within its bounds."""
    found = dict.fromkeys(names, NOMINAL)
    for d in dims:
        n = max(d.lo, NOMINAL if d.hi is None else min(d.hi, NOMINAL))
        found[d.name] = max(n // d.divisible_by, 1) * d.divisible_by
    return found


def order(slots: Sequence[Slot], env: Mapping[str, int]) -> list[tuple[int, list[int]]]:
    """The slots from the bottom of the arena up, each with those that it must be above.

    No other slots alive with it are on top at that time, and what is below one of them in turn is implied.

    Args:
        slots: of a routine.
        env: typical sizes.
    """
    sizes = [max(_evaluate(s, env), 1) for s in slots]
    offsets, _ = assign_offsets(sizes, [(s.first, s.last) for s in slots])
    rising = sorted(range(len(slots)), key=lambda k: (offsets[k], k))
    tops = _Tops(min((s.first for s in slots), default=0), max((s.last for s in slots), default=0) + 1)
    return [(k, tops.add(k, slots[k])) for k in rising]


def orders(slots: Sequence[Slot], env: Mapping[str, int]) -> dict[int, list[tuple[int, list[int]]]]:
    """The slots of each phase, in the order of `order`; the first phase always exists."""
    found: dict[int, list[tuple[int, list[int]]]] = {0: []}
    for phase in sorted({s.phase for s in slots}):
        own = [k for k, s in enumerate(slots) if s.phase == phase]
        found[phase] = [(own[k], [own[p] for p in below]) for k, below in order([slots[k] for k in own], env)]
    return found


class _Tops:
    """The topmost slot at each step, as runs of steps that share one."""

    def __init__(self, first: int, end: int) -> None:
        self._starts, self._tops = [first, end], [-1, -1]  # of each run; the last one is empty

    def add(self, k: int, slot: Slot) -> list[int]:
        """Put a slot on top of those alive with it; returns those that it touches."""
        if slot.first > slot.last:
            return []
        first, last = self._cut(slot.first), self._cut(slot.last + 1)
        touched = set(self._tops[first:last]) - {-1}
        self._starts[first:last], self._tops[first:last] = [slot.first], [k]
        return sorted(touched)

    def _cut(self, step: int) -> int:
        """The run that begins at a step."""
        at = bisect_left(self._starts, step)
        if self._starts[at] != step:
            self._starts.insert(at, step)
            self._tops.insert(at, self._tops[at - 1])
        return at


def _evaluate(s: Slot, env: Mapping[str, int]) -> int:
    try:
        return evaluate(s.size, env)
    except ZeroDivisionError:
        return 1
