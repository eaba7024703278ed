"""Inlines te stages, and chooses which are computed into memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from occ.compiler.ir.dim import product
from occ.compiler.ir.te.expr import Call, Expr, Load, Reduce, Select
from occ.compiler.ir.te.expr_size import Length, length_of
from occ.compiler.ir.te.function import AnyStage, Scatter, TeFunc, TeStage, loads, position, reduce_axes
from occ.compiler.ir.te.index import simplify_stage
from occ.compiler.ir.te.roles import facts_of_role
from occ.compiler.ir.te.walks import of_kind, replace_indices, transform, walk
from occ.compiler.ir.typical_sizes import nominal

_CHEAP_REPEATS = 4  # evaluations per element up to which a stage without elementary functions is recomputed

# Nodes of an expression as written out. In 40 real models the longest have 204 in LLVM code, and 21,962 by this
# estimate in functions for Halide, which shares common subexpressions.
_LONGEST, _LONGEST_SHARED = 1 << 12, 1 << 16


def materialised(f: TeFunc, *, shared: bool = False) -> set[str]:
    """Names of the stages computed into memory; all others are inlined into their readers.

    These are results, scatters, and what inlining would recompute too often. A reduction is stored unless its only
    reader is elementwise: then it becomes the start of that reader's expression. With `shared`, several elementwise
    readers are allowed if all of them end up in one stage, as in `x * sigmoid(x)`: for code that computes it once for
    all of them.
    """
    kept = {r.name for r in f.results} | {
        s.name for s in f.stages if isinstance(s, Scatter) or facts_of_role(s.role).own_memory
    }
    # From the last stage on: whether a reader is itself inlined decides how often a stage is evaluated.
    repeats: dict[str, float] = {}
    homes: dict[str, str] = {}  # for a stage read in place only: the stage in memory that it ends up in, or ""
    for k in reversed(range(len(f.stages))):
        s = f.stages[k]
        sites = _sites(s.name, f.stages[k + 1 :], repeats)
        if s.name in kept:
            repeats[s.name], homes[s.name] = 1.0, s.name
            continue
        assert isinstance(s, TeStage)
        homes[s.name] = _home(s, sites, homes)
        once = shared and homes[s.name] != ""
        alone = homes[s.name] != "" and len({id(r) for r, _, _ in sites}) == 1
        if _may_inline(s, sites, once=once, alone=alone):
            repeats[s.name] = 1.0 if once else max(1.0, sum(n for *_, n in sites) / max(nominal(product(s.shape)), 1))
        else:
            kept.add(s.name)
            repeats[s.name], homes[s.name] = 1.0, s.name
    return kept | _in_one(f, kept, _too_long(f, kept, _LONGEST_SHARED if shared else _LONGEST))


def homes_of(f: TeFunc, name: str, kept: set[str]) -> set[str]:
    """The stages in memory that read a stage, directly or through inlined ones."""
    read, found = {name}, set[str]()
    for s in f.stages:
        if any(n.source in read for n in loads(*s.exprs)):
            (found if s.name in kept else read).add(s.name)
    return found


def _in_one(f: TeFunc, kept: set[str], cut: set[str]) -> set[str]:
    """The stages to cut at so that each reduction is still computed within one stage.

    `c = sum(..), s = sigmoid(c), y = c * s` cannot be cut at `s`, since `y` would compute the sum again: an earlier
    stage takes its place, through which all that is later reads the sum.
    """
    for s in f.stages if cut else ():
        is_sum = isinstance(s, TeStage) and isinstance(s.expr, Reduce) and s.name not in kept
        if is_sum and len(homes := homes_of(f, s.name, kept | cut)) > 1:
            first = next(k for k, t in enumerate(f.stages) if t.name in homes)
            cut -= homes
            earlier = [t.name for t in f.stages[f.stages.index(s) + 1 : first]]
            through = [name for name in earlier if homes_of(f, s.name, kept | cut | {name}) == {name}]
            cut.add(through[-1] if through else s.name)
    return cut


def _too_long(f: TeFunc, kept: set[str], longest: int) -> set[str]:
    """Additional stages to compute into memory, since their readers would become too long.

    Positions looked up in constants, such as those of a Gather, are repeated each time the stage below uses them.
    """
    lengths: dict[str, Length] = {}
    found: set[str] = set()
    for s in f.stages:
        length = length_of(s.exprs, lengths)
        if s.name not in kept and length.nodes > longest:
            found.add(s.name)
        if s.name not in kept | found:
            lengths[s.name] = length
    return found


def _sites(
    name: str, readers: tuple[AnyStage, ...], repeats: Mapping[str, float]
) -> list[tuple[AnyStage, Load, float]]:
    """(reader, load, number of evaluations) for each load of a stage."""
    found: list[tuple[AnyStage, Load, float]] = []
    for reader in readers:
        for e in reader.exprs:
            inner = _reduced_loads(e)
            for load in loads(e):
                if load.source == name:
                    box = product(reader.shape) * product(a.extent for a in (inner.get(id(load)) or ()))
                    found.append((reader, load, nominal(box) * repeats.get(reader.name, 1.0)))
    return found


def _reduced_loads(e: Expr) -> dict[int, tuple]:  # pyright: ignore[reportMissingTypeArgument]
    """Axes of the reduction that contains each load, by id of the load."""
    return {id(n): r.axes for r in of_kind(Reduce, e) for n in of_kind(Load, r.body)}


def _home(s: TeStage, sites: list[tuple[AnyStage, Load, float]], homes: Mapping[str, str]) -> str:
    """The one stage in memory in which all readers of `s` end up, all elementwise and in place; or ""."""
    found: set[str] = set()
    for reader, load, _ in sites:
        in_place = load.index == position(reader.axes) and reader.shape == s.shape and not reduce_axes(reader.exprs[0])
        found.add(homes[reader.name] if in_place else "")
    return found.pop() if len(found) == 1 else ""


def _may_inline(s: TeStage, sites: list[tuple[AnyStage, Load, float]], *, once: bool, alone: bool) -> bool:
    nodes = list(walk(s.expr))
    if any(isinstance(reader, Scatter) for reader, _, _ in sites):
        return not any(isinstance(n, (Reduce, Call)) for n in nodes)
    if any(isinstance(n, Reduce) for n in nodes):
        return once or alone
    if once:
        return True  # all readers need the same element at the same time
    size = max(nominal(product(s.shape)), 1)
    repeats = sum(n for _, _, n in sites) / size
    functions = sum(isinstance(n, Call) and n.fn not in ("neg", "abs", "not") for n in nodes)
    if not any(isinstance(n, Load) for n in nodes) and not functions:
        return True  # constants and index arithmetic
    if functions:
        return repeats <= 1.0
    in_reduction = any(id(load) in _reduced_loads(e) for r, load, _ in sites for e in r.exprs)
    if in_reduction and any(isinstance(n, Select) for n in nodes):
        return repeats <= 1.0  # a border test in the innermost loop costs more than the memory
    return repeats <= _CHEAP_REPEATS


def inline(f: TeFunc, kept: set[str]) -> TeFunc:
    """The function with every stage outside of `kept` inlined into its readers."""
    bodies: dict[str, TeStage] = {}
    stages: list[AnyStage] = []
    for s in f.stages:
        done = _substitute(s, bodies)
        if s.name in kept:
            stages.append(simplify_stage(done))
        else:
            assert isinstance(done, TeStage)
            bodies[s.name] = done
    return replace(f, stages=tuple(stages))


def _substitute(s: AnyStage, bodies: Mapping[str, TeStage]) -> AnyStage:
    def put(e: Expr) -> Expr:
        return transform(
            e, lambda n: _body_at(bodies[n.source], n) if isinstance(n, Load) and n.source in bodies else None
        )

    if isinstance(s, Scatter):
        return replace(s, init=put(s.init), target=tuple(map(put, s.target)), value=put(s.value))
    return replace(s, expr=put(s.expr))


def _body_at(s: TeStage, load: Load) -> Expr:
    return replace_indices(s.expr, {a.name: i for a, i in zip(s.axes, load.index, strict=True)})
