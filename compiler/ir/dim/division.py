"""Quotients of dims, and the lesser and the greater of two: simplified as far as bounds of the symbols allow."""

from __future__ import annotations

from math import gcd

from occ.compiler.ir.dim.bounds import factor_of, is_multiple, is_positive, lower, upper
from occ.compiler.ir.dim.polynomial import (
    FUNCTIONS,
    SHORTER,
    Dim,
    Func,
    Monomial,
    build,
    monomial,
    split_constant,
    terms_of,
)


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
        step = build({rest: coeff // lead_coeff})
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
        part = exact_quotient(build(dict([term])), b)
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
    outer, inner = build(whole), build(rest)
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
    if len(inner.terms) == 1 and inner.terms[0][1] == 1:  # (x//a)//b == x//(a*b)
        ((mono, _),) = inner.terms
        if len(mono) == 1 and mono[0][1] == 1 and isinstance(mono[0][0], Func) and mono[0][0].name == "floordiv":
            x, inner_divisor = mono[0][0].args
            if isinstance(inner_divisor, int) and inner_divisor > 0:
                return outer + floordiv(x, inner_divisor * b)
    return outer + monomial((Func("floordiv", (inner, b)), 1))


def _without_quotient(mono: Monomial, coeff: int) -> Dim | None:
    """`2*(H//2)` is `H` where that is even, and `2*(H//4)` is `H//2` where it is a multiple of 4."""
    for atom, power in mono:
        if not isinstance(atom, Func) or atom.name != "floordiv":
            continue
        x, divisor = atom.args
        if not isinstance(divisor, int) or divisor <= 0 or (common := gcd(coeff, divisor)) == 1:
            continue
        if is_multiple(x, divisor):
            others = tuple((a, p - (a == atom)) for a, p in mono if a != atom or power > 1)
            return build({others: coeff // common}) * floordiv(x, divisor // common)
    return None


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


FUNCTIONS.update({"floordiv": floordiv, "min": minimum, "max": maximum})
SHORTER.append(_without_quotient)
