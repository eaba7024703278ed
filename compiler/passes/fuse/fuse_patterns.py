"""Applies the fusion rules of the user."""

from __future__ import annotations

from typing import Any, ClassVar

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.kernel import Kernel
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.types import TensorType
from occ.compiler.passes.base import Context, Pass
from occ.compiler.passes.fuse.outline import outline, outline_foreign
from occ.compiler.passes.fuse.use_kernels import kernel_attrs
from occ.compiler.passes.rules.matcher import Matcher
from occ.compiler.passes.rules.replace import sorted_ops
from occ.compiler.passes.rules.rule import Fusion, Match, in_order
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class FusePatterns(Pass):
    """Groups the ops that fusion rules match into `fuse` regions named after the rule, before the compiler's own
    fusion.

    Rules are ordered by benefit, then by name; an op that one rule has taken is not offered to others. With
    `conv_relu`:
    `%c = Conv(%x, @w)  %y = Relu(%c)` --> `%y = fuse(%x) {kind="conv_relu"} do (%a) { ...  yield %y }`
    """

    name: ClassVar[str] = "fuse-patterns"

    def run(self, m: Module, ctx: Context) -> bool:
        rules = [r for r in in_order(ctx.rules, ctx.target.name) if isinstance(r, Fusion)]
        made, rw = 0, Rewriter(m)
        for rule in rules:  # a rule takes all its matches before the next one is tried
            for root in [op for func in m.funcs.values() for op in reversed(func.body.body)]:
                if root.parent is not None and root.parent.owner is None and root.name in rule.roots:
                    made += _apply(rule, root, rw, ctx)
        return made > 0


def _apply(rule: Fusion, root: Op, rw: Rewriter, ctx: Context) -> bool:
    matcher = Matcher(explain=ctx.why is not None)
    reason = ""
    for found in rule.matches(root, matcher):
        attrs: dict[str, Any] | None = None
        reason = obstacle(found)
        if not reason and rule.kernel is not None and ctx.target.name in rule.kernel.targets:
            attrs, reason = fit(rule, rule.kernel, found)
        if not reason:
            if ctx.why is not None:
                ctx.why(rule, root, "", found.ops)
            if attrs is None:
                _group(rule, found, rw)
            else:
                to_foreign(rule, found, attrs, rw)
            ctx.hits[rule.name] += 1
            return True
    if ctx.why is not None:
        ctx.why(rule, root, reason or matcher.reason, ())
    return False


def obstacle(found: Match) -> str:
    """Why a match cannot become one kernel; empty if it can."""
    ops = sorted_ops(found.ops)
    home = ops[0].parent
    for op in ops:
        if op.parent is not home:
            return "the ops are in different bodies"
        if op.regions or (op.spec.body is None and op.spec.composite is None):
            return f"`{op.name}` is not a tensor expression, it cannot be part of a kernel"
        if any(not isinstance(r.type, TensorType) for r in op.results):
            return f"`{op.name}` does not return a tensor"
        for r in op.results:
            if r not in found.outputs and op not in found.shared and any(u not in ops for u in r.users):
                return f"%{r.name}, another result of `{op.name}`, is read outside of the match"
    if _place(ops, found.shared) is None:
        return "an op between the matched ones depends on them and feeds them"
    return ""


def _place(ops: list[Op], shared: frozenset[Op]) -> Op | None:
    """The op before which a region with all of `ops` can be inserted; None if that makes a cycle."""
    home = ops[0].parent
    assert home is not None
    order = {op: k for k, op in enumerate(home)}
    inputs = [v.defining_op for op in ops for v in op.inputs]
    earliest = max((order.get(op, -1) for op in inputs if op is not None and op not in ops), default=-1)
    own = [op for op in ops if op not in shared]
    readers = [order[_outer(u, home)] for op in own for r in op.results for u in r.users if u not in ops]
    latest = min(readers, default=len(order))
    places = [op for op in home if earliest < order[op] <= latest and op not in own]
    return next((op for op in places if order[op] > order[ops[-1]]), places[-1] if places else None)


def _outer(op: Op, home: object) -> Op:
    """The op of the enclosing region that holds another op."""
    while op.parent is not home:
        assert op.parent is not None
        assert op.parent.owner is not None
        op = op.parent.owner
    return op


def _group(rule: Fusion, found: Match, rw: Rewriter) -> None:
    ops = sorted_ops(found.ops)
    before = _place(ops, found.shared)
    hint = {"schedule": rule.schedule} if rule.schedule else {}
    outline(_with_copies(ops, found.shared, rw), rw, before, kind=rule.name, **hint)


def fit(rule: Fusion, kernel: Kernel, found: Match) -> tuple[dict[str, Any] | None, str]:
    """The kernel arguments for a match; or why the kernel cannot take it."""
    types = [None if v is None else v.type for v in (*(found.names.get(n) for n in rule.params), *found.outputs)]
    if any(isinstance(t, TensorType) and t.shape is None for t in types):
        return None, "an operand has no known rank"
    try:
        return kernel_attrs(kernel, [*rule.params, *rule.results], types, found.names), ""
    except Invalid as e:
        return None, str(e)


def to_foreign(rule: Fusion, found: Match, attrs: dict[str, Any], rw: Rewriter) -> None:
    """Turn a match into an op that the rule's kernel computes."""
    operands = [v for n in rule.params if (v := found.names.get(n)) is not None]
    ops = sorted_ops(found.ops)
    before = _place(ops, found.shared)
    group = _with_copies(ops, found.shared, rw)
    outline_foreign(group, operands, list(found.outputs), rw, before, kind=rule.name, **attrs)


def _with_copies(ops: list[Op], shared: frozenset[Op], rw: Rewriter) -> list[Op]:
    """The ops of a region: shared ones that others also read are copied, with the ops that they depend on."""
    staying: set[Op] = set()
    for op in reversed(ops):
        readers = [u for r in op.results for u in r.users]
        if any(u in staying for u in readers) or (op in shared and any(u not in ops for u in readers)):
            staying.add(op)
    group: list[Op] = []
    copies: dict[Value, Value | None] = {}
    for op in ops:
        if op not in staying:
            rw.map_operands(op, copies)
            group.append(op)
            continue
        operands = [v if v is None else copies.get(v, v) for v in op.operands]
        types, names = [r.type for r in op.results], [r.name for r in op.results]
        made = Op(op.operator, operands, op.attrs, types, result_names=names, loc=op.loc)
        assert op.parent is not None
        op.parent.insert(made, op)
        copies |= dict(zip(op.results, made.results, strict=True))
        group.append(made)
    return group
