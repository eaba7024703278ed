"""Where the memory of a routine lies in its arena when sizes are known only at run time.

The layout is chosen for typical sizes. What matters of it at others is only which tensor lies above which: the offset of
each is the end of the highest of those below it that are alive with it. That is a line of additions and maxima, and right
for all sizes; for typical ones the arena is as small as that of `assign_offsets`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from occ.compiler.ir.shape import NOMINAL
from occ.compiler.native_entry.plan import Slot
from occ.runtime.buffers import assign_offsets
from occ.runtime.dims import evaluate
from occ.runtime.manifest import DimInfo


def typical(dims: Sequence[DimInfo], names: Sequence[str]) -> dict[str, int]:
    """A value for each symbol that its bounds allow."""
    found = dict.fromkeys(names, NOMINAL)
    for d in dims:
        n = max(d.lo, NOMINAL if d.hi is None else min(d.hi, NOMINAL))
        found[d.name] = max(n // d.divisible_by, 1) * d.divisible_by
    return found


def order(slots: Sequence[Slot], env: Mapping[str, int]) -> list[tuple[int, list[int]]]:
    """The slots from the bottom of the arena up, each with those that it has to lie above.

    Args:
        slots: of a routine.
        env: typical sizes.
    """
    sizes = [max(_evaluate(s, env), 1) for s in slots]
    offsets, _ = assign_offsets(sizes, [(s.first, s.last) for s in slots])
    rising = sorted(range(len(slots)), key=lambda k: (offsets[k], k))
    made: list[tuple[int, list[int]]] = []
    for at, k in enumerate(rising):
        below: list[int] = []
        for p in reversed(rising[:at]):  # what lies below one of them in turn need not be named
            if _meet(slots[p], slots[k]) and not any(_meet(slots[p], slots[q]) for q in below):
                below.append(p)
        made.append((k, below))
    return made


def _meet(a: Slot, b: Slot) -> bool:
    """Whether both are alive at one step."""
    return a.first <= b.last and b.first <= a.last


def _evaluate(s: Slot, env: Mapping[str, int]) -> int:
    try:
        return evaluate(s.size, env)
    except ZeroDivisionError:
        return 1
