"""The memory of a native entry: what is alive together does not overlap, whatever the sizes turn out to be."""

from __future__ import annotations

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from occ.compiler.native_entry.arena import order, typical
from occ.compiler.native_entry.plan import Slot
from occ.runtime.dims import evaluate
from occ.runtime.manifest import DimInfo


@st.composite
def slots(draw: st.DrawFn) -> tuple[list[Slot], list[int]]:
    made = []
    for _ in range(draw(st.integers(1, 12))):
        first = draw(st.integers(0, 10))
        last = draw(st.integers(first, 10))
        size = draw(st.sampled_from([0, 64, 1000, "n", ["*", "n", "m"], ["+", "m", 7], ["max", "n", 100]]))
        made.append(Slot(size, first, last))
    return made, [draw(st.integers(0, 5000)) for _ in range(2)]


@settings(max_examples=300)
@given(slots())
def test_what_is_alive_together_does_not_overlap_at_any_size(case: tuple[list[Slot], list[int]]):
    made, (n, m) = case
    env = {"n": n, "m": m}
    offsets: dict[int, int] = {}
    ends: dict[int, int] = {}
    for k, below in order(made, typical([DimInfo("n", "n")], ["n", "m"])):
        offsets[k] = max((ends[p] for p in below), default=0)
        ends[k] = offsets[k] + max(evaluate(made[k].size, env), 1)
    assert set(offsets) == set(range(len(made)))
    for a, p in enumerate(made):
        for b, q in enumerate(made[:a]):
            if p.first <= q.last and q.first <= p.last:
                assert offsets[a] >= ends[b] or offsets[b] >= ends[a]


def test_time_grows_with_the_steps_of_a_plan():
    """Each slot was compared with each: 40,000 would take eight minutes."""
    start = time.process_time()
    made = order([Slot(64, k, k + 2) for k in range(40_000)], {})
    assert len(made) == 40_000
    assert time.process_time() - start < 60
