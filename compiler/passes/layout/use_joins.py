"""Turns Concats into joins, whose operands are computed in the memory of the result."""

from __future__ import annotations

from typing import ClassVar

from occ.compiler.ir.access import access
from occ.compiler.ir.func import Func
from occ.compiler.ir.liveness import captured_values
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.shape import depends_on_data, normalize_axis
from occ.compiler.ir.types import TensorType
from occ.compiler.passes.base import Context, Pass
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class UseJoins(Pass):
    """Turns a Concat into a `join` if most of its operands can be written directly into the result's memory.

    A `join` is not part of any kernel; `place-joins` decides where its operands are. If it begins with all operands of
    another join, it reads that join's result instead, so that both share memory.

    `%c = Concat(%a, %b)  %d = Concat(%a, %b, %e)` --> `%c = join(%a, %b)  %d = join(%c, %e)`
    """

    strided: bool = True  # whether kernels can write rows that are not contiguous

    name: ClassVar[str] = "use-joins"

    def run(self, m: Module, ctx: Context) -> bool:
        rw = Rewriter(m)
        made = sum(_Joins(func, rw, strided=self.strided).run() for func in m.funcs.values())
        ctx.hits["use-joins"] += made
        return made > 0


class Claims:
    """Which values of a function may be in the memory of a join.

    Attributes:
        taken: those already in one.
    """

    def __init__(self, func: Func) -> None:
        self.body = func.body
        self.taken: set[Value] = set()
        self._kept = {*func.body.terminator.inputs}
        self._kept |= {v for op in func.body for r in op.regions if op.name != "fuse" for v in captured_values(r)}

    def may_lie_in(self, value: Value | None, join: Op) -> bool:
        """Whether the operand's kernel could write it there, and all its readers can read it there."""
        if value is None or isinstance(value, Weight) or value in self.taken or value in self._kept:
            return False
        maker = value.defining_op
        if maker is None or len(maker.results) != 1 or not is_kernel(maker):
            return False
        return join.operands.count(value) == 1 and all(u.parent is self.body and is_kernel(u) for u in value.users)


def is_kernel(op: Op) -> bool:
    """Whether an op is computed by kernels that support strides, or is a join."""
    if op.name in ("fuse", "pack"):
        return True
    apart = op.regions or op.spec.tags & {"view", "shape"} or access(op).permutation is not None
    return op.spec.body is not None and not apart


def axis_of(join: Op) -> int:
    """The axis along which the operands are concatenated."""
    return normalize_axis(join.a.axis, join.result.tensor.rank, join.name)


def mostly(join: Op, chosen: list[Value]) -> bool:
    """Whether some operands make up at least half of the result, by elements if those are known."""
    axis = axis_of(join)
    extents = {v: v.tensor.dims[axis] for v in join.inputs}
    weight = {v: n if isinstance(n, int) else 1 for v, n in extents.items()}
    if not all(isinstance(n, int) for n in extents.values()):
        weight = dict.fromkeys(extents, 1)
    return bool(chosen) and 2 * sum(weight[v] for v in chosen) >= sum(weight[v] for v in join.inputs)


class _Joins:
    def __init__(self, func: Func, rw: Rewriter, *, strided: bool) -> None:
        self.claims, self.rw, self.strided = Claims(func), rw, strided
        self.done: list[Op] = []

    def run(self) -> int:
        return sum(self._try(op) for op in list(self.claims.body) if op.spec.joins)

    def _try(self, op: Op) -> bool:
        if not isinstance(op.result.type, TensorType) or op.result.tensor.dtype.kind == "s":
            return False
        if any(depends_on_data(d) for d in op.result.tensor.dims):
            return False  # its memory could not be allocated before the first operand is computed
        if not self.strided and any(d != 1 for d in op.result.tensor.dims[: axis_of(op)]):
            return False
        given = op.operands
        self.rw.replace_operands(op, self._with_beginning(op))
        chosen = [v for v in op.inputs if self.claims.may_lie_in(v, op)]
        if len(op.inputs) < 2 or not mostly(op, chosen):
            self.rw.replace_operands(op, given)
            return False
        self.claims.taken.update(chosen)
        made = Op(
            "join", op.operands, {"axis": axis_of(op)}, [op.result.type], result_names=[op.result.name], loc=op.loc
        )
        self.done.append(self.rw.exchange(op, made))
        return True

    def _with_beginning(self, op: Op) -> tuple[Value | None, ...]:
        """The operands, a prefix of them as one value if an earlier join has exactly those."""
        operands, best = tuple(op.operands), 0
        found = operands
        for join in self.done:
            whole = self._leaves(join)
            if best < len(whole) < len(operands) and operands[: len(whole)] == whole and axis_of(join) == axis_of(op):
                best, found = len(whole), (join.result, *operands[len(whole) :])
        return found

    def _leaves(self, join: Op) -> tuple[Value, ...]:
        """The operands of a join, including those of the join that it begins with."""
        first, *rest = join.inputs
        maker = first.defining_op
        inside = maker is not None and maker in self.done and axis_of(maker) == axis_of(join)
        return (*(self._leaves(maker) if inside and maker is not None else (first,)), *rest)
