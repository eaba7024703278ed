"""Splits operators with very many operands or results, such as Concat and Sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.types import TensorType
from occ.compiler.passes.base import Context, Pass, finish
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class DivideWide(Pass):
    """Splits operators with more operands or results than a kernel should have parameters.

    Compile time grows faster than the number of parameters; a kernel with thousands would take hours. Sums are still
    added from left to right, so rounding does not change.

    `%y = Sum(%a, %b, %c, %d, %e)` --> `%s = Sum(%a, %b, %c)  %y = Sum(%s, %d, %e)`, if the limit were three
    """

    most: int = 64  # operands or results per op

    name: ClassVar[str] = "divide-wide"

    def run(self, m: Module, ctx: Context) -> bool:
        rw, divided = Rewriter(m), 0
        for op in list(m.walk()):
            if max(len(op.operands), len(op.results)) <= self.most or not _is_typed(op):
                continue
            made = self._divided(op, rw.builder(op))
            if made is not None:
                rw.replace(op, made)
                divided += 1
        rw.hits[self.name] += divided
        return finish(rw, ctx, divided)

    def _divided(self, op: Op, b: GraphBuilder) -> list[Value] | None:
        match op.name:
            case "Concat":
                return [self._concat(b, op.inputs, op.attrs)]
            case "Sum" | "Max" | "Min":
                return [self._fold(b, op.name, op.inputs)]
            case "Mean":
                count = b.constant(len(op.inputs), op.result.tensor.dtype)
                return [b.Div(self._fold(b, "Sum", op.inputs), count)]
            case "Split":
                return self._split(b, op.inputs[0], op.results, op.a.axis)
            case _:
                return None

    def _concat(self, b: GraphBuilder, values: Sequence[Value], attrs: dict[str, Any]) -> Value:
        while len(values) > self.most:
            values = [part[0] if len(part) == 1 else b.Concat(*part, **attrs) for part in _parts(values, self.most)]
        return b.Concat(*values, **attrs)

    def _fold(self, b: GraphBuilder, name: str, values: Sequence[Value]) -> Value:
        total: Value = b.op(name, *values[: self.most])
        for part in _parts(values[self.most :], self.most - 1):
            total = b.op(name, total, *part)
        return total

    def _split(self, b: GraphBuilder, x: Value, results: Sequence[Value], axis: int) -> list[Value]:
        if len(results) <= self.most:
            return _split(b, x, [r.tensor.dims[axis] for r in results], axis)
        parts = _parts(results, -(-len(results) // self.most))
        extents = [sum((r.tensor.dims[axis] for r in part), start=0) for part in parts]
        return [
            made
            for whole, part in zip(_split(b, x, extents, axis), parts, strict=True)
            for made in self._split(b, whole, part, axis)
        ]


def _split(b: GraphBuilder, x: Value, extents: Sequence[Dim], axis: int) -> list[Value]:
    if len(extents) == 1:
        return [x]
    fixed = all(isinstance(n, int) for n in extents)
    sizes = b.constant(np.array(extents, np.int64)) if fixed else b.dims(values=tuple(extents), shape=(len(extents),))
    return list(b.Split(x, sizes, axis=axis, n_results=len(extents)))


def _parts(values: Sequence[Value], size: int) -> list[Sequence[Value]]:
    return [values[k : k + size] for k in range(0, len(values), size)]


def _is_typed(op: Op) -> bool:
    """Whether the types give the extents of all results; without them nothing can be built."""
    return all(isinstance(v.type, TensorType) and v.type.shape is not None for v in (*op.inputs, *op.results))
