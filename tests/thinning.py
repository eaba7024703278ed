"""`@pytest.mark.thinned`: which cases of a parametrized test `make test` runs, and which it leaves to `make test-more`.

A test with one parameter keeps every third value, or every `every`-th. One with several parameters keeps as many cases as it
takes to have every value of every parameter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def kept(cases: Sequence[Mapping[str, int]], every: int = 3) -> list[bool]:
    """Whether each case stays, by the indices of its parameters' values.

    Parameters that change together, as those of one `parametrize`, count as one.
    """
    columns = {tuple(case[name] for case in cases) for name in (cases[0] if cases else ())}
    if len({tuple(map(column.index, column)) for column in columns}) <= 1:
        return [k % every == 0 for k in range(len(cases))]
    seen = set[tuple[str, int]]()
    found: list[bool] = []
    for case in cases:
        found.append(not case.items() <= seen)
        seen |= case.items() if found[-1] else set()
    return found
