"""Solves for symbols that occur in inputs only inside expressions: `M`, from `f32[4*M]`."""

from __future__ import annotations

from collections.abc import Iterator

from occ.compiler.ir.dim import Dim, Sym, Symbol, floordiv, split_constant, symbols, terms_of
from occ.compiler.ir.module import Module
from occ.compiler.ir.shape import depends_on_data
from occ.compiler.ir.types import TensorType


def show_sizes(m: Module) -> None:
    """Name input extents and express sizes in terms of them, so that a run can compute each.

    `f32[4*M]` --> `f32[K]` with `K` a multiple of 4, and `K//4` for `M`
    """
    extents = list(_extents(m))
    for d in extents:
        shown = {str(e) for e in _extents(m) if isinstance(e, Sym) and e.is_symbol}
        hidden = [s for s in symbols(d).values() if s.name not in shown and not depends_on_data(d)]
        if len(hidden) == len(symbols(d)) == 1 and (parts := _linear(d, hidden[0])) is not None:
            (old,), (times, more) = hidden, parts
            most = times * old.hi + more if isinstance(old.hi, int) else None
            step = 1 if more else times * old.divisible_by
            whole = m.fresh_symbol(old.name, times * old.lo + more, most, step, label=str(d))
            m.substitute({old.name: floordiv(whole - more, times)})


def _extents(m: Module) -> Iterator[Dim]:
    for arg in m.main.args:
        if isinstance(arg.type, TensorType):
            yield from arg.type.shape or ()


def _linear(d: Dim, s: Symbol) -> tuple[int, int] | None:
    """`(a, b)` of `a*s + b`, where divisibility by `a` after subtracting `b` determines `s`."""
    variable, more = split_constant(d)
    match terms_of(variable):
        case [(((atom, 1),), times)] if (
            atom == s and times > 0 and (times == 1 or not more) and isinstance(s.hi, int | None)
        ):
            return times, more
        case _:
            return None
