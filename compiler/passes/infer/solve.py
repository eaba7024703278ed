"""Solves assumed equalities of sizes for symbols."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, lcm

from occ.compiler.ir import dim
from occ.compiler.ir.dim import Dim, Sym
from occ.compiler.ir.shape import DATA_SYMBOL, depends_on_data


def solve(a: Dim, b: Dim, defined: Mapping[str, int]) -> dict[str, Dim] | None:
    """A substitution of one symbol that makes `a == b` hold, or None.

    `N == M` yields `N -> M`, `N == 3` yields `N -> 3`, `P + S == Q + S` yields `P -> Q`; `S == min(512, S)` and
    `1 == min(1, S)` bound `S`. No size is expressed through one that is known later: sizes of inputs come first, then
    data-dependent ones, in the order of the steps that define them. Such an equality is checked once all of it is
    known.

    Args:
        a, b: the sides of the assumed equality.
        defined: the index of the step that defines a size.
    """
    for x, y in ((a, b), (b, a)):
        if isinstance(x, Sym) and x.is_symbol:
            name = str(x)
            if _known_from(y, defined) > _known_from(x, defined):
                continue
            if name not in dim.symbols(y):
                if (found := _in_place_of(dim.symbols(x)[name], y)) is not None:
                    return found
                continue
            ((mono, _),) = y.terms if isinstance(y, Sym) and len(y.terms) == 1 else ((((x, 1),), 1),)
            atom = mono[0][0]
            if isinstance(atom, dim.Func) and atom.name == "min" and x in atom.args:
                bound = next(v for v in atom.args if v != x)
                if isinstance(bound, int):
                    old = dim.symbols(x)[name]
                    return {
                        name: dim.symbol(
                            name,
                            old.lo,
                            min(bound, int(dim.upper(x))) if old.hi is not None else bound,
                            old.divisible_by,
                        )
                    }
        if y == 1 and (found := _not_empty(x)) is not None:
            return found
    gap = dim.terms_of(a - b)
    plain = [
        m[0][0] for m, c in gap if len(m) == 1 and m[0][1] == 1 and isinstance(m[0][0], dim.Symbol) and abs(c) == 1
    ]
    plain.sort(key=lambda s: not s.name.startswith(DATA_SYMBOL))
    if len(gap) == 2 and len(plain) == 2 and gap[0][1] == -gap[1][1]:
        return _in_place_of(plain[0], dim.monomial((plain[1], 1)))
    return None


def _known_from(d: Dim, defined: Mapping[str, int]) -> int:
    """The step from which a size is known; -1 for sizes of inputs."""
    return max((defined.get(name, 0) for name in dim.symbols(d) if depends_on_data(dim.symbol(name))), default=-1)


def _not_empty(x: Dim) -> dict[str, Dim] | None:
    """The bound of a symbol from an extent that must be 1: `min(1, N)` implies `N >= 1`."""
    if dim.upper(x) > 1:
        return None
    for s in dim.symbols(x).values():
        bounded: dict[str, Dim] = {s.name: dim.symbol(s.name, s.divisible_by, s.hi, s.divisible_by)}
        if s.lo == 0 and dim.substitute(x, bounded) == 1:
            return bounded
    return None


def _in_place_of(old: dim.Symbol, y: Dim) -> dict[str, Dim] | None:
    """The substitution of `y` for a symbol.

    None if `y` does not have the assumed properties of the symbol. Another symbol takes over its bounds.
    """
    if (old.lo, old.hi, old.divisible_by) == (0, None, 1):
        return {old.name: y}
    if isinstance(y, Sym) and y.is_symbol:
        (other,) = dim.symbols(y).values()
        ends = [hi for hi in (old.hi, other.hi) if hi is not None]
        if all(isinstance(hi, int) for hi in ends):
            hi = min(ends, key=dim.upper, default=None)
            both = dim.symbol(other.name, max(old.lo, other.lo), hi, lcm(old.divisible_by, other.divisible_by))
            return {old.name: both} if both == y else {old.name: both, other.name: both}
    most = inf if old.hi is None else dim.lower(old.hi)
    fits = dim.lower(y) >= old.lo and dim.upper(y) <= most and dim.is_multiple(y, old.divisible_by)
    return {old.name: y} if fits else None
