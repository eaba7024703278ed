"""Evaluation and substitution of dims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from occ.compiler.ir.dim.division import divided_monomial, of_quotient
from occ.compiler.ir.dim.polynomial import (
    FUNCTIONS,
    Atom,
    Dim,
    Func,
    Monomial,
    Sym,
    Symbol,
    build,
    monomial,
    product,
    symbols,
    terms_of,
)

_STEPS = 200  # steps of a long division


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
    if len(kept) == len(d.terms):
        return d
    return build(kept) + changed if kept else changed


def put_atoms(d: Dim, values: Mapping[str | Func, Dim]) -> Dim:
    """Replace symbols by name and whole functions, outermost first, also within quotients; all others stay."""
    total: Dim = 0
    for mono, coeff in () if isinstance(d, int) else d.terms:
        value: Dim = coeff
        for atom, power in mono:
            base = _put(atom, values)
            for _ in range(power):
                value = base * value
        total = total + value
    return d if isinstance(d, int) else total


def _put(atom: Atom, values: Mapping[str | Func, Dim]) -> Dim:
    if (known := values.get(atom.name if isinstance(atom, Symbol) else atom)) is not None:
        return known
    if isinstance(atom, Symbol):
        return monomial((atom, 1))
    of_known = (of_quotient(atom, f, value) for f, value in values.items() if isinstance(f, Func))
    if (found := next((q for q in of_known if q is not None), None)) is not None:
        return found
    return FUNCTIONS[atom.name](*(put_atoms(a, values) for a in atom.args))


def in_terms_of(d: Dim, unit: Dim, value: Dim) -> Dim:
    """A dim with multiples of the polynomial `unit` rewritten as multiples of `value`.

    Also within functions, if these need none of its symbols afterwards: `N*h - N*(h//2) + 3` is `N*value + 3` if the
    unit is `h - h//2`. Otherwise unchanged.
    """
    names = symbols(unit).keys()
    if isinstance(d, int) or names.isdisjoint(symbols(d)):
        return d
    lead, times = terms_of(unit)[0]
    left = _within_functions(d, lambda a: in_terms_of(a, unit, value))
    rest: Dim = 0
    quotient: Dim = 0
    for _ in range(_STEPS):
        if left == 0:
            break
        mono, coeff = terms_of(left)[0]
        term = build({mono: coeff})
        factor = divided_monomial(mono, lead)
        if factor is None or coeff % times:
            rest, left = rest + term, left - term
            continue
        part = build({factor: coeff // times})
        quotient, left = quotient + part, left - part * unit
    made = rest + left + (in_terms_of(quotient, unit, value) if quotient else 0) * value
    return made if names.isdisjoint(symbols(made)) else d


def _within_functions(d: Sym, of: Callable[[Dim], Dim]) -> Dim:
    """A dim with its functions' arguments transformed by `of`."""

    def made(atom: Atom) -> Dim:
        return monomial((atom, 1)) if isinstance(atom, Symbol) else FUNCTIONS[atom.name](*map(of, atom.args))

    total: Dim = 0
    for mono, coeff in d.terms:
        total = total + coeff * product(made(atom) for atom, power in mono for _ in range(power))
    return total


def _replaced(atom: Atom, values: Mapping[str, Dim]) -> Dim:
    if isinstance(atom, Symbol):
        return values.get(atom.name, monomial((atom, 1)))
    return FUNCTIONS[atom.name](*(substitute(a, values) for a in atom.args))


@lru_cache(maxsize=1 << 16)
def _names(atom: Atom) -> frozenset[str]:
    """Names of the symbols in an atom."""
    return frozenset((atom.name,)) if isinstance(atom, Symbol) else frozenset(symbols(*atom.args))


def evaluate(d: Dim, env: Mapping[str, int]) -> int:
    """The value for given symbol values; a division by 0 stays as it is, as in native code.

    Raises:
        KeyError: a symbol has no value.
    """
    return rebuild(d, lambda s: env[s.name], _applied)


def _applied(name: str, args: Sequence[int]) -> Any:
    return args[0] if name == "floordiv" and args[1] == 0 else FUNCTIONS[name](*args)
