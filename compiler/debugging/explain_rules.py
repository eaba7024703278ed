"""Explains why a rule does or does not match at a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from occ.compiler.ir.op import Op
from occ.compiler.ir.printer import op_text
from occ.compiler.passes.rules.pattern import Result
from occ.compiler.passes.rules.rule import Rule
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class Verdict:
    """The outcome of one rule near a value.

    Attributes:
        distance: ops between the value and the op at which the rule was tried.
        op: the op, as text.
        reason: why it did not match; empty if it did.
    """

    distance: int
    op: str
    reason: str


@dataclass
class MatchExplainer:
    """Observes the passes that apply rules, as `Settings.why`.

    Attributes:
        value: name of the value in question, or of an ONNX node.
        verdicts: the nearest one, by rule name.
    """

    value: str
    verdicts: dict[str, Verdict] = field(default_factory=dict)

    def __call__(self, rule: Rule, op: Op, reason: str, matched: Sequence[Op]) -> None:
        if matched and not any(self._is_named(o) for o in matched):
            return  # it matches nearby, but not this
        depth = sum(isinstance(p, Result) for pattern in rule.patterns for p in pattern.walk())
        distance = self._distance(op, depth)
        if distance is None:
            return
        old = self.verdicts.get(rule.name)
        same = old is not None and old.op == op_text(op)  # its replacement was rejected after all
        if old is None or same or (bool(reason), distance) <= (bool(old.reason), old.distance):
            self.verdicts[rule.name] = Verdict(distance, op_text(op), reason)

    def _distance(self, op: Op, limit: int) -> int | None:
        """The number of ops between an op and the value above it; None if more than a pattern has."""
        frontier = [op]
        for distance in range(limit):
            if any(self._is_named(o) for o in frontier):
                return distance
            makers = (v.defining_op for o in frontier for v in o.inputs)
            frontier = list(dict.fromkeys(o for o in makers if o is not None))
        return None

    def _is_named(self, op: Op) -> bool:
        return any(r.name == self.value for r in op.results) or self.value in op.loc.nodes

    def explain(self, rule: Rule) -> str:
        """One line about a rule."""
        found = self.verdicts.get(rule.name)
        if found is None:
            starts = " or ".join(f"`{r}`" for r in rule.roots)
            taken = next((n for n, v in self.verdicts.items() if not v.reason and n != rule.name), None)
            by = f"; `{taken}` matched there first" if taken else ""
            return f"not tried: it starts at {starts}, and none is at or after %{self.value}{by}"
        at = "" if found.distance == 0 else f" (tried at {found.op})"
        return (f"does not match: {found.reason}" if found.reason else "matches") + at
