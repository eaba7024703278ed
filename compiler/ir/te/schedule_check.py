"""Checks schedules: known directives, on existing stages and loops."""

from __future__ import annotations

from collections.abc import Iterator

from occ.compiler.ir.dim import Sym, lower, symbols
from occ.compiler.ir.te.function import Scatter, TeFunc, TeStage, reduce_axes
from occ.compiler.ir.te.piecewise import along, parts
from occ.compiler.ir.te.schedule import (
    AXIS,
    CALLS,
    FIRST,
    INT,
    LOOP,
    NEW,
    OF_STORAGE,
    SIZE,
    SOURCE,
    STAGE,
    TAIL,
    TAILS,
    TEST,
    Arg,
    AtMost,
    Directive,
)

Scope = tuple[str, int, int]  # a stage, the numbers of its update and of its variant


def schedule_problems(f: TeFunc) -> Iterator[str]:
    """Errors of a schedule, directive by directive, with line numbers if known."""
    if f.halide:
        return
    variants = {0, *(d.variant for d in f.schedule)}
    in_parts = {d.stage: str(d.args[0]) for d in f.schedule if d.call == "in_parts" and d.args}
    loops: dict[Scope, set[str]] = {(s.name, 0, k): {a.name for a in s.axes} for s in f.stages for k in variants}
    for s in f.stages:
        inner = s.over if isinstance(s, Scatter) else reduce_axes(s.expr)
        outer = () if isinstance(s, Scatter) else s.axes
        count = len(parts(along(s, in_parts[s.name]))) if isinstance(s, TeStage) and s.name in in_parts else 1
        here = {a.name for a in (*outer, *inner)}
        loops |= {(s.name, u, k): set(here) for u in range(1, count + 1) for k in variants}
    for d in f.schedule:
        if text := _problem(d, f, loops):
            yield f"{f', line {d.line}' if d.line else ''}: `{d}` {text}"
            return  # later errors may be about loops that it should have made


def _problem(d: Directive, f: TeFunc, loops: dict[Scope, set[str]]) -> str:
    scope = d.stage, d.update, d.variant
    if scope not in loops:
        return f"schedules {d.stage}, which is not a stage"
    if d.call not in CALLS:
        return f"is not a call of a schedule; there are {', '.join(CALLS)}"
    kinds, least = CALLS[d.call]
    if kinds[-1:] == ("...",):
        kinds = kinds[:1] * max(len(d.args), 1)
    if not least <= len(d.args) <= len(kinds):
        return f"takes {', '.join(kinds) or 'nothing'}"
    here = {a.name for a in f.stage(d.stage).axes} if d.call in OF_STORAGE else loops[scope]
    for kind, a in zip(kinds, d.args, strict=False):
        if not _is(kind, a, d, f, here, loops):
            return f"has {a} where it takes {kind}"
    if d.call in ("split", "fuse"):
        gone, made = (d.args[:1], d.args[1:3]) if d.call == "split" else (d.args[:2], d.args[2:])
        loops[scope] = (here - {*map(str, gone)}) | {*map(str, made)}
    return ""


def _is(kind: str, a: Arg, d: Directive, f: TeFunc, here: set[str], loops: dict[Scope, set[str]]) -> bool:
    """Whether an argument is of a kind."""
    if kind == SIZE and isinstance(a, Sym):
        return lower(a) >= 1 and set(symbols(a)) <= set(f.dims)
    if kind in (INT, SIZE, FIRST):
        return isinstance(a, int) and a >= (kind != FIRST)
    if kind == AXIS:
        return a in here
    if kind == NEW:
        return isinstance(a, str) and (a not in here or a in d.args[: 2 if d.call == "fuse" else 1])
    if kind == TEST:
        return isinstance(a, AtMost) and set(symbols(a.left, a.right)) <= set(f.dims)
    if kind == TAIL:
        return a in TAILS
    if kind == STAGE:
        return any(s.name == a for s in f.stages) and a != d.stage
    if kind == LOOP:
        return any(a in found for (stage, *_), found in loops.items() if stage == d.args[0]) or _is_made(d, f)
    assert kind == SOURCE
    return any(p.name == a for p in f.params)


def _is_made(d: Directive, f: TeFunc) -> bool:
    """Whether a later directive makes the loop at which a stage is computed."""
    reader, loop = d.args
    return any(
        loop in (x.args[1:3] if x.call == "split" else x.args[2:])
        for x in f.schedule
        if x.stage == reader and x.call in ("split", "fuse")
    )
