"""Loads on one side of a choice stay there: no schedule reads them where the other side is taken.

Each operand of the kernels in the tests of schedules is cut shorter by an element, and 0 is taken for what it lacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import machines
import pytest

from occ.compiler.frontend.text import parse
from occ.compiler.ir.dtype import I64
from occ.compiler.ir.te.bounds_check import out_of_bounds_read
from occ.compiler.ir.te.expr import Expr, Load, binary, cast, literal, where, wrap
from occ.compiler.ir.te.function import Param, TeFunc, TeStage
from occ.compiler.ir.te.roles import COLUMNS, SQUARES
from occ.compiler.ir.te.walks import transform
from occ.compiler.passes.base import Context
from occ.compiler.passes.lower.schedule import scheduled
from occ.compiler.passes.manager import Manager
from occ.compiler.passes.registry import parse_pipeline
from occ.compiler.targets.registry import get_target

TEXTS = sorted((Path(__file__).parents[1] / "passes").glob("schedule_*.occ"))
MACHINES = tuple(map(machines.named, machines.TARGETS))
SIZES = (6, 37)  # of each symbol


@cache
def functions(text: Path) -> tuple[TeFunc, ...]:
    """The te functions of a test of schedules, before they have one."""
    before, _, _ = text.read_text().partition("# -->")
    m = parse(before)
    passes = parse_pipeline("lower-te" if "layout-weights" not in before.splitlines()[0] else "layout-weights,lower-te")
    Manager().run(m, passes, Context(get_target("cpu"), MACHINES[0]))
    return tuple(m.te.values())


def shorter(f: TeFunc, p: Param, axis: int, *, first: bool) -> TeFunc:
    """The function of a parameter that lacks the first or the last element along an axis, for which 0 is taken."""
    dims = list(p.type.dims)
    dims[axis] -= 1
    cut = replace(p, type=p.type.with_shape(tuple(dims)))

    def guarded(n: Expr) -> Expr | None:
        if not isinstance(n, Load) or n.source != p.name:
            return None
        i, zero = cast(I64, n.index[axis]), literal(0, n.dtype)
        if not first:
            return where(binary("lt", i, wrap(dims[axis])), n, zero)
        return where(binary("le", wrap(1), i), replace(n, index=(*n.index[:axis], i - 1, *n.index[axis + 1 :])), zero)

    stages = tuple(
        replace(s, expr=transform(s.expr, guarded))
        if isinstance(s, TeStage)
        else replace(s, value=transform(s.value, guarded), init=transform(s.init, guarded))
        for s in f.stages
    )
    return replace(f, params=tuple(cut if q is p else q for q in f.params), stages=stages)


def cases(text: Path) -> Iterator[TeFunc]:
    for f in functions(text):
        for p in f.params:
            axes = [k for k, n in enumerate(p.type.dims) if n != 1 and not p.type.layout.tiles]
            yield from (shorter(f, p, k, first=first) for k in axes for first in (True, False))


@pytest.mark.parametrize("text", TEXTS, ids=lambda t: t.stem)
def test_no_schedule_reads_where_the_other_side_is_taken(text: Path) -> None:
    for f in cases(text):
        for size in SIZES:
            assert not out_of_bounds_read(f, dict.fromkeys(f.dims, size))
        for machine in MACHINES:
            made = scheduled(f, machine)
            for size in SIZES:
                assert not out_of_bounds_read(made, dict.fromkeys(made.dims, size)), (f, machine)


def test_the_kernels_have_what_reads_ahead() -> None:
    roles = {
        s.role
        for text in TEXTS
        for f in functions(text)
        for s in scheduled(f, MACHINES[0]).stages
        if isinstance(s, TeStage)
    }
    assert {COLUMNS, SQUARES} <= roles
