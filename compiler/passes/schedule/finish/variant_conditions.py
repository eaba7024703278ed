"""Conditions of variants on sizes that are parameters, where Halide would not recognise its own form of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import inf

from occ.compiler.ir.dim import Dim, Func, lower, split_constant, substitute, symbol, terms_of
from occ.compiler.ir.module import Module
from occ.compiler.ir.te.expr import Binary, Expr, binary, wrap
from occ.compiler.ir.te.function import Scatter, TeFunc
from occ.compiler.ir.te.schedule import AtMost
from occ.compiler.ir.te.walks import transform


def name_conditions(m: Module, functions: Mapping[str, TeFunc]) -> dict[str, TeFunc]:
    """Functions whose tests are of one dim each, which the calls in a module give them.

    `te @f<D0, D1> { out[i] = D0*D1 <= D0*max(0, D1 - 1) + 2 ? few[i] : acc[i] } with schedule { out.specialize(..) }` -->
    `te @f<D0, D1, D2> { out[i] = D2 <= 2 ? .. }`, where calls give `D0*D1 - D0*max(0, D1 - 1)` for `D2`. Halide simplifies the
    condition of a choice in other ways than that of a variant, and where the two differ it does not find the one in the other.
    """
    made, told = dict(functions), dict[str, list[Dim]]()
    for name, f in functions.items():
        made[name], told[name] = _named(f)
    for op in m.walk():
        if found := told.get(op.attrs.get("te", "")):
            values = dict(zip(functions[op.attrs["te"]].dims, op.attrs["dims"], strict=True))
            op.attrs["dims"] = (*op.attrs["dims"], *(substitute(d, values) for d in found))
    return made


def _named(f: TeFunc) -> tuple[TeFunc, list[Dim]]:
    """A function with dims for what is tested, and what they stand for."""
    several = {s for s, n in Counter(d.stage for d in f.schedule if d.call == "specialize").items() if n > 1}
    tests = dict.fromkeys(
        t for d in f.schedule for t in d.args if isinstance(t, AtMost) and _is_lost(t, among=d.stage in several)
    )
    units = {v: symbol(f"D{len(f.dims) + k}", _least(v)) for k, v in enumerate(dict.fromkeys(map(_variable, tests)))}
    if not units:
        return f, []
    simple: dict[AtMost, AtMost] = {}
    for t in tests:
        v, const = split_constant(t.left - t.right)
        simple[t] = AtMost(units[v], -const)
    tested = {_condition(old): _condition(new) for old, new in simple.items()}

    def visit(n: Expr) -> Expr | None:
        return tested.get(n) if isinstance(n, Binary) and n.op == "le" else None

    stages = tuple(s if isinstance(s, Scatter) else replace(s, expr=transform(s.expr, visit)) for s in f.stages)
    schedule = tuple(
        replace(d, args=tuple(simple.get(a, a) if isinstance(a, AtMost) else a for a in d.args)) for d in f.schedule
    )
    return replace(f, dims=(*f.dims, *map(str, units.values())), stages=stages, schedule=schedule), list(units)


def _condition(t: AtMost) -> Expr:
    return binary("le", wrap(t.left), wrap(t.right))


def _variable(t: AtMost) -> Dim:
    return split_constant(t.left - t.right)[0]


def _is_lost(t: AtMost, among: bool) -> bool:
    """Whether Halide does not recognise a condition again once it has simplified it.

    One that depends on the least or greatest of sizes; or, among several of a stage, one of more than a single dim,
    whose negation it states in another way once it has dealt with the next. Of the rest it learns how far loops go.
    """
    variable = _variable(t)
    alone = len(found := terms_of(variable)) == 1 and len(mono := found[0][0]) == 1 and mono[0][1] == 1
    return _has_extremes(variable) or (among and not alone)


def _has_extremes(d: Dim) -> bool:
    atoms = [a for mono, _ in terms_of(d) for a, _ in mono]
    return any(isinstance(a, Func) and (a.name != "floordiv" or any(map(_has_extremes, a.args))) for a in atoms)


def _least(d: Dim) -> int:
    least = lower(d)
    return int(least) if least > -inf else -(1 << 31)
