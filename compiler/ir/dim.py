"""Symbolic dimensions: integer polynomials over symbols and floor-divisions, in one canonical form.

`Dim` is `int | Sym`. A `Sym` is never constant: operations give back a plain int whenever the symbols cancel, so
`is`-free equality of dims is plain `==`. Symbols are non-negative sizes with bounds; `a % b` is kept as
`a - b*(a//b)`, so that `b*(a//b) + a%b == a` holds by construction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from math import gcd, inf, prod
from typing import Any


@dataclass(frozen=True, slots=True)
class Symbol:
    """A named integer with `lo <= value <= hi` (`hi` None: unbounded), a multiple of `divisible_by`.

    `hi` may itself be symbolic: the index of an axis of extent `N` is a symbol with `hi = N - 1`.
    """

    name: str
    lo: int = 0
    hi: Dim | None = None
    divisible_by: int = 1

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Func:
    """An opaque integer function of dims: `floordiv`, `min` or `max`."""

    name: str
    args: tuple[Dim, ...]

    def __str__(self) -> str:
        if self.name == "floordiv":
            return "//".join(f"({a})" if isinstance(a, Sym) and not a.is_symbol else str(a) for a in self.args)
        return f"{self.name}({', '.join(map(str, self.args))})"


Atom = Symbol | Func
Monomial = tuple[tuple[Atom, int], ...]  # ((atom, power), ...), sorted; () is the constant term


class Sym:
    """A non-constant polynomial with integer coefficients. Build with `symbol` and arithmetic, never directly."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Sym) and self._hash == other._hash and self.terms == other.terms)

    @property
    def is_symbol(self) -> bool:
        """Whether the polynomial is one bare symbol."""
        (mono, coeff), *rest = self.terms
        return not rest and coeff == 1 and len(mono) == 1 and mono[0][1] == 1 and type(mono[0][0]) is Symbol

    def __add__(self, other: Dim) -> Dim:
        if not isinstance(other, Dim):  # such as an expression, whose arithmetic it is then
            return NotImplemented
        total = dict(self.terms)
        for mono, coeff in terms_of(other):
            total[mono] = total.get(mono, 0) + coeff
        return _build(total)

    def __mul__(self, other: Dim) -> Dim:
        if not isinstance(other, Dim):
            return NotImplemented
        total: dict[Monomial, int] = {}
        for m1, c1 in self.terms:
            for m2, c2 in terms_of(other):
                mono = _times(m1, m2)
                total[mono] = total.get(mono, 0) + c1 * c2
        return _build(total)

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + -other

    def __rsub__(self, other: Dim) -> Dim:
        return -self + other

    __radd__, __rmul__ = __add__, __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other) if isinstance(other, Dim) else NotImplemented

    def __rfloordiv__(self, other: int) -> Dim:
        return floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return self - other * (self // other)

    def __rmod__(self, other: int) -> Dim:
        return other - self * floordiv(other, self)

    def __str__(self) -> str:
        return _text(self)

    def __repr__(self) -> str:
        return f"Sym({self})"


Dim = int | Sym


def symbol(name: str, lo: int = 0, hi: Dim | None = None, divisible_by: int = 1) -> Sym:
    """A fresh dim that is the named symbol."""
    return monomial((Symbol(name, lo, hi, divisible_by), 1))


def terms_of(d: Dim) -> tuple[tuple[Monomial, int], ...]:
    """The (monomial, coefficient) pairs of a dim; the constant term has the empty monomial."""
    if isinstance(d, Sym):
        return d.terms
    return (((), d),) if d else ()


@cache
def _atom_key(atom: Atom) -> tuple[int, str]:
    return (0, atom.name) if isinstance(atom, Symbol) else (1, str(atom))


@cache
def _mono_key(mono: Monomial) -> tuple[Any, ...]:
    # Symbols before functions, higher degrees first, the constant term last: `N*M + 2*N + N//4 + 3`.
    return (-sum(p for _, p in mono) if mono else 1, tuple((_atom_key(a), -p) for a, p in mono))


def _times(a: Monomial, b: Monomial) -> Monomial:
    powers = dict(a)
    for atom, power in b:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(powers.items(), key=lambda item: _atom_key(item[0])))


def _build(total: Mapping[Monomial, int]) -> Dim:
    terms = tuple(sorted(((m, c) for m, c in total.items() if c), key=lambda term: _mono_key(term[0])))
    if any(mono for mono, _ in terms):
        return Sym(terms)
    return terms[0][1] if terms else 0


def monomial(*mono: tuple[Atom, int]) -> Sym:
    """The dim that is a product of atoms to powers."""
    return Sym(((mono, 1),))


def split_constant(d: Dim) -> tuple[Dim, int]:
    """`d` as (the non-constant part, the constant term)."""
    if isinstance(d, int):
        return 0, d
    const = dict(d.terms).get((), 0)
    return d - const, const


def _monomial_divide(a: Monomial, b: Monomial) -> Monomial | None:
    powers = dict(a)
    for atom, power in b:
        if powers.get(atom, 0) < power:
            return None
        powers[atom] -= power
    return tuple((atom, powers[atom]) for atom, _ in a if powers[atom])


def exact_quotient(a: Dim, b: Dim) -> Dim | None:
    """`q` with `q * b == a` for all values of the symbols, or None (polynomial long division)."""
    if b == 0:
        return None
    lead_mono, lead_coeff = terms_of(b)[0]
    quotient: Dim = 0
    for _ in range(len(terms_of(a)) * 2 + 2):
        if a == 0:
            return quotient
        mono, coeff = terms_of(a)[0]
        rest = _monomial_divide(mono, lead_mono)
        if rest is None or coeff % lead_coeff:
            return None
        step = _build({rest: coeff // lead_coeff})
        quotient, a = quotient + step, a - step * b
    return None


def floordiv(a: Dim, b: Dim) -> Dim:
    """Floor division; `b` is taken to be non-zero (a size that divides another one).

    Raises:
        ZeroDivisionError: `b` is the constant 0.
    """
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if b == 1:
        return a
    if (exact := exact_quotient(a, b)) is not None:
        return exact
    if isinstance(b, int) and b > 0:
        return _divide_by_constant(a, b)
    whole, rest = _split_divisible(a, b)
    if lower(rest) >= 0 and is_positive(b - rest):
        return whole
    return whole + monomial((Func("floordiv", (rest, b)), 1))


def _split_divisible(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    """`a` as (q, rest) with `a == q*b + rest`, taking out of `a` each term that alone is a multiple of `b`."""
    whole: Dim = 0
    for term in terms_of(a):
        part = exact_quotient(_build(dict([term])), b)
        if part is not None:
            whole = whole + part
    return whole, a - whole * b


def _divide_by_constant(a: Dim, b: int) -> Dim:
    # a = b*whole + rest, with coefficients in [0, b) left in `rest`.
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for mono, coeff in terms_of(a):
        q, r = divmod(coeff, b)
        if q:
            whole[mono] = q
        if r:
            rest[mono] = r
    outer, inner = _build(whole), _build(rest)
    if isinstance(inner, int):
        return outer + inner // b
    common = gcd(b, *(c for m, c in inner.terms if m))
    if common > 1:  # (6*N + 5)//4 == (3*N + 2)//2
        variable, const = split_constant(inner)
        return outer + floordiv(floordiv(variable, common) + const // common, b // common)
    if lower(inner) >= 0 and upper(inner) < b:
        return outer
    if len(inner.terms) == 1 and inner.terms[0][1] == 1:  # (x//a)//b == x//(a*b)
        ((mono, _),) = inner.terms
        if len(mono) == 1 and mono[0][1] == 1 and isinstance(mono[0][0], Func) and mono[0][0].name == "floordiv":
            x, inner_divisor = mono[0][0].args
            if isinstance(inner_divisor, int) and inner_divisor > 0:
                return outer + floordiv(x, inner_divisor * b)
    return outer + monomial((Func("floordiv", (inner, b)), 1))


def minimum(a: Dim, b: Dim) -> Dim:
    """The lesser dim."""
    return _extremum("min", a, b)


def maximum(a: Dim, b: Dim) -> Dim:
    """The greater dim."""
    return _extremum("max", a, b)


def _extremum(name: str, a: Dim, b: Dim) -> Dim:
    if a == b:
        return a
    if lower(a - b) >= 0:
        return b if name == "min" else a
    if lower(b - a) >= 0:
        return a if name == "min" else b
    return monomial((Func(name, tuple(sorted((a, b), key=str))), 1))


def ceildiv(a: Dim, b: Dim) -> Dim:
    """Division rounded up."""
    return -floordiv(-a, b) if isinstance(a, int) and isinstance(b, int) else floordiv(a + b - 1, b)


def product(dims: Iterable[Dim]) -> Dim:
    """The product, 1 for none."""
    return reduce(lambda a, b: a * b, dims, 1)


# Bounds ------------------------------------------------------------------------------------------------------------


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
    return 0 if 0 in (x, y) else x * y  # 0 * inf is 0 here: an empty range times anything


@cache
def _bounds(d: Sym) -> tuple[float, float]:
    lo, hi = _interval(d)
    if lo == -inf and (relaxed := _relax(d, 1)) is not None:
        lo = lower(relaxed[0]) / relaxed[1]
    if hi == inf and (relaxed := _relax(d, -1)) is not None:
        hi = upper(relaxed[0]) / relaxed[1]
    return lo, hi


def _relax(d: Sym, sign: int) -> tuple[Dim, int] | None:
    """`(e, k)` with `e/k` a bound of `d` from below (sign 1) or above (-1), one atom simpler; None if none is.

    A symbol whose `hi` is symbolic goes to its extreme value: that is what proves `S*i + j < S*n` for `i < n` and
    `j < S`. A quotient by a constant is put between its neighbours: `x - k + 1 <= k*(x//k) <= x`.
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
            if isinstance(atom.hi, Sym) and atom.name not in symbols(atom.hi) and not hidden and (rising or falling):
                return substitute(d, {atom.name: atom.lo if rising else atom.hi}), 1
        elif atom.name == "floordiv" and isinstance(atom.args[1], int) and atom.args[1] > 0:
            ((mono, c), *others) = terms
            if not others and mono == ((atom, 1),):
                x, k = atom.args[0], atom.args[1]
                return (d - c * monomial((atom, 1))) * k + c * (x - (k - 1) if rising else x), k
    return None


def _interval(d: Sym) -> tuple[float, float]:
    total_lo = total_hi = 0.0
    for mono, coeff in d.terms:
        lo, hi = 1.0, 1.0
        for atom, power in mono:
            alo, ahi = _atom_bounds(atom)
            for _ in range(power):
                corners = [_product_of(x, y) for x in (lo, hi) for y in (alo, ahi)]
                lo, hi = min(corners), max(corners)
        ends = (_product_of(coeff, lo), _product_of(coeff, hi))
        total_lo, total_hi = total_lo + min(ends), total_hi + max(ends)
    return total_lo, total_hi


def lower(d: Dim) -> float:
    """A lower bound (maybe -inf) over all values of the symbols."""
    return d if isinstance(d, int) else _bounds(d)[0]


def upper(d: Dim) -> float:
    """An upper bound (maybe inf) over all values of the symbols."""
    return d if isinstance(d, int) else _bounds(d)[1]


def is_positive(d: Dim) -> bool:
    """Whether `d >= 1` is proven."""
    return lower(d) >= 1


def _known_factor(mono: Monomial) -> int:
    return prod(a.divisible_by**p for a, p in mono if isinstance(a, Symbol))


def is_multiple(d: Dim, factor: int) -> bool:
    """Whether `d % factor == 0` is proven."""
    return all((coeff * _known_factor(mono)) % factor == 0 for mono, coeff in terms_of(d))


# Walks --------------------------------------------------------------------------------------------------------------


def rebuild(d: Dim, of_symbol: Callable[[Symbol], Any], of_func: Callable[[str, list[Any]], Any]) -> Any:
    """Evaluate `d` in any ring: `of_symbol` maps the symbols, `of_func` applies `floordiv`, `min` and `max`."""
    if isinstance(d, int):
        return d
    total: Any = 0
    for mono, coeff in d.terms:
        value: Any = coeff
        for atom, power in mono:
            if isinstance(atom, Symbol):
                base = of_symbol(atom)
            else:
                base = of_func(atom.name, [rebuild(a, of_symbol, of_func) for a in atom.args])
            for _ in range(power):
                value = base * value
        total = total + value
    return total


FUNCTIONS: dict[str, Callable[..., Dim]] = {"floordiv": floordiv, "min": minimum, "max": maximum}


def substitute(d: Dim, values: Mapping[str, Dim]) -> Dim:
    """Replace symbols by name; names that are not in `values` stay."""
    if isinstance(d, int) or not values:
        return d
    kept: dict[Monomial, int] = {}  # in which nothing is replaced
    changed: Dim = 0
    for mono, coeff in d.terms:
        if all(values.keys().isdisjoint(_names(atom)) for atom, _ in mono):
            kept[mono] = coeff
            continue
        value: Dim = coeff
        for atom, power in mono:
            base = _replaced(atom, values)
            for _ in range(power):
                value = base * value
        changed = changed + value
    return d if len(kept) == len(d.terms) else _build(kept) + changed


def _replaced(atom: Atom, values: Mapping[str, Dim]) -> Dim:
    if isinstance(atom, Symbol):
        return values.get(atom.name, monomial((atom, 1)))
    return FUNCTIONS[atom.name](*(substitute(a, values) for a in atom.args))


@cache
def _names(atom: Atom) -> frozenset[str]:
    """Names of the symbols in an atom."""
    return frozenset((atom.name,)) if isinstance(atom, Symbol) else frozenset(symbols(*atom.args))


def evaluate(d: Dim, env: Mapping[str, int]) -> int:
    """The value for given symbol values.

    Raises:
        KeyError: a symbol has no value.
    """
    return rebuild(d, lambda s: env[s.name], lambda name, args: FUNCTIONS[name](*args))


def symbols(*dims: Dim) -> dict[str, Symbol]:
    """All symbols in the dims, by name, in order of appearance."""
    found: dict[str, Symbol] = {}

    def visit(d: Dim) -> None:
        for mono, _ in terms_of(d):
            for atom, _ in mono:
                if isinstance(atom, Symbol):
                    found.setdefault(atom.name, atom)
                else:
                    for a in atom.args:
                        visit(a)

    for d in dims:
        visit(d)
    return found


def _text(d: Sym) -> str:
    parts: list[str] = []
    for mono, coeff in d.terms:
        factors = [str(abs(coeff))] if abs(coeff) != 1 or not mono else []
        leads = not parts and coeff < 0  # a sign in front binds tighter than `//`
        many = bool(factors) or leads or len(mono) > 1 or any(p > 1 for _, p in mono)
        for atom, power in mono:
            bare = str(atom)
            factors += [f"({bare})" if many and isinstance(atom, Func) and atom.name == "floordiv" else bare] * power
        sign = "-" if coeff < 0 else "+"
        text = "*".join(factors)
        if not parts:
            parts.append(text if coeff > 0 else "-" + text)
        else:
            parts.append(f"{sign} {text}")
    return " ".join(parts)
