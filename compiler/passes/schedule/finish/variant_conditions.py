"""Conditions of variants as size parameters, where Halide would not recognise its own form of them."""

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
    """Replace each size tested by a variant's condition by a size parameter, which callers compute.

    `te @f<D0, D1> { out[i] = D0*D1 <= D0*max(0, D1 - 1) + 2 ? few[i] : acc[i] } with schedule { out.specialize(..) }`
    --> `te @f<D0, D1, D2> { out[i] = D2 <= 2 ? .. }`, with calls that pass `D0*D1 - D0*max(0, D1 - 1)` for `D2`. Halide
    simplifies the condition of a select differently from a `specialize` condition, and if the two differ it does not
    match them.
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
    """A function with dims for what is tested, and the expressions that they stand for."""
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
    """Whether Halide fails to recognise a condition after simplifying it.

    That happens if it contains a min or max of sizes, or a sum with products of them; or, among several on a stage,
    more than a single dim, since Halide rewrites its negation while processing the next. From the other conditions it
    derives loop bounds.
    """
    variable = _variable(t)
    alone = len(found := terms_of(variable)) == 1 and len(mono := found[0][0]) == 1 and mono[0][1] == 1
    is_sum_of_products = len(found) > 1 and any(len(mono) > 1 for mono, _ in found)
    return _has_extremes(variable) or is_sum_of_products or (among and not alone)


def _has_extremes(d: Dim) -> bool:
    atoms = [a for mono, _ in terms_of(d) for a, _ in mono]
    return any(isinstance(a, Func) and (a.name != "floordiv" or any(map(_has_extremes, a.args))) for a in atoms)


def _least(d: Dim) -> int:
    least = lower(d)
    return int(least) if least > -inf else -(1 << 31)
