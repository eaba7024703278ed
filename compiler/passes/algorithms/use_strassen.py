"""Products with constant matrices by Strassen's method where it pays."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import ClassVar

import numpy as np

from occ.compiler.ir.dtype import F32
from occ.compiler.ir.layout import panel_width
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.ops.own.strassen import combined_weight
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.value import Value, Weight
from occ.compiler.passes.base import Context, Pass, finish

# Measured on Zen 5, whole networks on one thread against plain products: 1.10 with 128 rows, 1.11 with 197, weights of 768 x 768
# and more. Before panels were fetched ahead: 0.98 with 64 rows; 1.03 with 1500 rows and weights of 384 x 384 and more.
_LEAST_ROWS = 96
_LEAST_SIZE = 384  # of the other two extents
_MOST_ROWS = 128  # of half a block
_Key = tuple[str, bool, float]  # name of a weight, whether it is transposed, its factor


@dataclass(frozen=True)
class UseStrassen(Pass):
    """Replaces products of f32 with large enough constants by `strassen`. Runs if `-C strassen=on` asks for it.

    The right operands of its seven products are combined now, and grow by 1.75.

    `%y = MatMul(%x, @w : f32[768,768])` --> `%y = strassen(%x, @u : f32[7,384,384]) {rows=64, width=32}`
    """

    name: ClassVar[str] = "use-strassen"

    def run(self, m: Module, ctx: Context) -> bool:
        lanes = ctx.machine.lanes(32)
        rw = Rewriter(m)
        made: dict[_Key, Weight] = {}
        used = 0
        for func in m.funcs.values():
            for op in list(func.body.body):
                if op.name in ("MatMul", "Gemm") and _pays(op, lanes):
                    w = op.operands[1]
                    rw.replace(op, [_product(op, made, rw, m, lanes)])
                    used += 1
                    if isinstance(w, Weight):
                        m.release_weight(w)
        m.drop_unused_weights()
        rw.hits["use-strassen"] += used
        return finish(rw, ctx, used)


def _pays(op: Op, lanes: int) -> bool:
    x, w = op.operands[:2]
    if x is None or not isinstance(w, Weight) or x.tensor.dtype != F32 or w.tensor.dtype != F32 or w.tensor.rank != 2:
        return False
    if x.tensor.rank < 2 or (op.name == "Gemm" and op.a.transA):
        return False
    rows = x.tensor.dims[-2]
    if not isinstance(rows, int) or rows < _LEAST_ROWS:
        return False
    return all(n % (4 * lanes) == 0 and n >= _LEAST_SIZE for n in w.data.shape)


def _product(op: Op, made: dict[_Key, Weight], rw: Rewriter, m: Module, lanes: int) -> Value:
    x, w, c = (*op.operands, None)[:3]
    assert x is not None
    assert isinstance(w, Weight)
    flipped, alpha = (bool(op.a.transB), float(op.a.alpha)) if op.name == "Gemm" else (False, 1.0)
    width = panel_width(w.data.shape[0 if flipped else 1] // 2, lanes, lanes)
    key = (w.name, flipped, alpha)
    if key not in made:
        data = w.data.T if flipped else w.data
        data = data if alpha == 1 else data * np.float32(alpha)
        made[key] = m.add_weight(f"{w.name}.strassen", combined_weight(data, width))
    b = rw.builder(op)
    rows = x.tensor.dims[-2]
    assert isinstance(rows, int)
    blocks = ceil(rows / (2 * _MOST_ROWS))
    y = b.strassen(x, made[key], rows=ceil(rows / (2 * blocks)), width=width)
    if c is None:
        return y
    return b.Add(y, c if op.a.beta == 1 else b.Mul(c, b.constant(np.array(op.a.beta, np.float32))))
