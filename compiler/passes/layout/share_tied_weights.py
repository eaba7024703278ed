"""Lets an embedding read the constant of the head that is its transpose (tied weights)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Weight
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.passes.base import Context, Pass, finish
from occ.runtime.dataclass import dataclass
from occ.runtime.mapped_arrays import release

_PIECE = 1024  # rows compared at a time


@dataclass(frozen=True)
class ShareTiedWeights(Pass):
    """Stores a table once that is the transpose of a product's weight: a Gather of its rows reads columns.

    A language model multiplies by its embedding at the end. A row is a small part of what the product reads, in
    whatever order its elements are.

    `%x = Gather(@t, %i) {axis=0}  %y = MatMul(%h, @w)` with `w = t^T` -->
    `%c = Gather(@w, %i) {axis=1}  %x = Transpose(%c) {perm=[1, 0]}  %y = MatMul(%h, @w)`
    """

    least: int = 1 << 16  # elements of a table

    name: ClassVar[str] = "share-tied-weights"

    def run(self, m: Module, ctx: Context) -> bool:
        rw, shared = Rewriter(m), 0
        matrices = [w for w in m.weights.values() if w.data.ndim == 2 and w.data.size >= self.least]
        heads = [w for w in matrices if any(_multiplies(op, k) for op, k in w.uses)]
        for table in matrices:
            if table in heads or not table.uses or not all(_gathers_rows(op, k) for op, k in table.uses):
                continue
            head = next((w for w in heads if _is_transpose(table.data, w.data)), None)
            if head is None:
                continue
            for op, _ in list(table.uses):
                _read_columns(op, head, rw)
            m.release_weight(table)
            shared += 1
        rw.hits["share-tied-weights"] += shared
        return finish(rw, ctx, shared)


def _multiplies(op: Op, k: int) -> bool:
    return k == 1 and op.spec.weight is not None and "contraction" in op.spec.tags and not getattr(op.a, "transB", 0)


def _gathers_rows(op: Op, k: int) -> bool:
    return k == 0 and "gather" in op.spec.tags and op.a.axis % 2 == 0 and op.inputs[1].tensor.rank > 0


def _read_columns(op: Op, head: Weight, rw: Rewriter) -> None:
    b, indices = rw.builder(op), op.inputs[1]
    columns = b.Gather(head, indices, axis=1)
    order = [*range(1, indices.tensor.rank + 1), 0]
    rw.replace(op, [b.Transpose(columns, perm=order)])


def _is_transpose(table: np.ndarray, head: np.ndarray) -> bool:
    """Whether two matrices have the same bytes, one of them transposed."""
    if table.shape != head.shape[::-1] or table.dtype != head.dtype or table.dtype.kind != "f":
        return False
    same = all(
        np.array_equal(one.view(f"u{one.itemsize}"), two.view(f"u{two.itemsize}")) for one, two in _rows(table, head)
    )
    release([table, head])
    return same


def _rows(table: np.ndarray, head: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows of a matrix, and the columns of another one, some at a time; few at first, which mostly decide."""
    starts = [0, *range(16, len(table), _PIECE)]
    for start, end in zip(starts, [*starts[1:], len(table)], strict=True):
        yield np.ascontiguousarray(table[start:end]), np.ascontiguousarray(head[:, start:end].T)
