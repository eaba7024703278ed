"""Polynomials with integer coefficients over symbols and functions of polynomials, in one canonical form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache, reduce
from math import gcd
from typing import Any

from occ.runtime.dataclass import dataclass


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

    __slots__ = ("_hash", "_symbols", "_weight", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)
        self._weight = 0  # not counted yet
        self._symbols: tuple[Symbol, ...] = ()  # not searched yet: there is at least one

    def __reduce__(self) -> tuple[type[Sym], tuple[object, ...]]:
        return Sym, (self.terms,)  # hashes of names differ between processes

    @property
    def weight(self) -> int:
        """The number of symbols, functions and terms when written out; a power counts once per factor."""
        if not self._weight:
            self._weight = sum(1 + sum(power * _atom_weight(atom) for atom, power in mono) for mono, _ in self.terms)
        return self._weight

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """All symbols, in order of appearance; repeated if one name has two meanings."""
        if not self._symbols:
            self._symbols = tuple(dict.fromkeys(_symbols_in(self)))
        return self._symbols

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Sym) and self._hash == other._hash and self.terms == other.terms)

    @property
    def is_symbol(self) -> bool:
        """Whether the polynomial is one bare symbol."""
        return self.is_atom and type(self.terms[0][0][0][0]) is Symbol

    @property
    def is_atom(self) -> bool:
        """Whether the polynomial is one bare symbol or function."""
        (mono, coeff), *rest = self.terms
        return not rest and coeff == 1 and len(mono) == 1 and mono[0][1] == 1

    def __add__(self, other: Dim) -> Dim:
        if not isinstance(other, Dim):  # such as an expression, whose arithmetic applies
            return NotImplemented
        return _sum(self, other)

    def __mul__(self, other: Dim) -> Dim:
        if not isinstance(other, Dim):
            return NotImplemented
        return _product(self, other)

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + -other

    def __rsub__(self, other: Dim) -> Dim:
        return -self + other

    __radd__, __rmul__ = __add__, __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return FUNCTIONS["floordiv"](self, other) if isinstance(other, Dim) else NotImplemented

    def __rfloordiv__(self, other: int) -> Dim:
        return FUNCTIONS["floordiv"](other, self)

    def __mod__(self, other: Dim) -> Dim:
        return self - other * (self // other)

    def __rmod__(self, other: int) -> Dim:
        return other - self * (other // self)

    def __str__(self) -> str:
        return _text(self)

    def __repr__(self) -> str:
        return f"Sym({self})"


Dim = int | Sym


# A model needs the same few thousand sums and products again and again: nine out of ten are cached.
@lru_cache(maxsize=1 << 16)
def _sum(a: Sym, b: Dim) -> Dim:
    total = dict(a.terms)
    for mono, coeff in terms_of(b):
        total[mono] = total.get(mono, 0) + coeff
    return build(total)


@lru_cache(maxsize=1 << 16)
def _product(a: Sym, b: Dim) -> Dim:
    total: dict[Monomial, int] = {}
    for m1, c1 in a.terms:
        for m2, c2 in terms_of(b):
            mono = _times(m1, m2)
            total[mono] = total.get(mono, 0) + c1 * c2
    return build(total)


LONGEST = 150  # weight that inference can work with: real models have up to 50


def symbol(name: str, lo: int = 0, hi: Dim | None = None, divisible_by: int = 1) -> Sym:
    """A new dim that is the named symbol."""
    return monomial((Symbol(name, lo, hi, divisible_by), 1))


# The meaning of `Func` names. Quotients need bounds, which use the arithmetic here, so `division` registers them.
FUNCTIONS: dict[str, Callable[..., Dim]] = {}


def terms_of(d: Dim) -> tuple[tuple[Monomial, int], ...]:
    """The (monomial, coefficient) pairs of a dim; the constant term has the empty monomial."""
    if isinstance(d, Sym):
        return d.terms
    return (((), d),) if d else ()


@lru_cache(maxsize=1 << 16)
def _atom_key(atom: Atom) -> tuple[int, str]:
    return (0, atom.name) if isinstance(atom, Symbol) else (1, str(atom))


@lru_cache(maxsize=1 << 16)
def _mono_key(mono: Monomial) -> tuple[Any, ...]:
    # Symbols before functions, higher degrees first, the constant term last: `N*M + 2*N + N//4 + 3`.
    # Exact quotients sort where their products would. The last entry says whether it is one.
    whole, share = whole_of(mono)
    return (-sum(p for _, p in whole) if whole else 1, tuple((_atom_key(a), -p) for a, p in whole), share != 1)


def _atom_weight(atom: Atom) -> int:
    return 1 if isinstance(atom, Symbol) else 1 + sum(map(weight, atom.args))


def weight(d: Dim) -> int:
    """The length of a dim: 0 for a constant, otherwise the `weight` of the polynomial."""
    return d.weight if isinstance(d, Sym) else 0


@lru_cache(maxsize=1 << 16)
def _times(a: Monomial, b: Monomial) -> Monomial:
    powers = dict(a)
    for atom, power in b:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(powers.items(), key=lambda item: _atom_key(item[0])))


def build(total: Mapping[Monomial, int]) -> Dim:
    """The dim that is a sum of monomials with coefficients, some of which may be 0."""
    if any(_mono_key(mono)[-1] for mono in total):
        total = _gathered(total)
    terms = [(m, c) for m, c in total.items() if c]
    if len(terms) > 1:
        terms.sort(key=lambda term: _mono_key(term[0]))
    if not terms or not terms[0][0]:  # the constant term is the last one
        return terms[0][1] if terms else 0
    return Sym(tuple(terms))


def _gathered(total: Mapping[Monomial, int]) -> dict[Monomial, int]:
    """Merges all fractions of one product into a single term.

    `K - K//2` is `K//2` where `K` is even, and `2*(K//2)` is `K`.
    """
    wholes: dict[Monomial, int | Fraction] = {}
    for mono, coeff in total.items():
        whole, share = whole_of(mono)
        wholes[whole] = wholes.get(whole, 0) + coeff * share
    found = (share_of(whole, coeff) for whole, coeff in wholes.items())
    return dict(filter(None, found))


@lru_cache(maxsize=1 << 16)
def whole_of(mono: Monomial) -> tuple[Monomial, int | Fraction]:
    """A monomial without exact quotients, and their combined factor.

    `K**2` and 1/2 of `K*(K//2)`.
    """
    whole: Monomial = ()
    parts = 1
    for atom, power in mono:
        divisor = 1
        if isinstance(atom, Func) and atom.name == "floordiv":
            x, by = atom.args
            if isinstance(x, Sym) and x.is_symbol and isinstance(by, int) and by > 0:
                ((((of, _),), _),) = x.terms
                if isinstance(of, Symbol) and of.divisible_by % by == 0:
                    atom, divisor = of, by
        whole, parts = _times(whole, ((atom, power),)), parts * divisor**power
    return whole, 1 if parts == 1 else Fraction(1, parts)


def share_of(whole: Monomial, share: int | Fraction) -> tuple[Monomial, int] | None:
    """The inverse of `whole_of`: the term for this fraction of a product of symbols.

    None where it may not be an integer.

    The first divisible factor is divided as far as possible, so that each fraction has a unique term.
    """
    if isinstance(share, int):
        return whole, share
    rest, mono = share.denominator, ()
    for atom, power in whole:
        for _ in range(power):
            by = gcd(rest, atom.divisible_by) if isinstance(atom, Symbol) else 1
            part = atom if by == 1 else Func("floordiv", (monomial((atom, 1)), by))
            rest, mono = rest // by, _times(mono, ((part, 1),))
    return (mono, share.numerator) if rest == 1 else None


def monomial(*mono: tuple[Atom, int]) -> Sym:
    """The dim that is a product of powers of atoms."""
    return Sym(((mono, 1),))


def split_constant(d: Dim) -> tuple[Dim, int]:
    """`d` as (the non-constant part, the constant term)."""
    if isinstance(d, int):
        return 0, d
    const = dict(d.terms).get((), 0)
    return d - const, const


def primitive(d: Dim) -> Dim:
    """A dim divided by the greatest common divisor of its coefficients."""
    by = gcd(*(c for _, c in terms_of(d)))
    return build({mono: c // by for mono, c in terms_of(d)}) if by > 1 else d


def product(dims: Iterable[Dim]) -> Dim:
    """The product, 1 for none."""
    return reduce(lambda a, b: a * b, dims, 1)


def symbols(*dims: Dim) -> dict[str, Symbol]:
    """All symbols in the dims, by name, in order of appearance."""
    found: dict[str, Symbol] = {}
    for d in dims:
        if isinstance(d, Sym):
            for s in d.symbols:
                found.setdefault(s.name, s)
    return found


def _symbols_in(d: Dim) -> Iterator[Symbol]:
    for mono, _ in terms_of(d):
        for atom, _ in mono:
            if isinstance(atom, Symbol):
                yield atom
            else:
                yield from symbols(*atom.args).values()


@lru_cache(maxsize=1 << 16)
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
