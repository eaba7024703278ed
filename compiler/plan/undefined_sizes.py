"""Checks that every size of a plan is defined by inputs or by earlier steps."""

from __future__ import annotations

from collections.abc import Iterator

from occ.runtime.dims import DimExpr, symbols
from occ.runtime.manifest import Manifest, Plan


def undefined_sizes(m: Manifest) -> list[str]:
    """Symbols in a manifest that no input, step or caller of a function defines.

    Those of functions are also known to whoever runs them. Device parts are artifacts of their own, which report
    theirs.
    """
    if m.engine != "native":
        return []
    functions = m.functions.values()
    plans = [m.plan, *(f.plan for f in functions)]
    told = {e for t in (*m.inputs, *(t for f in functions for t in f.inputs)) for e in t.shape if isinstance(e, str)}
    told |= {name for p in plans for s in p.steps for *_, name in s.binds}
    used = [e for t in m.outputs for e in t.shape] + [e for p in plans for e in _sizes(p)]
    found = sorted({s for e in used for s in symbols(e)} - told)
    return list(dict.fromkeys([*found, *(s for k in range(len(m.special)) for s in undefined_sizes(m.at(k)))]))


def _sizes(plan: Plan) -> Iterator[DimExpr]:
    for b in plan.buffers:
        yield from (*b.shape, *b.strides, b.start)
    for s in plan.steps:
        yield from s.dims
