"""Mixture of experts as GE nodes: each row times the weights of its chosen experts.

For few rows, as in decoding, the matrices of their experts are gathered. If that would be as much as all of them, all
experts compute all rows, and each row's selected results are gathered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.mapping.blocks import constant_operand, fields, narrowed, zero_points
from occ.compiler.codegen_cann.mapping.emitter import Emitter
from occ.compiler.codegen_cann.mapping.linear import product
from occ.compiler.ir.op import Op

Row = Callable[..., Any]
Matrices = Callable[[Ref | None], Ref]  # of selected experts `i64[n]`, or of all: `[n, N, K]`


def _of(e: Emitter, table: Ref, chosen: Ref | None) -> Ref:
    """The entries of a table along its first axis."""
    if chosen is None:
        return table
    axis = e.constant(np.array(0, np.int32))
    return e.op("GatherV2", table, chosen, axis, out=Desc(table.dtype, (*chosen.shape, *table.shape[1:])))


def _product(e: Emitter, op: Op, x: Ref, experts: Ref, count: int, matrices: Matrices, bias: Ref | None) -> Ref:
    """`x[r, s] @ matrix[experts[r, s]]' + bias[experts[r, s]]` in FLOAT."""
    (rows, slots), (n, inner) = experts.shape, (e.type(op.result).shape[2], x.shape[2])
    at = e.reshape(e.cast(experts, "INT32"), (rows * slots,))
    if rows * slots <= count:
        if x.shape[1] != slots:
            x = e.op("BroadcastTo", x, e.ints((rows, slots, inner)), out=Desc(x.dtype, (rows, slots, inner)))
        made = product(e, e.reshape(x, (rows * slots, 1, inner)), matrices(at), tb=True)
    else:
        own = x.shape[1]  # slots of each expert's rows: one is shared by all
        every = product(e, e.reshape(x, (1, rows * own, inner)), matrices(None), tb=True)
        places = np.repeat(np.arange(rows), slots) if own == 1 else np.arange(rows * slots)
        first = e.op("Mul", at, e.scalar(rows * own, at))
        made = _of(
            e, e.reshape(every, (count * rows * own, n)), e.op("Add", first, e.constant(places.astype(np.int32)))
        )
    made = e.cast(e.reshape(made, (rows, slots, n)), "FLOAT")
    return made if bias is None else e.op("Add", made, e.reshape(e.cast(_of(e, bias, at), "FLOAT"), made.shape))


def _expert_product(e: Emitter, op: Op, x: Ref, experts: Ref, weights: Ref, bias: Ref | None = None) -> Ref:
    if weights.node.type == "Const":
        weights = narrowed(e, weights.node.value, x.dtype)
    return _product(e, op, x, experts, weights.shape[0], lambda at: e.cast(_of(e, weights, at), x.dtype), bias)


def _expert_product_of_blocks(
    e: Emitter,
    op: Op,
    x: Ref,
    experts: Ref,
    packed: Ref,
    scales: Ref,
    zeros: Ref | None = None,
    bias: Ref | None = None,
) -> Ref:
    """Codes stay integers in memory; those of the selected experts are scaled in the graph."""
    bits = op.a.bits
    codes, factors = constant_operand(e, op, "codes"), constant_operand(e, op, "scales")
    assert codes is not None, "codes are required"
    assert factors is not None, "scales are required"
    count, n, inner = codes.shape[0], codes.shape[1], x.shape[2]
    block = op.a.block or inner
    points = zero_points(constant_operand(e, op, "zeros"), bits, factors.shape).reshape(count, n, -1)
    wide = fields(codes, bits, inner) - np.repeat(points, block, -1)
    table = e.constant(wide.astype(np.int8 if bits < 8 else np.int16))
    steps = e.constant(factors.reshape(count, n, -1).astype(np.float32))

    def matrices(at: Ref | None) -> Ref:
        of = _of(e, table, at)
        blocks = steps.shape[2]
        apart = e.reshape(e.cast(of, "FLOAT"), (of.shape[0], n, blocks, inner // blocks))
        factor = e.reshape(_of(e, steps, at), (of.shape[0], n, blocks, 1))
        return e.cast(e.reshape(e.op("Mul", apart, factor), of.shape), x.dtype)

    return _product(e, op, x, experts, count, matrices, bias)


ROWS: dict[str, Row] = {"expert_product": _expert_product, "expert_product_of_blocks": _expert_product_of_blocks}
