"""Splits control flow on ranks that depend on sizes, and infers each case separately.

Exporters write `If(T == 1) {Squeeze} {Identity}`, and Squeeze without axes: the rank of the result depends on a
symbolic extent, and so does every rank after it. All readers of the result move into the branches of an If, where ranks
are known. If a branch is impossible because an operator in it does not fit its operands, the condition becomes a
requirement on inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from occ.compiler.ir.dim import Dim, Sym, lower, upper
from occ.compiler.ir.func import Constraint, Func
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import FuncRef, Op, Region, Value
from occ.compiler.ir.outline import outline
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.shape import depends_on_data
from occ.compiler.ir.types import TensorType
from occ.compiler.passes.infer.infer_control import inline_branch
from occ.compiler.passes.infer.known_elements import Known
from occ.compiler.passes.infer.trip_counts import known_number, max_trip_count

_LARGEST = 200  # ops that are copied into both branches
_BRANCHES = ("then_branch", "else_branch")
Ops = Sequence[Op]


class Splitting(Known, Protocol):
    """An inference that has tried branches.

    Attributes:
        impossible: functions of branches in which an op does not fit its operands.
    """

    impossible: set[str]


def split_cases(known: Splitting, m: Module, made: set[str]) -> list[Constraint] | None:
    """Take the next step where sizes decide a rank; None if there is nothing to do.

    `%y = If(%c, %x) ...  %z = Relu(%y)` --> `%z = If(%c, %x) {then_branch=@(.. Relu), else_branch=@(.. Relu)}`

    Args:
        known: elements of the module's values.
        m: every value has a type.
        made: functions that earlier steps created.

    Returns:
        The conditions that inputs must now meet.
    """
    for func in list(m.funcs.values()):
        for op in func.body.body:
            if op.name == "If" and op.attrs["else_branch"] in made & known.impossible - {op.attrs["then_branch"]}:
                sides = _equal_sides(known, op.operands[0])
                if sides is not None and op.attrs["then_branch"] not in known.impossible:
                    node = str(op.loc)
                    inline_branch(m, op, "then_branch")
                    return [Constraint(*sides, node, func.name)]
            if _is_case(known, op, func) and _split(m, op, func, made):
                return []
    return None


def set_shape_conditions(known: Known, m: Module) -> None:
    """Record the sizes that an If compares, `when=(T, 1)`, if the shapes of its branches differ.

    A result's shape is then known before the run. At a Loop that data end, record its maximum trip count.
    """
    for op in m.walk():
        if op.name == "Loop":
            op.attrs.pop("upper_bounds", None)
            most = max_trip_count(known, op)
            if most is not None and any(_has_rank(r) and any(map(depends_on_data, r.tensor.dims)) for r in op.results):
                op.attrs["upper_bounds"] = (most,)
        if op.name == "If":
            op.attrs.pop("when", None)
            sides = _equal_sides(known, op.operands[0])
            if sides is not None and not all(
                _has_rank(r) and not any(map(depends_on_data, r.tensor.dims)) for r in op.results
            ):
                op.attrs["when"] = sides


def _is_case(known: Known, op: Op, func: Func) -> bool:
    """Whether sizes decide the rank of a result, and knowing it helps."""
    if all(_has_rank(r) for r in op.results) or not all(map(_has_rank, op.inputs)):
        return False
    if op.name == "Squeeze":
        return len(op.inputs) == 1 and len(_loose_axes(op)) == 1
    read_on = any(user is not func.body.terminator for r in op.results for user, _ in r.uses)
    return op.name == "If" and read_on and _equal_sides(known, op.operands[0]) is not None


def _has_rank(v: Value) -> bool:
    return isinstance(v.type, TensorType) and v.type.shape is not None


def _loose_axes(op: Op) -> list[int]:
    """Axes of a Squeeze's operand whose extent may or may not be 1."""
    dims = op.inputs[0].tensor.dims
    return [k for k, d in enumerate(dims) if isinstance(d, Sym) and lower(d) <= 1 <= upper(d)]


def _equal_sides(known: Known, condition: Value | None) -> tuple[Dim, Dim] | None:
    """The two sizes that a condition compares for equality."""
    op = None if condition is None else condition.defining_op
    while op is not None and (op.name == "Identity" or (op.name == "Cast" and op.result.tensor.dtype.kind == "b")):
        op = op.inputs[0].defining_op
    if op is None or op.name != "Equal":
        return None
    a, b = (known_number(known, v) for v in op.inputs)
    return None if a is None or b is None else (a, b)


def _split(m: Module, op: Op, func: Func, made: set[str]) -> bool:
    """Move an op and all its readers into the branches of an If; returns whether that was possible."""
    following = _following(op)
    end = func.body.terminator
    given = list(dict.fromkeys(v for v in end.inputs if v.defining_op in (op, *following)))
    if len(following) > _LARGEST or not given:
        return False
    rw = Rewriter(m)
    condition = op.operands[0] if op.name == "If" else _is_one(m, op, rw)
    regions: dict[str, Region] = {}
    for branch in _BRANCHES:
        copier = _Copier(m)
        copier.case(op, branch)
        copier.ops(following)
        copier.region.close([copier.values[v] for v in given])
        regions[branch] = copier.region
    case = Op("If", [condition], {}, [None] * len(given), result_names=[v.name for v in given], loc=op.loc)
    func.body.insert(case, end)
    outline(m, case, regions)
    made.update(str(case.attrs[branch]) for branch in _BRANCHES)
    rw.map_operands(end, dict(zip(given, case.results, strict=True)))
    for gone in (*reversed(following), op):
        rw.erase(gone)
    m.drop_unused_funcs()
    return True


def _following(op: Op) -> list[Op]:
    """The ops of the region that depend on the results of an op, in order."""
    found: list[Op] = []
    values = set(op.results)
    later = op.next
    while later is not None:
        if not later.is_terminator and any(v in values for inner in later.walk() for v in inner.inputs):
            found.append(later)
            values.update(later.results)
        later = later.next
    return found


def _is_one(m: Module, op: Op, rw: Rewriter) -> Value:
    """The condition that the one axis a Squeeze may drop has extent 1."""
    (axis,) = _loose_axes(op)
    b = rw.builder(op)
    extent = b.op("dims", values=(op.inputs[0].tensor.dims[axis],), shape=())
    return b.op("Equal", extent, m.add_weight(f"{op.result.name}.one", np.array(1)))


class _Copier:
    """Copies ops, with the functions that they run, into a region."""

    def __init__(self, m: Module) -> None:
        self.m, self.region = m, Region()
        self.values: dict[Value, Value | None] = {}

    def case(self, op: Op, branch: str) -> None:
        """The form of an op in one of the cases."""
        if op.name == "If":
            func = self.m.funcs[op.attrs[branch]]
            self.values |= dict(zip(func.args, op.operands[1:], strict=True))
            self.ops(func.body.body)
            self.values |= {r: self.values.get(v, v) for r, v in zip(op.results, func.results, strict=True)}
            return
        (axis,) = _loose_axes(op)
        ones = [k for k, d in enumerate(op.inputs[0].tensor.dims) if d == 1 or (k == axis and branch == "then_branch")]
        axes = self.m.add_weight(f"{op.result.name}.axes", np.array(ones, np.int64))
        made = Op("Squeeze", [op.inputs[0], axes], {}, [None], result_names=[op.result.name], loc=op.loc)
        self.values[op.result] = self.region.insert(made).result

    def ops(self, ops: Ops) -> None:
        for op in ops:
            self._op(op, self.region, self.values)

    def _op(self, op: Op, region: Region, values: dict[Value, Value | None]) -> None:
        attrs = {k: self._func(v) if isinstance(v, FuncRef) else v for k, v in op.attrs.items()}
        copy = Op(
            op.operator, _mapped(op.operands, values), attrs, [None] * len(op.results),
            result_names=[r.name for r in op.results], loc=op.loc,
            regions=[self._region(inner, values) for inner in op.regions],
        )  # fmt: skip
        region.insert(copy)
        values.update(zip(op.results, copy.results, strict=True))

    def _region(self, region: Region, outer: Mapping[Value, Value | None]) -> Region:
        made = Region([None] * len(region.args), [a.name for a in region.args])
        values = {**outer, **dict(zip(region.args, made.args, strict=True))}
        for op in region:
            self._op(op, made, values)
        return made

    def _func(self, ref: FuncRef) -> FuncRef:
        old = self.m.funcs[ref]
        name = self.m.unused_func(old.name)
        body = self._region(old.body, {})
        self.m.funcs[name] = Func(name, body, list(old.result_names))
        return FuncRef(name)


def _mapped(operands: Sequence[Value | None], values: Mapping[Value, Value | None]) -> list[Value | None]:
    return [v if v is None else values.get(v, v) for v in operands]
