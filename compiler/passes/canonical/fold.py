"""Constant folding, bounded in size and work."""

from __future__ import annotations

from contextlib import suppress
from math import prod
from typing import ClassVar

import numpy as np

from occ.compiler.diagnostics import Invalid
from occ.compiler.interp.graph import Interpreter
from occ.compiler.ir.access import access
from occ.compiler.ir.build_te import build_te, static_elements
from occ.compiler.ir.deferred import is_deferred, result_types
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.func import Constraint
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Weight
from occ.compiler.ir.ops.own.data_dependent_sizes import is_defined_by_step
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.shape import Assumed, collecting, depends_on_data
from occ.compiler.ir.types import TensorType
from occ.compiler.passes.base import Context, Pass, finish
from occ.runtime.dataclass import dataclass
from occ.runtime.errors import RunError

_LARGE = 1 << 22  # elements of a result that numpy sweeps in half a second
_SWEEPS = 8  # of such sweeps, at most


@dataclass(frozen=True)
class Fold(Pass):
    """Evaluates ops whose operands are all constants.

    A result may have no more elements than all operands combined (or `small`), so that a broadcast never grows the
    model, and no op may take more than `max_work` multiplications. What becomes an operand of a contraction may have
    `most`: a weight that a model computes is packed and multiplied as any other.

    `%y = Mul(Cast(@w8), @scale)` --> `@y`
    """

    max_work: int = 1_000_000_000
    small: int = 1024
    most: int = 1 << 22

    name: ClassVar[str] = "fold"

    def run(self, m: Module, ctx: Context) -> bool:
        rw, interpreter = Rewriter(m), Interpreter(m)
        folded = 0
        computed = _computed_weights(m)
        for op in [op for func in m.funcs.values() for op in func.body]:
            if self._is_worth_folding(op, self.most if id(op) in computed else self.small):
                folded += _fold(op, m, rw, interpreter)
        if folded:
            fix_sizes(m)
        m.drop_unused_weights()
        rw.hits["fold"] += folded
        return finish(rw, ctx, folded)

    def _is_worth_folding(self, op: Op, small: int) -> bool:
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
        return out <= max(small, given) and work <= self.max_work and not (out > _LARGE and _takes_many_sweeps(op))


def _computed_weights(m: Module) -> set[int]:
    """The identities of ops that compute operands of contractions from constants alone; none that only copies."""
    ops = [op for func in m.funcs.values() for op in func.body]
    constant: set[int] = set()
    for op in ops:  # in the order in which they are computed
        made = [v.defining_op for v in op.inputs if not isinstance(v, Weight)]
        if op.inputs and all(o is not None and id(o) in constant for o in made):
            constant.add(id(op))
    found: set[int] = set()
    for op in reversed(ops):
        if id(op) in found or ("contraction" in op.spec.tags and id(op) not in constant):
            found |= {id(o) for v in op.inputs if (o := v.defining_op) is not None and id(o) in constant}
    return {id(op) for op in ops if id(op) in found and not op.spec.moves}


def fix_sizes(m: Module) -> None:
    """Replace sizes by numbers where the operand that defines them has become a constant.

    An example is the scales of a Resize: the op no longer has to wait, and nothing else defines its sizes.
    """
    values: dict[str, Dim] = {}
    for func in m.funcs.values():
        for op in func.body.walk():
            if not op.spec.static or op.spec.host or not any(map(depends_on_data, _extents(op))):
                continue
            assumed: list[Assumed] = []
            with suppress(Invalid), collecting(assumed):  # a mismatch is reported where the value is used
                told = _defined_by_operands(op)
                if told:
                    values |= {name: d for name, d in told.items() if name not in values}
                    m.constraints += [Constraint(a, b, str(op.loc), func.name) for a, b, _ in assumed]
    if values:
        m.substitute(values)


def _defined_by_operands(op: Op) -> dict[str, Dim]:
    """The sizes in result types that operands now define."""
    known = [t for t in result_types(op, static_elements) if isinstance(t, TensorType) and t.shape is not None]
    if len(known) < len(op.results):
        return {}
    pairs = zip(_extents(op), (d for t in known for d in t.dims), strict=True)
    return {str(a): b for a, b in pairs if is_defined_by_step(a) and depends_on_data(a) and not depends_on_data(b)}


def _extents(op: Op) -> list[Dim]:
    return [d for r in op.results if isinstance(r.type, TensorType) for d in r.type.shape or ()]


def _takes_many_sweeps(op: Op) -> bool:
    """Whether numpy makes many passes over the elements, as for CumSum; compiled code is faster then."""
    if "contraction" in op.spec.tags:
        return False
    return len(build_te("probe", [op], list(dict.fromkeys(op.inputs)), op.results).stages) > _SWEEPS


def _fold(op: Op, m: Module, rw: Rewriter, interpreter: Interpreter) -> int:
    try:
        results = interpreter.op(op, {}, {})
    except RunError:
        return 0  # it fails at run time too, with an error of its own
    rw.replace(op, [m.add_weight(r.name, np.asarray(x, order="C")) for r, x in zip(op.results, results, strict=True)])
    return 1
