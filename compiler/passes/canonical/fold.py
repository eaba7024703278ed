"""Constant folding, bounded in size and work."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from occ.compiler.interp.graph import Interpreter
from occ.compiler.ir.access import access
from occ.compiler.ir.deferred import is_deferred
from occ.compiler.ir.meaning import build_te
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.types import TensorType
from occ.compiler.ir.value import Weight
from occ.compiler.passes.base import Context, Pass, finish
from occ.runtime.errors import RunError

_LARGE = 1 << 22  # elements of a result of which a sweep by numpy takes half a second
_SWEEPS = 8  # of those, at most


@dataclass(frozen=True)
class Fold(Pass):
    """Evaluates ops whose operands are all constants.

    A result may have no more elements than the operands together (or `small`), so that a broadcast never grows the
    model, and no op may take more than `max_work` multiplications.

    `%y = Mul(Cast(@w8), @scale)` --> `@y`
    """

    max_work: int = 1_000_000_000
    small: int = 1024

    name: ClassVar[str] = "fold"

    def run(self, m: Module, ctx: Context) -> bool:
        rw, interpreter = Rewriter(m), Interpreter(m)
        folded = 0
        for op in [op for func in m.funcs.values() for op in func.body]:
            if self._is_worth_folding(op):
                folded += _fold(op, m, rw, interpreter)
        m.drop_unused_weights()
        rw.hits["fold"] += folded
        return finish(rw, ctx, folded)

    def _is_worth_folding(self, op: Op) -> bool:
        if not op.results or not op.inputs or op.regions:
            return False
        if op.spec.is_internal and not access(op).elementwise:
            return False
        if op.spec.body is None or not all(isinstance(v, Weight) for v in op.inputs):
            return False
        if is_deferred(op):
            return False
        if not all(isinstance(r.type, TensorType) and r.type.is_static for r in op.results):
            return False
        out = sum(prod(r.tensor.static) for r in op.results)
        given = sum(v.data.size for v in op.inputs if isinstance(v, Weight))
        depth = max((v.tensor.static[-1] for v in op.inputs if v.tensor.rank), default=1)
        work = out * (depth if "contraction" in op.spec.tags else 1)
        return out <= max(self.small, given) and work <= self.max_work and not (out > _LARGE and _takes_many_sweeps(op))


def _takes_many_sweeps(op: Op) -> bool:
    """Whether numpy goes over the elements many times, as a CumSum does; runs do that faster than the interpreter."""
    if "contraction" in op.spec.tags:
        return False
    return len(build_te("probe", [op], list(dict.fromkeys(op.inputs)), op.results).stages) > _SWEEPS


def _fold(op: Op, m: Module, rw: Rewriter, interpreter: Interpreter) -> int:
    try:
        results = interpreter.op(op, {}, {})
    except RunError:
        return 0  # it fails at run time too, and says so there
    rw.replace(op, [m.add_weight(r.name, np.asarray(x, order="C")) for r, x in zip(op.results, results, strict=True)])
    return 1
