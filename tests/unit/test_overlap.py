"""Loops of which two tasks would write the same elements are found, and run on one thread for a thread sanitizer."""

from __future__ import annotations

import pytest

from occ.compiler.frontend.text import parse
from occ.compiler.ir.te.function import TeFunc
from occ.compiler.passes.schedule.finish.disjoint_writes import overlapping, without_overlaps

TEXT = """module @m {{stage="scheduled"}} {{
  te @f[{symbols}](%x: f32[{n},64]) -> (y: f32[{n},64]) {{
    y[i<{n}, j<64] = %x[i, j] + 1.0
    schedule {{ {schedule} }}
  }}
}}"""
INWARDS = "y.split(i, io, ii, 8, ShiftInwards) "


def function(n: int | str, schedule: str) -> TeFunc:
    (f,) = parse(TEXT.format(n=n, schedule=schedule, symbols=n if n == "N" else "")).te.values()
    return f


@pytest.mark.parametrize(
    ("n", "schedule", "overlaps"),
    [
        (20, INWARDS + "y.parallel(io)", True),
        (24, INWARDS + "y.parallel(io)", False),
        (20, INWARDS + "y.parallel(j)", False),
        (20, "y.split(i, io, ii, 8) y.parallel(io)", True),
        (20, "y.split(i, io, ii, 8, GuardWithIf) y.parallel(io)", False),
        ("N", "y.split(i, io, ii, 8, GuardWithIf) y.parallel(io)", False),
        (20, INWARDS + "y.fuse(j, io, both) y.parallel(both)", True),
        (20, INWARDS + "y.split(io, a, b, 2, GuardWithIf) y.parallel(a)", True),  # tiles 0 and 1, and tile 2
        (30, INWARDS + "y.split(io, a, b, 2, GuardWithIf) y.parallel(a)", False),  # tiles 0 and 1, 2 and 3
        (20, INWARDS + "y.split(io, a, b, 2, GuardWithIf) y.parallel(b)", True),
    ],
)
def test_overlapping_tasks_are_found(n: int | str, schedule: str, overlaps: bool):
    f = function(n, schedule)
    parallel = [d for d in f.schedule if d.call == "parallel"]
    assert overlapping(f) == (parallel if overlaps else [])
    kept = [d for d in f.schedule if d.call != "parallel" or not overlaps]
    assert list(without_overlaps(f).schedule) == kept
