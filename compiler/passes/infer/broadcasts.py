"""Input sizes that a broadcast assumes equal although one may be 1: cases to compile separately."""

from __future__ import annotations

from collections.abc import Iterable

from occ.compiler.ir.dim import Dim, Sym, lower, upper
from occ.compiler.ir.func import Broadcast
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.shape import Assumed, depends_on_data


def note_broadcasts(m: Module, op: Op, assumed: Iterable[Assumed]) -> None:
    """Record symbols that an op assumes to be equal and could also broadcast.

    `Add(f32[steps,4], f32[batch,4])` assumes `steps == batch`; one step with a batch of two needs a plan with `steps`
    fixed to 1, see `compiler/driver/size_cases.py`.
    """
    for a, b, spread in assumed:
        for size, other in ((a, b), (b, a)) if spread else ():
            if (
                isinstance(size, Sym)
                and size.is_symbol
                and lower(size) <= 1 <= upper(size)
                and not depends_on_data(size)
            ):
                label = m.symbols[str(size)].label
                m.broadcasts.setdefault(label, Broadcast(_named(m, other), str(op.loc), plain=_is_plain(other)))


def _named(m: Module, d: Dim) -> str:
    return m.symbols[str(d)].label if isinstance(d, Sym) and d.is_symbol else str(d)


def _is_plain(d: Dim) -> bool:
    return isinstance(d, int) or d.is_symbol
