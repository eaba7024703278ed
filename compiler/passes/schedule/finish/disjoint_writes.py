"""Keeps the tasks of parallel loops from writing the same elements, for thread sanitizers.

A tile that does not fit is shifted inwards, over elements of the tile before it, and both compute those from the same
inputs. That is right on all machines: each task stores each element once, from registers, and it is read after the loop
has ended. By definition it is still a data race, which a thread sanitizer reports.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from occ.compiler.ir.dim import Dim
from occ.compiler.ir.te.function import TeFunc, TeStage
from occ.compiler.ir.te.schedule import Directive


def without_overlaps(f: TeFunc) -> TeFunc:
    """The function with the loops whose tasks overlap on one thread, and all others as they are."""
    shared = set(overlapping(f))
    return replace(f, schedule=tuple(d for d in f.schedule if d not in shared)) if shared else f


def overlapping(f: TeFunc) -> list[Directive]:
    """The `parallel` directives of loops in which two tasks write the same elements."""
    definitions: defaultdict[tuple[str, int], list[Directive]] = defaultdict(list)
    for d in f.schedule:
        if not d.update:
            definitions[d.stage, d.variant].append(d)
    extents = {s.name: {a.name: a.extent for a in s.axes} for s in f.stages if isinstance(s, TeStage)}
    return [
        d
        for (stage, _), directives in definitions.items()
        if stage in extents
        for d in _overlapping(directives, extents[stage])
    ]


def _overlapping(directives: list[Directive], extents: dict[str, Dim]) -> list[Directive]:
    """Follow the loops from the axes: iteration counts (0: unknown), and whether the last tile is shifted inwards."""
    count = {axis: n if isinstance(n, int) else 0 for axis, n in extents.items()}
    inwards: dict[str, bool] = dict.fromkeys(extents, False)
    found: list[Directive] = []
    for d in directives:
        if d.call == "split":
            axis, outer, inner = map(str, d.args[:3])
            factor = d.args[3]
            if not isinstance(factor, int):  # nothing shifts these inwards
                inwards[outer] = inwards[inner] = inwards[axis]
                count[outer] = count[inner] = 0
                continue
            rest = count[axis] % factor
            moved = bool(rest) and d.args[4:] in ((), ("Auto",), ("ShiftInwards",))
            # A block of tiles overlaps the previous one only if its last tile, the shifted one, is alone in it.
            inwards[outer] = moved or (inwards[axis] and (not count[axis] or rest == 1 % factor))
            inwards[inner] = inwards[axis]
            count[outer], count[inner] = -(-count[axis] // factor), factor
        elif d.call == "fuse":
            inner, outer, fused = map(str, d.args)
            inwards[fused], count[fused] = inwards[inner] or inwards[outer], count[inner] * count[outer]
        elif d.call == "parallel" and inwards[str(d.args[0])]:
            found.append(d)
    return found
