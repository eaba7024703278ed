"""Rewrites products with large constant matrices by Strassen's algorithm."""

from __future__ import annotations

from math import ceil
from typing import ClassVar

import numpy as np

from occ.compiler.ir.dim import product
from occ.compiler.ir.dtype import F32
from occ.compiler.ir.layout import panel_width
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.operator.matrix_product import MatrixProduct
from occ.compiler.ir.ops.own.strassen import quarters_of_weight
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.passes.base import Context, Pass, finish
from occ.compiler.passes.methods.strassen.schedule import rows_of_tile
from occ.compiler.targets.machine import Machine
from occ.runtime.dataclass import dataclass

# Measured on Zen 5, one thread, relative to plain products: 1.02 to 1.06 with 128 rows, 1.07 to 1.10 with 197, for
# matrices of 768 x 768 and more. With more than one block of rows, sums of the left operand leave the cache between
# panels: 0.98 with 512 rows, 0.80 with 1500 rows by 1536 x 384. 1.00 to 1.01 for 512 x 512 and 384 x 1536.
_LEAST_ROWS = 96
_LEAST_SIZE = 768  # for the other two extents
_LEAST_EVERYWHERE = 384
_MOST_ROWS = 128  # rows of half a block
_Key = tuple[str, bool, float]  # name of a weight, whether it is transposed, its factor


@dataclass(frozen=True)
class UseStrassen(Pass):
    """Replaces products of f32 with sufficiently large constants by `strassen`. Enabled by `-C strassen=auto` or `on`.

    The constants keep their size: their sums are formed where they are read, which is free on processors that add in
    parallel with multiply-adds. A matrix with an infinity or NaN keeps its product.

    `%y = MatMul(%x, @w : f32[768,768])` --> `%y = strassen(%x, @u : f32[4,384,384]) {rows=64, width=32}`

    Attributes:
        everywhere: also where no gain was measured: other processors, more rows, smaller matrices.
    """

    name: ClassVar[str] = "use-strassen"
    everywhere: bool = False

    def run(self, m: Module, ctx: Context) -> bool:
        if not (self.everywhere or ctx.machine.separate_add_ports):
            return False
        lanes = ctx.machine.lanes(32)
        rw = Rewriter(m)
        made: dict[_Key, Weight] = {}
        used = 0
        for func in m.funcs.values():
            for op in list(func.body.body):
                form = op.matrix_product
                if form is not None and self._takes(op, form, lanes):
                    w = op.operands[1]
                    rw.replace(op, [_product(op, form, made, rw, ctx.machine)])
                    used += 1
                    if isinstance(w, Weight):
                        m.release_weight(w)
        m.drop_unused_weights()
        rw.hits["use-strassen"] += used
        return finish(rw, ctx, used)

    def _takes(self, op: Op, form: MatrixProduct, lanes: int) -> bool:
        x, w = op.operands[:2]
        if (
            x is None
            or not isinstance(w, Weight)
            or x.tensor.dtype != F32
            or w.tensor.dtype != F32
            or w.tensor.rank != 2
        ):
            return False
        if x.tensor.rank < 2 or form.left_transposed:
            return False
        rows, every = x.tensor.dims[-2], product(x.tensor.dims[:-1])
        if not isinstance(rows, int) or rows < _LEAST_ROWS:
            return False
        if not self.everywhere and not (isinstance(every, int) and every <= 2 * _MOST_ROWS):
            return False
        least = _LEAST_EVERYWHERE if self.everywhere else _LEAST_SIZE
        return all(n % (4 * lanes) == 0 and n >= least for n in w.data.shape) and _is_finite(w.data)


def _is_finite(data: np.ndarray) -> bool:
    return bool(np.isfinite(data.min()) and np.isfinite(data.max()))


def _product(op: Op, form: MatrixProduct, made: dict[_Key, Weight], rw: Rewriter, machine: Machine) -> Value:
    x, w, c = (*op.operands, None)[:3]
    assert x is not None
    assert isinstance(w, Weight)
    flipped, alpha = form.right_transposed, form.alpha
    lanes = machine.lanes(32)
    width = panel_width(w.data.shape[0 if flipped else 1] // 2, lanes, lanes)
    key = (w.name, flipped, alpha)
    if key not in made:
        data = w.data.T if flipped else w.data
        data = data if alpha == 1 else data * np.float32(alpha)
        made[key] = rw.module.add_weight(f"{w.name}.strassen", quarters_of_weight(data, width))
    b = rw.builder(op)
    rows = x.tensor.dims[-2]
    assert isinstance(rows, int)
    half = ceil(rows / (2 * ceil(rows / (2 * _MOST_ROWS))))
    tile = rows_of_tile(half, machine, width)  # whole tiles: Halide emits each loop twice if the last tile is shifted
    y = b.strassen(x, made[key], rows=ceil(half / tile) * tile, width=width)
    if c is None:
        return y
    return b.Add(y, c if form.beta == 1 else b.Mul(c, b.constant(np.array(form.beta, np.float32))))
