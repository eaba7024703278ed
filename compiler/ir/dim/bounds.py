"""Bounds of dims by interval arithmetic over the bounds of their symbols."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import gcd, inf, prod

from occ.compiler.ir.dim.polynomial import Atom, Dim, Func, Monomial, Sym, Symbol, monomial, product, symbols, terms_of

_LONGEST_CASE = 60  # weight: each `min` or `max` in a dim doubles the number of cases


def _atom_bounds(atom: Atom) -> tuple[float, float]:
    if isinstance(atom, Symbol):
        return atom.lo, inf if atom.hi is None else upper(atom.hi)
    pairs = [(lower(a), upper(a)) for a in atom.args]
    if atom.name == "floordiv":
        (lo, hi), (dlo, dhi) = pairs
        if dlo <= 0:
            return -inf, inf
        corners = [_floor(x, d) for x in (lo, hi) for d in (dlo, dhi)]
        return min(corners), max(corners)
    pick = min if atom.name == "min" else max
    return pick(p[0] for p in pairs), pick(p[1] for p in pairs)


def _floor(x: float, d: float) -> float:
    if d == inf:
        return 0 if x >= 0 else -1
    return x if x in (inf, -inf) else x // d


def _product_of(x: float, y: float) -> float:
    """Exact for ints, however large; 0 * inf is 0 here: an empty range times anything."""
    if 0 in (x, y):
        return 0
    if x in (inf, -inf) or y in (inf, -inf):
        return inf if (x > 0) == (y > 0) else -inf
    return x * y


def _sum_of(x: float, y: float) -> float:
    return x if x in (inf, -inf) else y if y in (inf, -inf) else x + y


@lru_cache(maxsize=1 << 16)
def _bounds(d: Sym) -> tuple[float, float]:
    lo, hi = _interval(d)
    if inf in (hi, -lo) and (found := cases(d)) is not None:
        pick, parts = found
        lo, hi = max(lo, pick(map(lower, parts))), min(hi, pick(map(upper, parts)))
    if lo == -inf and (relaxed := _relax(d, 1)) is not None:
        lo = -_floor(-lower(relaxed[0]), relaxed[1])  # a whole number: not -1/2 but 0
    if hi == inf and (relaxed := _relax(d, -1)) is not None:
        hi = _floor(upper(relaxed[0]), relaxed[1])
    return lo, hi


def cases(d: Sym) -> tuple[Callable[[Iterable[float]], float], list[Dim]] | None:
    """The operands of a `min` or `max`, each with the remaining terms added.

    `N - max(N - 1, 0)` is `min(1, N)`.
    """
    for mono, coeff in d.terms:
        if len(mono) != 1 or mono[0][1] != 1:
            continue
        atom = mono[0][0]
        if isinstance(atom, Func) and atom.name != "floordiv" and d.weight <= _LONGEST_CASE:
            rest = d - coeff * monomial((atom, 1))
            return (max if (atom.name == "max") == (coeff > 0) else min), [rest + coeff * a for a in atom.args]
    return None


def _relax(d: Sym, sign: int) -> tuple[Dim, int] | None:
    """`(e, k)` such that `e/k` bounds `d` from below (sign 1) or above (-1), with one atom less.

    None if there is no such bound.

    A symbol with a symbolic `hi` is replaced by its extreme value: that proves `S*i + j < S*n` for `i < n` and `j < S`.
    A quotient by a constant is bounded by its neighbours: `x - k + 1 <= k*(x//k) <= x`.
    """
    for atom in {a: None for mono, _ in d.terms for a, _ in mono}:
        terms = [(mono, c) for mono, c in d.terms if any(a == atom for a, _ in mono)]
        if any(_atom_bounds(a)[0] < 0 for mono, _ in d.terms for a, _ in mono if a != atom):
            continue
        rising, falling = all(c * sign > 0 for _, c in terms), all(c * sign < 0 for _, c in terms)
        if isinstance(atom, Symbol):
            hidden = any(
                isinstance(a, Func) and atom.name in symbols(monomial((a, 1))) for mono, _ in d.terms for a, _ in mono
            )
            joint = any(len(mono) > 1 for mono, _ in terms)  # `i*N` for `i < 2` and any `N`
            bounded = isinstance(atom.hi, Sym) or (atom.hi is not None and joint)
            if bounded and not hidden and atom.name not in symbols(_end(atom)) and (rising or falling):
                return _put(d, atom, atom.lo if rising else _end(atom)), 1
        elif atom.name == "floordiv" and isinstance(atom.args[1], int) and atom.args[1] > 0:
            ((mono, c), *others) = terms
            if not others and mono == ((atom, 1),):
                x, k = atom.args[0], atom.args[1]
                return (d - c * monomial((atom, 1))) * k + c * (x - (k - 1) if rising else x), k
        elif (
            atom.name == "floordiv"
            and (rising or falling)
            and (found := _relax_quotient(d, atom, terms, rising=rising)) is not None
        ):
            return found, 1
    return None


def _relax_quotient(d: Sym, q: Func, terms: Sequence[tuple[Monomial, int]], *, rising: bool) -> Dim | None:
    """A bound of a dim with a quotient `x//b` by a size.

    `x - b*(x//b)` is the remainder, less than `b`; and for `x` up to `b*n - 1` the quotient is up to `n - 1`. That
    proves that the row and column of a position are within an image. An image without columns has no position `x`.
    """
    x, b = q.args
    if not (isinstance(b, Sym) and b.is_atom and isinstance(x, Sym) and lower(b) >= 0 and lower(x) >= 0):
        return None
    ((((by, _),), _),) = b.terms
    ((((of, _), *_), _), *_) = x.terms
    most = of.hi if x.is_symbol and isinstance(of, Symbol) else None
    below_multiple = isinstance(most, Sym) and all(by in dict(mono) for mono, _ in terms_of(most + 1))
    if (lower(b) < 1 and not below_multiple) or any((q, 1) not in mono for mono, _ in terms):
        return None
    if all(dict(mono).get(by) == 1 for mono, _ in terms):
        left = monomial((Symbol(f"{q}%", 0, b - 1), 1))
        return _replaced(d, terms, (q, by), x - left)
    if rising:
        return _replaced(d, terms, (q,), 0)
    if not below_multiple:
        return None
    assert isinstance(most, Sym)
    return _replaced(d, terms, (q,), _without(most + 1, by) - 1)


def _replaced(d: Sym, terms: Sequence[tuple[Monomial, int]], gone: Sequence[Atom], value: Dim) -> Dim:
    """The dim with a value substituted for a product of atoms, in the terms that contain it."""
    total: Dim = d
    for mono, c in terms:
        rest = product(monomial((a, p)) for a, p in mono if a not in gone)
        total = total - c * monomial(*mono) + c * rest * value
    return total


def _without(d: Dim, atom: Atom) -> Dim:
    """The dim divided by an atom common to all its terms."""
    total: Dim = 0
    for mono, c in terms_of(d):
        powers = {**dict(mono), atom: dict(mono)[atom] - 1}
        total = total + c * product(monomial((a, p)) for a, p in powers.items() if p)
    return total


def _end(s: Symbol) -> Dim:
    assert s.hi is not None, "it has an end"
    return s.hi


def _put(d: Sym, symbol: Symbol, value: Dim) -> Dim:
    """The dim with a value substituted for a symbol that occurs in none of its functions."""
    total: Dim = 0
    for mono, coeff in d.terms:
        factors = (value if atom == symbol else monomial((atom, 1)) for atom, power in mono for _ in range(power))
        total = total + coeff * product(factors)
    return total


def _interval(d: Sym) -> tuple[float, float]:
    total_lo: float = 0  # a whole number unless it is infinite: floats would be rounded above 2**53
    total_hi: float = 0
    for mono, coeff in d.terms:
        lo: float = 1
        hi: float = 1
        for atom, power in mono:
            alo, ahi = _atom_bounds(atom)
            for _ in range(power):
                corners = [_product_of(x, y) for x in (lo, hi) for y in (alo, ahi)]
                lo, hi = min(corners), max(corners)
        ends = (_product_of(coeff, lo), _product_of(coeff, hi))
        total_lo, total_hi = _sum_of(total_lo, min(ends)), _sum_of(total_hi, max(ends))
    return total_lo, total_hi


def lower(d: Dim) -> float:
    """A lower bound (possibly -inf) over all values of the symbols."""
    return d if isinstance(d, int) else _bounds(d)[0]


def upper(d: Dim) -> float:
    """An upper bound (possibly inf) over all values of the symbols."""
    return d if isinstance(d, int) else _bounds(d)[1]


def is_positive(d: Dim) -> bool:
    """Whether `d >= 1` is proven."""
    return lower(d) >= 1


def _known_factor(mono: Monomial) -> int:
    return prod(_factor_of_atom(a) ** p for a, p in mono)


def _factor_of_atom(atom: Atom) -> int:
    """The known divisor of a symbol or function: 8 for `H//4` if `H` is a multiple of 32."""
    if isinstance(atom, Symbol):
        return atom.divisible_by
    if atom.name != "floordiv" or not isinstance(atom.args[1], int) or atom.args[1] <= 0:
        return 1
    factor, rest = divmod(factor_of(atom.args[0]), atom.args[1])
    return 1 if rest else factor


def is_multiple(d: Dim, factor: int) -> bool:
    """Whether `d % factor == 0` is proven."""
    return all((coeff * _known_factor(mono)) % factor == 0 for mono, coeff in terms_of(d))


def factor_of(d: Dim) -> int:
    """The largest number that provably divides a dim: 1 if there is none."""
    return gcd(*(coeff * _known_factor(mono) for mono, coeff in terms_of(d))) or 1
