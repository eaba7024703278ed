"""Applies the rewrite rules of the user."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import ClassVar

from occ.compiler.diagnostics import error
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.passes.base import Context, Pass, finish
from occ.compiler.passes.rules.matcher import Matcher
from occ.compiler.passes.rules.replace import replace
from occ.compiler.passes.rules.rule import Rewrite, Rule, in_order
from occ.runtime.dataclass import dataclass

_DEEPEST = 16  # rewrites of rewritten ops; rules that undo each other hit this limit


@dataclass(frozen=True)
class ApplyRewrites(Pass):
    """Applies the user's rewrite rules of a stage until none matches; does nothing if there are no rules.

    Rules are ordered by benefit, then by name. With the rule `hard_swish`:
    `%s = HardSigmoid(%x) {alpha=0.1666}  %y = Mul(%x, %s)` --> `%y = HardSwish(%x)`
    """

    at: str = "canonical"

    name: ClassVar[str] = "apply-rewrites"

    def run(self, m: Module, ctx: Context) -> bool:
        rules = [r for r in in_order(ctx.rules, ctx.target.name) if isinstance(r, Rewrite) and r.stage == self.at]
        if not rules:
            return False
        sweep = _Sweep(rules, Rewriter(m), ctx)
        changes = 0
        while made := sweep.run(m):
            changes += made
        m.drop_unused_weights()
        return finish(sweep.rw, ctx, changes)


def by_root(rules: Iterable[Rule]) -> dict[str, list[Rule]]:
    """Rules by the operator at which they match, in order."""
    table: dict[str, list[Rule]] = {}
    for rule in rules:
        for root in rule.roots:
            table.setdefault(root, []).append(rule)
    return table


@dataclass
class _Sweep:
    """Walks a module and applies rules.

    Attributes:
        history: for ops that rules made, the rules that led to them, oldest first.
    """

    rules: list[Rewrite]
    rw: Rewriter
    ctx: Context
    history: dict[Op, tuple[str, ...]] = field(default_factory=dict)

    def run(self, m: Module) -> int:
        """One sweep over all ops; returns the number of changes."""
        table = by_root(self.rules)
        changes = 0
        for op in list(m.walk()):
            for rule in table.get(op.name, ()) if op.parent is not None else ():
                assert isinstance(rule, Rewrite)
                if self._apply(rule, op):
                    changes += 1
                    break
        return changes

    def _apply(self, rule: Rewrite, op: Op) -> bool:
        matcher = Matcher(explain=self.ctx.why is not None)
        reason = ""
        for found in rule.matches(op, matcher):
            past = max((self.history.get(o, ()) for o in found.ops), key=len)
            if len(past) >= _DEEPEST:
                raise self._endless(rule, op, past)
            if self.ctx.why is not None:  # while the op is still in its old place
                self.ctx.why(rule, op, "", found.ops)
            made = replace(rule, found, self.rw)
            if isinstance(made, list):
                self.history |= dict.fromkeys(made, (*past, rule.name))
                self.rw.hits[rule.name] += 1
                return True
            reason = made
        if self.ctx.why is not None:
            self.ctx.why(rule, op, reason or matcher.reason, ())
        return False

    def _endless(self, rule: Rewrite, op: Op, past: tuple[str, ...]) -> Exception:
        names = " and ".join(f"`{n}`" for n in dict.fromkeys((*past[-4:], rule.name)))
        several = len({*past[-4:], rule.name}) > 1
        message = f"the rules {names} undo each other" if several else f"the rule {names} does not terminate"
        where = f"{self.ctx.source}: {op.loc}"
        return error(
            "OCC0611", message, where=where, help="add a `when` to one of them that rejects what the other makes"
        )
