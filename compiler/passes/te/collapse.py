"""Collapses axes: drops extents of 1, and merges axes that are always indexed together.

`out[n<2, c<8, y<4, x<4] = p[n, c, y, x] + b[c]` --> `out[n<2, c<8, i<16] = p[n, c, i] + b[c]`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from occ.compiler.ir.dim import Dim
from occ.compiler.ir.te.expr import ORDERED, Axis, Expr, Index, Load, Reduce
from occ.compiler.ir.te.function import AnyStage, Param, Scatter, TeFunc, TeStage
from occ.compiler.ir.te.roles import facts_of_role
from occ.compiler.ir.te.walks import children, transform, walk
from occ.compiler.ir.types import TensorType

Pair = tuple[str, int]  # (parameter, stage or first axis of a reduction; position of the first of two adjacent dims)


def collapse(f: TeFunc) -> TeFunc:
    """The function with as few axes as possible. Shapes of parameters and results change, their bytes do not."""
    f = _drop_units(f)
    mergeable = _mergeable(f)
    return _merge(f, mergeable) if mergeable else f


def _fixed(f: TeFunc) -> set[str]:
    """Sources whose shape must not change: tiled layouts, scatter targets, stages whose role keeps unit axes."""
    names = {p.name for p in (*f.params, *f.results) if not p.type.layout.is_row_major}
    for s in f.stages:
        if isinstance(s, Scatter):
            names |= {s.name, *(n.source for e in s.exprs for n in walk(e) if isinstance(n, Load))}
        elif any(s.axes[k].extent == 1 for k in facts_of_role(s.role).keeps_axes):
            names |= {x.name for x in f.stages}
    return names


def _retype(f: TeFunc, runs: dict[str, list[list[int]]]) -> TeFunc:
    """The function with adjacent dims of parameters and results merged in runs."""

    def of(p: Param) -> Param:
        if p.name not in runs:
            return p
        whole = dict(p.type.layout.within)
        shape = tuple(_total([p.type.dims[k] for k in run]) for run in runs[p.name])
        found = {
            k: _total([whole[run[0]], *(p.type.dims[a] for a in run[1:])])
            for k, run in enumerate(runs[p.name])
            if run[0] in whole
        }
        assert len(found) == len(whole), "an axis of a part was merged with one that it has to stay apart from"
        return Param(p.name, TensorType(p.type.dtype, shape, replace(p.type.layout, within=tuple(found.items()))))

    return replace(f, params=tuple(map(of, f.params)), results=tuple(map(of, f.results)))


def _drop_units(f: TeFunc) -> TeFunc:
    """Without the dims of extent 1; their index is always 0."""
    fixed = _fixed(f)
    cut = _cut(f)
    keep = {
        name: [k for k, n in enumerate(shape) if n != 1 or (name, k) in cut]
        for name, shape in f.shapes.items()
        if name not in fixed
    }

    def of(e: Expr) -> Expr:
        def visit(n: Expr) -> Expr | None:
            if isinstance(n, Load) and n.source in keep:
                return Load(n.source, tuple(n.index[k] for k in keep[n.source]), n.dtype)
            if isinstance(n, Reduce) and any(a.extent == 1 for a in n.axes) and n.kind not in ORDERED:
                axes = tuple(a for a in n.axes if a.extent != 1)
                return Reduce(n.kind, axes, n.body, n.dtype) if axes else n.body
            return None

        return transform(e, visit)

    stages: list[AnyStage] = []
    for s in f.stages:
        if isinstance(s, Scatter):
            stages.append(replace(s, init=of(s.init), target=tuple(map(of, s.target)), value=of(s.value)))
        else:
            axes = tuple(s.axes[k] for k in keep[s.name]) if s.name in keep else s.axes
            stages.append(replace(s, axes=axes, expr=of(s.expr)))
    return _retype(replace(f, stages=tuple(stages)), {name: [[k] for k in ks] for name, ks in keep.items()})


def _cut(f: TeFunc) -> set[Pair]:
    """Dims of parameters and results that are longer in the tensor that contains them."""
    return {(p.name, k) for p in (*f.params, *f.results) for k, _ in p.type.layout.within}


def _mergeable(f: TeFunc) -> set[Pair]:
    """All pairs of adjacent dims that can be merged, as a greatest fixpoint: start with all, remove conflicts."""
    fixed = _fixed(f)
    alive = {(name, k) for name, shape in f.shapes.items() if name not in fixed for k in range(len(shape) - 1)}
    for name, k in _cut(f):  # a part is not contiguous across that axis, which may lead one if the run is constant
        alive.discard((name, k - 1))
        if not all(isinstance(n, int) for n in f.shapes[name][k + 1 :]):
            alive.discard((name, k))
    alive |= {(r.axes[0].name, k) for s in f.stages if isinstance(s, TeStage) for r in walk(s.expr)
              if isinstance(r, Reduce) and r.kind not in ORDERED for k in range(len(r.axes) - 1)}  # fmt: skip
    links: dict[Pair, set[Pair]] = {}
    for s in f.stages:
        if isinstance(s, TeStage):
            _collect(s, f, alive, links)
    changed = True
    while changed:
        changed = False
        for pair in list(alive):
            if not links.get(pair, set()) <= alive:
                alive.discard(pair)
                changed = True
    return alive


def _collect(s: TeStage, f: TeFunc, alive: set[Pair], links: dict[Pair, set[Pair]]) -> None:
    """Link each pair of dims to the pairs it must merge with, and remove those used separately."""
    groups = [(s.name, s.axes)] + [(r.axes[0].name, r.axes) for r in walk(s.expr) if isinstance(r, Reduce) and r.axes]
    place = {a.name: (group, k) for group, axes in groups for k, a in enumerate(axes)}
    extents = {a.name: a.extent for _, axes in groups for a in axes}

    def strike(axis: str) -> None:
        group, k = place[axis]
        alive.difference_update({(group, k - 1), (group, k)})

    if isinstance(s.expr, Index):  # a position itself, such as that of a token
        strike(s.expr.name)
    for node in walk(s.expr):
        if isinstance(node, Load):
            _collect_load(node, f.shapes[node.source], place, extents, alive, links, strike)
        elif not isinstance(node, Index):
            for child in children(node):  # an axis used as a value, not as a whole index of a load
                if isinstance(child, Index):
                    strike(child.name)


def _collect_load(load: Load, shape: Sequence[Dim], place, extents, alive, links, strike) -> None:
    where = [
        place.get(i.name) if isinstance(i, Index) and extents[i.name] == n else None
        for i, n in zip(load.index, shape, strict=True)
    ]
    for d in range(len(shape) - 1):
        a, b = where[d], where[d + 1]
        if a is None or b is None or a[0] != b[0] or b[1] != a[1] + 1:
            alive.discard((load.source, d))
        else:
            links.setdefault((load.source, d), set()).add(a)
            links.setdefault(a, set()).add((load.source, d))
    for d, (i, found) in enumerate(zip(load.index, where, strict=True)):
        if not isinstance(i, Index):
            continue
        if found is None:
            strike(i.name)
            continue
        group, k = found
        if not (d > 0 and where[d - 1] == (group, k - 1)):
            alive.discard((group, k - 1))
        if not (d + 1 < len(where) and where[d + 1] == (group, k + 1)):
            alive.discard((group, k))


def _runs(name: str, count: int, mergeable: set[Pair]) -> list[list[int]]:
    """Positions of dims in runs that become one dim each."""
    runs: list[list[int]] = []
    for k in range(count):
        if k and (name, k - 1) in mergeable:
            runs[-1].append(k)
        else:
            runs.append([k])
    return runs


def _merge(f: TeFunc, mergeable: set[Pair]) -> TeFunc:
    runs = {name: _runs(name, len(shape), mergeable) for name, shape in f.shapes.items()}

    def axes_of(name: str, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(
            Axis(axes[run[0]].name, _total([axes[k].extent for k in run])) for run in _runs(name, len(axes), mergeable)
        )

    def of(e: Expr) -> Expr:
        def visit(n: Expr) -> Expr | None:
            if isinstance(n, Load):
                return Load(n.source, tuple(n.index[run[0]] for run in runs[n.source]), n.dtype)
            if isinstance(n, Reduce) and n.axes:
                return Reduce(n.kind, axes_of(n.axes[0].name, n.axes), n.body, n.dtype)
            return None

        return transform(e, visit)

    stages: list[AnyStage] = []
    for s in f.stages:
        if isinstance(s, Scatter):
            stages.append(s)
        else:
            stages.append(replace(s, axes=axes_of(s.name, s.axes), expr=of(s.expr)))
    fixed = _fixed(f)
    return _retype(replace(f, stages=tuple(stages)), {n: r for n, r in runs.items() if n not in fixed})


def _total(extents: Sequence[Dim]) -> Dim:
    total: Dim = 1
    for e in extents:
        total = total * e
    return total
