"""Expands composite operators that the target does not accept by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from occ.compiler.ir.builder import expand_composite
from occ.compiler.ir.deferred import is_deferred
from occ.compiler.ir.dim import Dim, Sym
from occ.compiler.ir.func import Constraint, Func
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.shape import Assumed, collecting, depends_on_data
from occ.compiler.ir.types import TensorType, Type
from occ.compiler.passes.base import Context, Pass, finish
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class Expand(Pass):
    """Replaces composite operators by the operators that define them.

    `%y = CastLike(%x, %like)` --> `%y = Cast(%x) {to=f32}`
    """

    name: ClassVar[str] = "expand"

    def run(self, m: Module, ctx: Context) -> bool:
        rw = Rewriter(m)
        expanded = 0
        while composites := [
            (f, op)
            for f in m.funcs.values()
            for op in f.body.body
            if op.spec.composite is not None
            and not ctx.target.takes_whole(op, ctx.options or ctx.target.options)
            and not is_deferred(op)
        ]:
            for f, op in composites:
                _expand(rw, f, op)
            expanded += len(composites)
        rw.hits["expand"] += expanded
        return finish(rw, ctx, expanded)


def _expand(rw: Rewriter, f: Func, op: Op) -> None:
    """Expand an op.

    Assumptions about sizes inside the composite are checked when the function runs: where the operator states its types
    itself, inference has not seen them. A data-dependent extent keeps the name that its readers use.
    """
    pairs: list[Assumed] = []
    stated = [r.type for r in op.results]
    with collecting(pairs):
        made = expand_composite(op, rw.builder(op), op.operands)[: len(op.results)]
        rw.replace(op, made)
    rw.module.substitute(dict(_found(stated, [v.type for v in made])))
    known = {(str(c.lhs), str(c.rhs), c.func) for c in rw.module.constraints}
    new = {(str(a), str(b), f.name): Constraint(a, b, str(op.loc), f.name) for a, b, _ in pairs}
    rw.module.constraints += [c for key, c in new.items() if key not in known]


def _found(stated: Sequence[Type | None], made: Sequence[Type | None]) -> Iterator[tuple[str, Dim]]:
    """Symbols for data-dependent extents, with the earlier extents of the same results."""
    for old, new in zip(stated, made, strict=True):
        if isinstance(old, TensorType) and isinstance(new, TensorType) and old.shape and new.shape:
            for a, b in zip(old.shape, new.shape, strict=True):
                if isinstance(b, Sym) and b.is_symbol and depends_on_data(b) and a != b:
                    yield str(b), a
