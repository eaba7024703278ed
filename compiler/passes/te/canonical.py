"""Canonical names of te functions' dims and stages, so that equal computations compare equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import inf

from occ.compiler.ir import dim
from occ.compiler.ir.build_te import dims_of, occurring
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.dtype import I32
from occ.compiler.ir.te.expr import Axis, Binary, Expr, Index, Load, Reduce, Size, literal, maximum, where, wrap
from occ.compiler.ir.te.function import AnyStage, Param, Scatter, TeFunc, TeStage, loads, reduce_axes
from occ.compiler.ir.te.index import simplify_stage
from occ.compiler.ir.te.walks import transform
from occ.compiler.ir.types import TensorType

Put = Callable[[Dim], Dim]
FLAG = "flag"  # the result that holds the number of the first failed check, or 0


def checks_to_stage(f: TeFunc) -> TeFunc:
    """Adds the checks as a last result: an i32 that is 0, or 1 + the failing check's index."""
    if not f.checks:
        return f
    total: Expr | None = None
    for k, c in enumerate(f.checks):
        failed = where(c.cond, literal(0, I32), literal(k + 1, I32))
        worst: Expr = Reduce("max", c.axes, failed, I32) if c.axes else failed
        total = worst if total is None else maximum(total, worst)
    assert total is not None
    stage = simplify_stage(TeStage(FLAG, (), total, "checks"))
    return replace(f, stages=(*f.stages, stage), results=(*f.results, Param(FLAG, TensorType(I32, ()))), checks=())


def canonical(f: TeFunc) -> tuple[TeFunc, list[Dim], list[str]]:
    """`f` with dims `D0, D1, ...` and with parameters, stages and axes named by position.

    A product or function of dims that always occurs as a whole becomes one dim: its value is known, and anything that
    depends on it is a condition on one size. The same holds for a sum, such as the `h - h//3` of a cropped image, and
    for a function in terms of which others can be written: layers at different depths of a net, with extents such as
    `(h + 1)//2` and `(h + 3)//4`, then share a kernel.

    Returns:
        The function; the values of `D0, D1, ...`; the parameters that `p0, p1, ...` stand for.
    """
    units = _units(f)
    known = {
        n: dim.monomial((s, 1)) for n, s in dim.symbols(*occurring(f.params, f.stages, f.results, f.checks)).items()
    }
    made_dims = {unit: _named(f"D{k}", dim.substitute(unit, known)) for k, unit in enumerate(units)}
    sums = {
        unit: dim.symbol(f"_{d}") for unit, d in made_dims.items() if _is_sum(unit)
    }  # dims of `f` may have names such as D0
    atoms = {
        atom: v for u, v in made_dims.items() if (atom := _atom(u)) is not None
    }  # symbols by name, ignoring bounds
    atoms |= {str(v): made_dims[u] for u, v in sums.items()}

    @cache  # the axes of a function have few extents
    def put(d: Dim) -> Dim:
        for unit, value in sums.items():
            d = dim.in_terms_of(d, unit, value)
        total: Dim = 0
        for mono, coeff in dim.terms_of(d):
            whole = dim.monomial(*mono) if mono else 1
            total = total + coeff * (made_dims[whole] if whole in made_dims else dim.put_atoms(whole, atoms))
        return total

    names = {p.name: f"p{k}" for k, p in enumerate(f.params)}
    names |= {s.name: FLAG if s.name == FLAG else f"{_stem(s.name)}{k}" for k, s in enumerate(f.stages)}
    axes: dict[str, str] = {}
    for s in f.stages:
        letter, inner = ("u", s.over) if isinstance(s, Scatter) else ("r", reduce_axes(s.expr))
        for axis in s.axes:
            axes.setdefault(axis.name, f"i{len(axes)}")
        for axis in inner:
            axes.setdefault(axis.name, f"{letter}{len(axes)}")
    made = replace(
        f,
        dims=tuple(map(str, made_dims.values())),
        params=tuple(_param(p, names, put) for p in f.params),
        results=tuple(_param(r, names, put) for r in f.results),
        stages=tuple(_stage(s, names, axes, put, frozenset(names[p.name] for p in f.params)) for s in f.stages),
    )
    return made, units, [p.name for p in f.params]


def _named(name: str, d: Dim) -> Dim:
    """A symbol with the least value and the divisibility of a dim."""
    least = dim.lower(d)
    return dim.symbol(name, int(least) if 0 < least < inf else 0, None, dim.factor_of(d))


def _units(f: TeFunc) -> list[Dim]:
    """Size parameters of a function, in order: its dims, or larger subexpressions that contain them.

    A subexpression is the monomial that alone contains a dim, or the sum or largest function of dims outside of which
    it does not occur.
    """
    dims = list(dict.fromkeys(occurring(f.params, f.stages, f.results, f.checks)))
    monomials = dict.fromkeys(dim.monomial(*mono) for d in dims for mono, _ in dim.terms_of(d) if mono)
    holders = {name: [m for m in monomials if name in dim.symbols(m)] for name in f.dims}
    sums = _sums(f, dims)
    units: dict[Dim, None] = {}
    for name in f.dims:
        (whole, *more) = holders[name] or [dim.symbol(name)]
        alone = not more and dim.lower(whole) >= 0 and all(holders[n] == [whole] for n in dim.symbols(whole))
        functions = (u for m in (whole, *more) for u in _functions(m, name))
        found = whole if alone else next((u for u in sums if name in dim.symbols(u)), None)
        found = found or next((u for u in functions if _is_all(u, holders)), None)
        units[dim.symbol(name) if found is None else found] = None
    return list(units)


def _is_sum(d: Dim) -> bool:
    return len(dim.terms_of(d)) > 1


def _sums(f: TeFunc, dims: Sequence[Dim]) -> list[Dim]:
    """Sums, minus their constants, that are tensor extents and all that a kernel needs of their dims.

    Distinct sums have distinct dims.
    """
    extents = (d for p in (*f.params, *f.results) for d in p.type.dims)
    found: dict[Dim, None] = {}
    for unit in dict.fromkeys(dim.primitive(v) for v, const in map(dim.split_constant, extents) if const <= 0):
        names = dim.symbols(unit).keys()
        if _is_sum(unit) and all(names.isdisjoint(dim.symbols(u)) for u in found):
            one = dim.symbol("_one")
            if all(names.isdisjoint(dim.symbols(dim.in_terms_of(d, unit, one))) for d in dims):
                found[unit] = None
    return list(found)


def _functions(d: Dim, name: str) -> Iterator[dim.Sym]:
    """The functions in a dim in which a symbol occurs, outermost first."""
    for mono, _ in dim.terms_of(d):
        for atom, _ in mono:
            if isinstance(atom, dim.Func) and name in dim.symbols(*atom.args):
                yield dim.monomial((atom, 1))
                for a in atom.args:
                    yield from _functions(a, name)


def _is_all(unit: dim.Sym, holders: Mapping[str, Sequence[Dim]]) -> bool:
    """Whether a function's value, if not negative, is all that a kernel needs of its symbols."""
    names, atom = dim.symbols(unit).keys(), _atom(unit)
    if atom is None or dim.lower(unit) < 0:
        return False
    one = {atom: dim.symbol("_one")}
    return all(names.isdisjoint(dim.symbols(dim.put_atoms(m, one))) for n in names for m in holders[n])


def _atom(d: Dim) -> str | dim.Func | None:
    """The symbol, by name, or the function that a dim is."""
    match dim.terms_of(d):
        case ((((atom, 1),), 1),):
            return atom if isinstance(atom, dim.Func) else atom.name
        case _:
            return None


def _stem(name: str) -> str:
    stem = name.rstrip("0123456789")
    return stem if stem.endswith("_") else stem + "_"


def _param(p: Param, names: Mapping[str, str], put: Put) -> Param:
    shape = tuple(put(d) for d in p.type.dims)
    return Param(names[p.name], TensorType(p.type.dtype, shape, p.type.layout))


def _stage(
    s: AnyStage, stages: Mapping[str, str], axes: Mapping[str, str], put: Put, given: frozenset[str]
) -> AnyStage:
    """A stage in canonical names, sums and products with what is computed before what is `given`: `x + conv` is `conv + x`."""

    def of_axes(listed: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(axes[a.name], put(a.extent)) for a in listed)

    def visit(n: Expr) -> Expr | None:
        match n:
            case Index():
                return Index(axes[n.name])
            case Size():
                return wrap(put(n.dim))
            case Load():
                return Load(stages[n.source], n.index, n.dtype)
            case Reduce():
                return Reduce(n.kind, of_axes(n.axes), n.body, n.dtype)
            case Binary(op="add" | "mul", lhs=Load() as left, rhs=Load() as right) if left.source in given:
                return n if right.source in given else replace(n, lhs=right, rhs=left)
            case _:
                return None

    def of(e: Expr) -> Expr:
        return transform(e, visit)

    if isinstance(s, Scatter):
        return Scatter(
            stages[s.name], of_axes(s.axes), of(s.init), of_axes(s.over), tuple(map(of, s.target)), of(s.value),
            s.combine, s.note,
        )  # fmt: skip
    return replace(s, name=stages[s.name], axes=of_axes(s.axes), expr=of(s.expr))


def split(f: TeFunc) -> list[TeFunc]:
    """One function for each stage computed into memory, in order; intermediate stages become parameters.

    Every stage of `f` is taken as computed into memory, so `f` is a result of `inline`.
    """
    types = {p.name: p.type for p in f.params} | {r.name: r.type for r in f.results}
    parts: list[TeFunc] = []
    for s in f.stages:
        types.setdefault(s.name, TensorType(s.dtype, s.shape))
        sources = list(dict.fromkeys(ld.source for ld in loads(*s.exprs)))
        params = tuple(Param(n, types[n]) for n in sources)
        result = Param(s.name, types[s.name])
        parts.append(TeFunc(f.name, dims_of(params, [s], [result], ()), params, (s,), (result,)))
    return parts
