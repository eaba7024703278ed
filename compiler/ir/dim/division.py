"""Floor division, minimum and maximum of dims, simplified by bounds of their symbols."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import gcd

from occ.compiler.ir.dim.bounds import factor_of, is_multiple, is_positive, lower, upper
from occ.compiler.ir.dim.polynomial import (
    FUNCTIONS,
    Dim,
    Func,
    Monomial,
    Sym,
    build,
    monomial,
    share_of,
    split_constant,
    terms_of,
    whole_of,
)

_LARGEST = 2**63 - 1  # that quotients are divided by once they are one: native code counts in 64 bits


def divided_monomial(a: Monomial, b: Monomial) -> Monomial | None:
    """The monomial that multiplied by `b` yields `a`, or None."""
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
    lead_mono, lead_coeff = _leading(b)
    quotient: Dim = 0
    for _ in range(len(terms_of(a)) * 2 + 2):
        if a == 0:
            return quotient
        mono, coeff = _leading(a)
        rest = divided_monomial(mono, lead_mono)
        term = None if rest is None else share_of(rest, _ratio(coeff, lead_coeff))
        if term is None:
            return None
        step = build(dict([term]))
        quotient, a = quotient + step, a - step * b
    return None


def _ratio(a: int | Fraction, b: int | Fraction) -> int | Fraction:
    if isinstance(a, int) and isinstance(b, int) and a % b == 0:
        return a // b
    return Fraction(a) / b


def _leading(d: Dim) -> tuple[Monomial, int | Fraction]:
    """The leading term, and its coefficient.

    For `K//2` with an even `K` that is `K` and 1/2.
    """
    mono, coeff = terms_of(d)[0]
    whole, share = whole_of(mono)
    return whole, coeff * share


@lru_cache(maxsize=1 << 16)
def floordiv(a: Dim, b: Dim) -> Dim:
    """Floor division; `b` is assumed to be non-zero (a size that divides another one).

    Raises:
        ZeroDivisionError: `b` is the constant 0.
    """
    if isinstance(b, int) and b == 0:
        raise ZeroDivisionError("a size is divided by 0")
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if b == 1:
        return a
    if (exact := exact_quotient(a, b)) is not None:
        return exact
    if isinstance(b, int) and b > 0:
        return _divide_by_constant(a, b)
    if (shared := _shared_factor(a, b)) != 1:  # (N*M)//(160*N) == M//160
        return floordiv(_quotient(a, shared), _quotient(b, shared))
    whole, rest = _split_divisible(a, b)
    if lower(rest) >= 0 and is_positive(b - rest):
        return whole
    if upper(rest) < 0 and lower(b + rest) >= 0:  # (a*b - 1)//b == a - 1
        return whole - 1
    return whole + monomial((Func("floordiv", (rest, b)), 1))


def _shared_factor(a: Dim, b: Dim) -> Dim:
    """The product of the symbols that are factors of all terms of two dims; 1 if there are none."""
    powers = [dict(mono) for mono, _ in (*terms_of(a), *terms_of(b))]
    least = {atom: min(p.get(atom, 0) for p in powers) for atom in powers[-1]}
    shared = tuple((atom, least[atom]) for atom, _ in terms_of(b)[-1][0] if least[atom])
    return monomial(*shared) if shared else 1


def _quotient(a: Dim, b: Dim) -> Dim:
    exact = exact_quotient(a, b)
    assert exact is not None
    return exact


def _split_divisible(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    """`a` as (q, rest) with `a == q*b + rest`; q collects the terms of `a` that are multiples of `b` by themselves."""
    whole: Dim = 0
    for term in terms_of(a):
        part = exact_quotient(build(dict([term])), b)
        if part is not None:
            whole = whole + part
    return whole, a - whole * b


def _divide_by_constant(a: Dim, b: int) -> Dim:
    a = _joined(a)
    # a = b*whole + rest, with coefficients in [0, b) left in `rest`.
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for mono, coeff in terms_of(a):
        q, r = divmod(coeff, b)
        if q:
            whole[mono] = q
        if r:
            rest[mono] = r
    outer: Dim = build(whole)
    for mono, coeff in list(rest.items()):  # a known multiple leaves no remainder
        if is_multiple(build({mono: coeff}), b) and (exact := exact_quotient(build({mono: coeff}), b)) is not None:
            outer = outer + exact
            del rest[mono]
    inner = build(rest)
    if isinstance(inner, int):
        return outer + inner // b
    common = gcd(b, *(c for m, c in inner.terms if m))
    if common > 1:  # (6*N + 5)//4 == (3*N + 2)//2
        variable, const = split_constant(inner)
        return outer + floordiv(floordiv(variable, common) + const // common, b // common)
    variable, const = split_constant(inner)
    if slack := const % gcd(b, factor_of(variable)):  # (x + 3)//4 == (x + 2)//4 where x is even
        return outer + floordiv(inner - slack, b)
    if lower(inner) >= 0 and upper(inner) < b:
        return outer
    if isinstance(variable, Sym) and variable.is_atom:  # (x//a + c)//b == (x + a*c)//(a*b)
        ((((atom, _),), _),) = variable.terms
        if isinstance(atom, Func) and atom.name == "floordiv":
            x, inner_divisor = atom.args
            if isinstance(inner_divisor, int) and 0 < inner_divisor <= _LARGEST // b:
                return outer + floordiv(x + const * inner_divisor, inner_divisor * b)
    return outer + monomial((Func("floordiv", (inner, b)), 1))


def of_quotient(atom: Func, known: Func, value: Dim) -> Dim | None:
    """A quotient in terms of another one: `(N + 3)//4` is `(value + 1)//2` if `value` is `(N + 1)//2`. None if it is not."""
    (x, by), (y, step) = atom.args, known.args
    if atom.name != "floordiv" or known.name != "floordiv" or not isinstance(by, int) or not isinstance(step, int):
        return None
    (x, first), (y, least) = split_constant(x), split_constant(y)
    scale = exact_quotient(y, x)
    if not isinstance(scale, int) or scale <= 0 or scale * by <= step or scale * by % step:
        return None
    # (x + first)//by == (scale*x + scale*first + more)//(scale*by)
    more = (least - scale * first) % step
    return (
        None
        if more >= scale or scale * by > _LARGEST
        else floordiv(value + (scale * first + more - least) // step, scale * by // step)
    )


def _joined(d: Dim) -> Dim:
    """The same size with quotients of a common dividend merged, by Hermite's identity.

    `N//2 + (N + 1)//2` is `N`, and `N//4 + (N + 2)//4` is `N//2`. Paddings before and after an axis are such halves.

    Only quotients are merged, not sums: otherwise `x + y - y` would not be `x` for `N//2` and `(N + 1)//2`.
    """
    found: dict[tuple[Monomial, Dim, int], dict[int, Monomial]] = {}
    for mono, _ in terms_of(d):
        for factors, x, by in _quotients_in(mono):
            variable, first = split_constant(x)
            found.setdefault((factors, variable, by), {})[first] = mono
    for (factors, x, by), parts in found.items():
        for first, many in ((f, n) for f in parts for n in range(len(parts), 1, -1) if by % n == 0 and f < by // n):
            step = by // many
            monos = [mono for k in range(many) if (mono := parts.get(first + k * step)) is not None]
            coeffs = [c for mono, c in terms_of(d) if mono in monos]
            if len(monos) == many and min(coeffs) * max(coeffs) > 0:
                times = min(coeffs, key=abs)
                share = build({factors: times}) * floordiv(x + first, step)
                return _joined(d - build(dict.fromkeys(monos, times)) + share)
    return d


@lru_cache(maxsize=1 << 16)
def _quotients_in(mono: Monomial) -> tuple[tuple[Monomial, Dim, int], ...]:
    """A monomial's quotients by constants: the product of the other factors, the dividend, and the divisor."""
    return tuple(
        (mono[:k] + mono[k + 1 :], atom.args[0], by)
        for k, (atom, power) in enumerate(mono)
        if power == 1 and isinstance(atom, Func) and atom.name == "floordiv" and isinstance(by := atom.args[1], int)
    )


def minimum(a: Dim, b: Dim) -> Dim:
    """The minimum of two dims."""
    return _extremum("min", a, b)


def maximum(a: Dim, b: Dim) -> Dim:
    """The maximum of two dims."""
    return _extremum("max", a, b)


@lru_cache(maxsize=1 << 16)
def _extremum(name: str, a: Dim, b: Dim) -> Dim:
    a, b = _joined(a), _joined(b)
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


FUNCTIONS.update({"floordiv": floordiv, "min": minimum, "max": maximum})
