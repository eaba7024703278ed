"""Symbolic dimensions: integer polynomials over symbols and floor-divisions, in one canonical form.

`Dim` is `int | Sym`. A `Sym` is never constant: operations return a plain int whenever the symbols cancel, so
`is`-free equality of dims is plain `==`. Symbols are non-negative sizes with bounds; `a % b` is kept as
`a - b*(a//b)`, so that `b*(a//b) + a%b == a` holds by construction.

Each file depends only on those before it: polynomial, bounds, division, walks.
"""

from __future__ import annotations

from occ.compiler.ir.dim.bounds import cases, factor_of, is_multiple, is_positive, lower, upper
from occ.compiler.ir.dim.division import ceildiv, exact_quotient, floordiv, maximum, minimum
from occ.compiler.ir.dim.polynomial import (
    FUNCTIONS,
    LONGEST,
    Atom,
    Dim,
    Func,
    Monomial,
    Sym,
    Symbol,
    build,
    monomial,
    primitive,
    product,
    split_constant,
    symbol,
    symbols,
    terms_of,
    weight,
)
from occ.compiler.ir.dim.walks import evaluate, in_terms_of, put_atoms, rebuild, substitute

__all__ = [
    "FUNCTIONS",
    "LONGEST",
    "Atom",
    "Dim",
    "Func",
    "Monomial",
    "Sym",
    "Symbol",
    "build",
    "cases",
    "ceildiv",
    "evaluate",
    "exact_quotient",
    "factor_of",
    "floordiv",
    "in_terms_of",
    "is_multiple",
    "is_positive",
    "lower",
    "maximum",
    "minimum",
    "monomial",
    "primitive",
    "product",
    "put_atoms",
    "rebuild",
    "split_constant",
    "substitute",
    "symbol",
    "symbols",
    "terms_of",
    "upper",
    "weight",
]
