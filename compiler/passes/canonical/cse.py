"""Common subexpression elimination."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from occ.compiler.ir.attribute_keys import frozen
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Region, Weight
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.passes.base import Context, Pass, finish
from occ.runtime.dataclass import dataclass

_NAMES = ("defines", "upper_bounds")  # attributes that only name the operands
_SMALL = 1024  # maximum bytes of a constant worth comparing


@dataclass(frozen=True)
class Cse(Pass):
    """Merges ops that compute the same value, and equal small constants.

    `%a = Shape(%x)  %b = Shape(%x)` --> `%a = Shape(%x)`
    """

    name: ClassVar[str] = "cse"

    def run(self, m: Module, ctx: Context) -> bool:
        rw = Rewriter(m)
        merged = _merge_weights(m)
        for func in m.funcs.values():
            merged += _merge(func.body, {}, rw)
        rw.hits["cse"] += merged
        m.drop_unused_weights()
        return finish(rw, ctx, merged)


def _merge_weights(m: Module) -> int:
    first: dict[Hashable, Weight] = {}
    merged = 0
    for w in list(m.weights.values()):
        if w.data.nbytes > _SMALL or w.data.dtype == object:
            continue
        kept = first.setdefault((str(w.type), w.data.tobytes()), w)
        if kept is not w:
            merged += len(w.uses) > 0
            m.exchange_weight(w, kept)
    return merged


def _merge(region: Region, outer: dict[Hashable, Op], rw: Rewriter) -> int:
    seen = dict(outer)
    merged = 0
    for op in region:
        for inner in op.regions:
            merged += _merge(inner, seen, rw)
        if op.regions or not op.results or not op.spec.pure:
            continue
        kept = _kept(op, seen)
        if kept is not op:
            names = [r.name for r in kept.results]
            rw.replace(op, kept.results)
            for value, name in zip(kept.results, names, strict=True):
                value.name = name
            merged += 1
    return merged


def _kept(op: Op, seen: dict[Hashable, Op]) -> Op:
    """The first op that computes the same value as this one.

    Attributes, which hold millions of numbers in tree ensembles, are compared only if another op has the same operands.
    """
    rough = (op.name, op.operands, len(op.results))
    first = seen.setdefault(rough, op)
    if first is op:
        return op
    seen.setdefault(_exact(first), first)
    return seen.setdefault(_exact(op), op)


def _exact(op: Op) -> Hashable:
    attrs = {k: v for k, v in op.attrs.items() if k not in _NAMES}
    return (op.name, op.operands, tuple(sorted((k, frozen(v)) for k, v in attrs.items())), len(op.results))
