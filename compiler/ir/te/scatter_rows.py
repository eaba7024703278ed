"""Axes that a scatter passes through: those along which each element is written at its own position."""

from __future__ import annotations

from occ.compiler.ir.te.expr import Index
from occ.compiler.ir.te.function import Scatter
from occ.compiler.ir.te.walks import walk


def passed_on(s: Scatter) -> dict[str, str]:
    """The result's axes, by the axes of `over` that map to the same position.

    `y[i, j] = scatter[u, v](..; p[u], v; ..)` --> `{"v": "j"}`. No two steps along them write one element, so their
    order is free. Empty if no other axis is left.
    """
    found: dict[str, str] = {}
    for u in s.over:
        places = [k for k, e in enumerate(s.target) if any(n == Index(u.name) for n in walk(e))]
        if len(places) == 1 and s.target[places[0]] == Index(u.name) and s.axes[places[0]].extent == u.extent:
            found[u.name] = s.axes[places[0]].name
    return found if len(found) < len(s.over) else {}
