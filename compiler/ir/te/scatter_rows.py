"""The axes of scatters along which each element is written at its own position, and running combinations."""

from __future__ import annotations

from occ.compiler.ir.dtype import I64
from occ.compiler.ir.te.expr import Expr, Index, literal, maximum
from occ.compiler.ir.te.function import Scatter
from occ.compiler.ir.te.walks import replace_indices, walk

RUNNING = "running_"  # and `add` or `mul`: kinds of scatters


def running(s: Scatter) -> str | None:
    """How each element is combined with the one written a step before: `add`, `mul`, or None if it is not."""
    return s.combine.removeprefix(RUNNING) if s.combine.startswith(RUNNING) else None


def place_before(s: Scatter) -> tuple[Expr, ...]:
    """Where a running combination wrote the element before; at the first step, its own place."""
    first = Index(s.over[0].name)
    back = maximum(first - 1, literal(0, I64))
    return tuple(replace_indices(e, {first.name: back}) for e in s.target)


def passed_on(s: Scatter) -> dict[str, str]:
    """The result's axes, by the axes of `over` that map to the same position.

    `y[i, j] = scatter[u, v](..; p[u], v; ..)` --> `{"v": "j"}`. No two steps along them write one element, so their
    order is free. Empty if no other axis is left. The axis of a running combination is none of them.
    """
    found: dict[str, str] = {}
    for u in s.over[1:] if running(s) else s.over:
        places = [k for k, e in enumerate(s.target) if any(n == Index(u.name) for n in walk(e))]
        if len(places) == 1 and s.target[places[0]] == Index(u.name) and s.axes[places[0]].extent == u.extent:
            found[u.name] = s.axes[places[0]].name
    return found if len(found) < len(s.over) else {}
