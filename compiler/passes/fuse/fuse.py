"""Greedy producer-consumer fusion, by the access patterns of te bodies."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field, replace
from typing import ClassVar

from occ.compiler.ir.access import access
from occ.compiler.ir.build_te import build_te, parameters
from occ.compiler.ir.func import Func
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.te.expr import Call, Expr, Load, Reduce, Select
from occ.compiler.ir.te.function import Scatter, TeFunc, TeStage, position
from occ.compiler.ir.te.walks import walk
from occ.compiler.ir.types import TensorType
from occ.compiler.passes.base import Context, Pass
from occ.compiler.passes.fuse.outline import outline, results_of
from occ.compiler.passes.fuse.structural_key import structural_key
from occ.runtime.dataclass import dataclass

OPAQUE, MAP, REDUCTION, CONTRACTION = "opaque", "map", "reduction", "contraction"


_APART = ("join", "append", "write_into")  # their operands share the memory of the result


@dataclass(frozen=True)
class Fuse(Pass):
    """Groups ops into `fuse` regions that become one kernel each. A region has one result, its last op's.

    Elementwise ops join the contraction, reduction or elementwise op that they read element by element. Elementwise ops
    read only by one reduction or elementwise op join it; so do those that only widen an operand of a contraction's
    elementwise ops.

    `%c = Conv(%x, @w)  %y = Relu(%c)`
    --> `%y = fuse(%x, @w) do (%a, %b) { %c = Conv(%a, %b)  %r = Relu(%c)  yield %r }`
    """

    max_ops: int = 32
    max_operands: int = 128  # ops per group, which bounds the parameters and the depth of its kernel
    lazy_transpose: bool = False  # leave Transpose and similar ops alone: a later pass turns them into views

    name: ClassVar[str] = "fuse"

    def run(self, m: Module, ctx: Context) -> bool:
        known: dict[Hashable, FusionFacts] = {}
        rw = Rewriter(m)
        made = sum(self._function(func, known, rw) for func in m.funcs.values())
        ctx.hits["fuse"] += made
        return made > 0

    def _function(self, func: Func, known: dict[Hashable, FusionFacts], rw: Rewriter) -> int:
        facts = {op: self._facts(op, known) for op in func.body.body}
        grouping = _Grouping(facts, self.max_ops, self.max_operands)
        for kind in (CONTRACTION, REDUCTION, MAP):
            for op in facts:
                if facts[op].kind == kind and op not in grouping.group_of:
                    grouping.grow(op)
        for op in facts:
            if facts[op].kind == REDUCTION:
                grouping.absorb_producers(op)
            elif facts[op].kind == CONTRACTION:
                grouping.absorb_widening(op)
            elif facts[op].kind == MAP:
                grouping.absorb_elementwise(op)
        made = 0
        for group in grouping.groups():
            if len(group) > 1:
                outline(group, rw)
                made += 1
        return made

    def _facts(self, op: Op, known: dict[Hashable, FusionFacts]) -> FusionFacts:
        """The facts of an op; networks repeat themselves, so those of equal ops are cached."""
        if self.lazy_transpose and access(op).permutation is not None:
            return FusionFacts(OPAQUE)
        inputs = list(dict.fromkeys(op.inputs))
        key = structural_key([op], inputs, op.results)
        if key not in known:
            known[key] = FusionFacts.of(op)
        found = known[key]
        return replace(found, pointwise={inputs[k] for k in found.positions})


@dataclass
class FusionFacts:
    """Facts about an op that fusion depends on.

    Attributes:
        kind: `opaque`, `map` (no reduction), `reduction` or `contraction`.
        pointwise: operands read exactly at the position of the result.
        positions: the same as positions among the distinct operands.
        cost: elementary functions evaluated per element of the result.
        joins: whether the position decides which operand is read, as in Concat.
    """

    kind: str
    pointwise: set[Value] = field(default_factory=set)
    cost: int = 0
    positions: tuple[int, ...] = ()
    joins: bool = False

    @classmethod
    def of(cls, op: Op) -> FusionFacts:
        if op.spec.body is None or op.regions or "view" in op.spec.tags or len(op.results) != 1 or op.name in _APART:
            return cls(OPAQUE)
        if not isinstance(op.result.type, TensorType) or op.result.tensor.dtype.kind == "s":
            return cls(OPAQUE)
        if "contraction" in op.spec.tags:
            return cls(CONTRACTION)
        inputs = list(dict.fromkeys(op.inputs))
        f = build_te("probe", [op], inputs, op.results)
        if any(isinstance(s, Scatter) for s in f.stages) or f.checks:
            return cls(OPAQUE)
        stages = [s for s in f.stages if isinstance(s, TeStage)]
        nodes = [n for s in stages for n in walk(s.expr)]
        if any(isinstance(n, Reduce) for n in nodes):
            return cls(REDUCTION)
        cost = sum(isinstance(n, Call) for n in nodes)
        pointwise: set[Value] = _pointwise(f, op, inputs) if len(stages) == 1 else set()
        positions = tuple(k for k, v in enumerate(inputs) if v in pointwise)
        return cls(MAP, pointwise, cost, positions, any(_is_join(n) for n in nodes))


def _is_join(n: Expr) -> bool:
    if not isinstance(n, Select) or any(isinstance(c, Load) for c in walk(n.cond)):
        return False
    a, b = ({x.source for x in walk(side) if isinstance(x, Load)} for side in (n.then, n.other))
    return bool(a and b and a != b)


def _pointwise(f: TeFunc, op: Op, inputs: list[Value]) -> set[Value]:
    (stage,) = f.stages
    assert isinstance(stage, TeStage)
    here = position(stage.axes)
    elsewhere = {n.source for n in walk(stage.expr) if isinstance(n, Load) and n.index != here}
    shapes = {p.name: p.type.dims for p in f.params}
    names = parameters(inputs, [op])
    return {names[n] for n in shapes if n not in elsewhere and shapes[n] == stage.shape}


class _Grouping:
    """Groups under construction: every op in at most one."""

    def __init__(self, facts: dict[Op, FusionFacts], max_ops: int, max_operands: int) -> None:
        self.facts, self.max_ops, self.max_operands = facts, max_ops, max_operands
        self.order = {op: k for k, op in enumerate(facts)}
        self.group_of: dict[Op, list[Op]] = {}

    def groups(self) -> list[list[Op]]:
        """The groups, each in order."""
        unique = {id(g): g for g in self.group_of.values()}
        return [sorted(g, key=self.order.__getitem__) for g in unique.values()]

    def grow(self, seed: Op) -> None:
        """Let a group absorb its consumers, in order, and keep the largest state in which it has one result.

        An op is absorbed even if the group then has several results, because later ops may join them again (`x *
        sigmoid(x)`). Absorbing the first consumer in order cannot make a cycle: any op on another path from the group
        to it would be an earlier consumer.
        """
        group = [seed]
        committed = [seed]
        while len(group) < self.max_ops:
            users = [u for v in results_of(group) for u in v.users if u not in group]
            if not users or any(u not in self.order for u in users):
                break
            following = min(users, key=self.order.__getitem__)
            if following in self.group_of or not self._may_join(following, group):
                break
            group.append(following)
            if len(results_of(group)) == 1:
                committed = list(group)
        for op in committed:
            self.group_of[op] = committed

    def _may_join(self, op: Op, group: list[Op]) -> bool:
        facts = self.facts[op]
        if facts.kind != MAP or not self._has_room([*group, op]):
            return False
        inside = [v for v in op.inputs if v.defining_op in group]
        if all(v in facts.pointwise for v in inside):
            return True
        # Reads at another position recompute their producer, so only cheap ones are absorbed, and no reduction is
        # repeated.
        only_maps = all(self.facts[g].kind == MAP and self.facts[g].cost == 0 for g in group)
        return only_maps and all(v.tensor.size == op.result.tensor.size for v in inside)

    def _has_room(self, group: list[Op]) -> bool:
        return sum(len(op.operands) for op in group) <= self.max_operands

    def absorb_producers(self, op: Op) -> None:
        """Let a reduction absorb the elementwise groups that only it reads.

        A Concat stays outside: a window reads each element several times, and each time would have to find the operand
        that holds it.
        """
        group = self.group_of[op]
        for value in dict.fromkeys(op.inputs):
            maker = value.defining_op
            if maker is None or maker not in self.group_of or value.users != [op] or self.group_of[maker] is group:
                continue
            producers = self.group_of[maker]
            fits = len(producers) + len(group) <= self.max_ops and self._has_room([*producers, *group])
            fits = fits and all(self.facts[p].kind == MAP and not self.facts[p].joins for p in producers)
            if fits and results_of(producers) == [value]:
                group += producers
                for p in producers:
                    self.group_of[p] = group

    def absorb_elementwise(self, op: Op) -> None:
        """Merge elementwise groups that only one op of this group reads, element by element.

        Both operands of a sum of two chains become one kernel.
        """
        group = self.group_of[op]
        if any(self.facts[g].kind != MAP for g in group):
            return
        for value in [v for v in dict.fromkeys(op.inputs) if v in self.facts[op].pointwise]:
            maker = value.defining_op
            if maker is None or maker not in self.group_of or value.users != [op] or self.group_of[maker] is group:
                continue
            producers = self.group_of[maker]
            fits = len(producers) + len(group) <= self.max_ops and self._has_room([*producers, *group])
            if fits and all(self.facts[p].kind == MAP for p in producers) and results_of(producers) == [value]:
                group += producers
                for p in producers:
                    self.group_of[p] = group

    def absorb_widening(self, op: Op) -> None:
        """Let the group of a contraction absorb ops that only widen an operand of its elementwise ops.

        An example is the dequantization of a residual: that reads fewer bytes than they would write.
        """
        group = self.group_of[op]
        for member in [g for g in group if self.facts[g].kind == MAP]:
            for value in [v for v in dict.fromkeys(member.inputs) if v in self.facts[member].pointwise]:
                chain = self._widening(value) if value.users == [member] and value.defining_op not in group else []
                if not chain or len(chain) + len(group) > self.max_ops or not self._has_room([*chain, *group]):
                    continue
                left = self.group_of[chain[0]]
                rest = [g for g in left if g not in chain]
                if rest and results_of(rest) != [_read_whole(chain[-1])]:
                    continue
                left[:] = rest
                group += chain
                for taken in chain:
                    self.group_of[taken] = group

    def _widening(self, value: Value) -> list[Op]:
        """The elementwise ops of one group, last first, that compute an operand of another from smaller elements."""
        chain: list[Op] = []
        here = value
        while (maker := here.defining_op) in self.group_of and here.users == [chain[-1] if chain else value.users[0]]:
            assert maker is not None
            read = _read_whole(maker)
            alike = not chain or self.group_of[maker] is self.group_of[chain[0]]
            if read is None or self.facts[maker].kind != MAP or not alike or read not in self.facts[maker].pointwise:
                return []
            chain.append(maker)
            if read.tensor.dtype.bits < value.tensor.dtype.bits:
                return chain
            here = read
        return []


def _read_whole(op: Op) -> Value | None:
    """The only operand that has as many elements as the result; None if there are several."""
    whole = [v for v in dict.fromkeys(op.inputs) if v.tensor.size == op.result.tensor.size]
    return whole[0] if len(whole) == 1 else None
