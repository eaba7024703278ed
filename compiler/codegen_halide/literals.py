"""Element types, sizes and constants as C++ text."""

from __future__ import annotations

import math
from functools import cache

from occ.compiler.ir import dim
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.dtype import BOOL, DType
from occ.compiler.ir.te.index import axis_of
from occ.runtime.dims import MOST_COUNTED
from occ.runtime.element_types import ELEMENT_TYPES

_CPP_TYPES = {t.name: t.halide for t in ELEMENT_TYPES.values() if t.halide}


def cpp_type(dtype: DType) -> str:
    """The C++ type of an element.

    Raises:
        KeyError: Halide has no such type.
    """
    return _CPP_TYPES[dtype.name]


def dim_text(d: Dim, *, wide: bool = False) -> str:
    """A size as a C++ expression over the generator's inputs: an int, or an int64_t if `wide`.

    Sums and products of ints may overflow 32 bits on the way to a size that fits, since the carry is a multiple of
    2**32. Operands of divisions and comparisons may not, and are int64_t if they might.
    """
    if isinstance(d, int):
        return str(d) if not wide else f"Expr(int64_t({d}))"
    if not wide and not all(is_counted(coeff) for _, coeff in d.terms):
        return f"cast<int>({dim_text(d, wide=True)})"
    parts: list[str] = []
    for mono, coeff in d.terms:
        factors = [] if coeff == 1 and mono else [dim_text(coeff, wide=wide)]
        for atom, power in mono:
            factors += [_atom_text(atom, wide=wide)] * power
        parts.append("*".join(factors))
    return parts[0] if len(parts) == 1 else f"({' + '.join(parts)})"


def _atom_text(atom: dim.Atom, *, wide: bool) -> str:
    if isinstance(atom, dim.Symbol):
        name = axis_of(atom.name)
        return f"cast<int64_t>({name})" if wide else name
    within_wide = wide or not all(map(is_counted, atom.args))
    a, b = (dim_text(x, wide=within_wide) for x in atom.args)
    text = f"({a} / ({b}))" if atom.name == "floordiv" else f"{atom.name}({a}, {b})"
    return f"cast<int>({text})" if within_wide and not wide else text


@cache
def is_counted(d: Dim) -> bool:
    """Whether a dim certainly fits in 32 bits if its symbols are sizes that kernels can use."""
    bounded = _counted(d)
    return dim.lower(bounded) >= -(2**31) and dim.upper(bounded) < 2**31


def _counted(d: Dim) -> Dim:
    """A dim of symbols that end where kernels cannot count further: sizes, and with them the positions of axes."""
    endless = [s for s in dim.symbols(d).values() if s.hi is None or dim.upper(s.hi) == math.inf]
    most = {s.name: MOST_COUNTED if s.hi is None else min(MOST_COUNTED, dim.upper(_counted(s.hi))) for s in endless}
    return dim.substitute(d, {s.name: dim.symbol(s.name, s.lo, int(most[s.name]), s.divisible_by) for s in endless})


def literal_text(value: object, dtype: DType) -> str:
    """A typed constant."""
    if dtype == BOOL:
        return f"const_{str(bool(value)).lower()}()"
    if dtype.is_float:
        number = float(value)  # pyright: ignore[reportArgumentType]
        if dtype.name == "f32" and math.isfinite(number):
            return f"{number!r}f"
        if math.isnan(number):
            return f"te_nan<{cpp_type(dtype)}>()"
        if math.isinf(number):
            return f"{'-' if number < 0 else ''}te_inf<{cpp_type(dtype)}>()"
        return f"cast<{cpp_type(dtype)}>(Expr({number!r}))"
    number = int(value)  # pyright: ignore[reportArgumentType,reportCallIssue]
    if -(2**31) < number < 2**31:
        return f"cast<{cpp_type(dtype)}>({number})"
    suffix = "ULL" if number >= 2**63 else "LL"
    text = "INT64_MIN" if number == -(2**63) else f"{number}{suffix}"
    return f"cast<{cpp_type(dtype)}>(Expr({'uint64_t' if suffix == 'ULL' else 'int64_t'}({text})))"
