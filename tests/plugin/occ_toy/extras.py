"""A pass, a rule and an operator."""

from dataclasses import dataclass
from typing import ClassVar

import occ
from occ.plugin import Rewriter


@dataclass(frozen=True)
class DoubleNegation(occ.Pass):
    """Removes pairs of negations: `Neg(Neg(x))` --> `x`."""

    name: ClassVar[str] = "double-negation"
    stage: ClassVar[str] = "canonical"

    def run(self, m, ctx):
        rw, count = Rewriter(m), 0
        for op in list(m.walk()):
            inner = op.operands[0].defining_op if op.name == "Neg" else None
            if inner is not None and inner.name == "Neg":
                rw.replace(op, [inner.operands[0]])
                if not inner.result.uses:
                    rw.erase(inner)
                count += 1
        ctx.hits[self.name] += count
        return count > 0


@occ.rewrite
def mish(p, x):
    """x * tanh(softplus(x)) is Mish"""
    return x * p.Tanh(p.Softplus(x))


@mish.into
def _(b, x):
    return b.Mish(x)


@occ.operator("com.example.toy.Halve")
class Halve:
    """Half of a number."""

    operands = ("x",)

    def body(t, x, *, a):
        return t.map(x.shape, lambda *i: x[i] * 0.5, name="halve")
