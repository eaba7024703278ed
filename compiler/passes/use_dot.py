"""Products of codes in the form that processors multiply bytes in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from occ.compiler.ir.dtype import I8, U8
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.rewriter import Rewriter, Rule
from occ.compiler.ir.value import Weight
from occ.compiler.passes.base import Context, Pass, finish

_LEAST = 4  # columns of a weight: fewer are no vector


def convolution(op: Op, rw: Rewriter) -> bool:
    """`ConvInteger` of a constant weight, constant zero points and one group or one channel a group --> `conv_dot`."""
    x, _, zero, _ = (*op.operands, None, None)[:4]
    w = _weight(op)
    if x is None or w is None or x.tensor.dtype not in (U8, I8) or not (zero is None or isinstance(zero, Weight)):
        return False
    groups, filters = op.a.group, w.shape[0]
    if filters < _LEAST or (groups != 1 and w.shape[1] != 1):
        return False
    point = 0 if zero is None else int(zero.data.reshape(()))
    point += 128 if x.tensor.dtype == I8 else 0
    total = -point * w.sum(tuple(range(1, w.ndim)), dtype=np.int64)
    b = rw.builder(op)
    attrs = {**op.attrs, "kernel_shape": w.shape[2:], "zero": point, "group": groups}
    attrs |= {"auto_pad": op.a.auto_pad, **{key: getattr(op.a, key) or () for key in ("pads", "strides", "dilations")}}
    fours = _in_fours(w, 1) if groups == 1 else w
    rw.replace(op, [b.conv_dot(x, b.constant(fours), b.constant(total.astype(np.int32)), **attrs)])
    return True


def product(op: Op, rw: Rewriter) -> bool:
    """`MatMulInteger` with a constant matrix on the right --> `matmul_dot`."""
    x, _, zero, _ = (*op.operands, None, None)[:4]
    w = _weight(op)
    if x is None or w is None or w.ndim != 2 or w.shape[1] < _LEAST or w.shape[0] == 0:
        return False
    if x.tensor.dtype not in (U8, I8) or x.tensor.rank < 2 or (zero is not None and zero.tensor.size != 1):
        return False
    b = rw.builder(op)
    total = w.sum(0, dtype=np.int64).astype(np.int32)
    rw.replace(op, [b.matmul_dot(x, b.constant(_in_fours(w, 0)), b.constant(total), zero)])
    return True


def _weight(op: Op) -> np.ndarray | None:
    """The weight as i8 with zero points of 0, if it is a constant that has this form."""
    w, zero = (*op.operands, None, None)[1:4:2]
    if not isinstance(w, Weight) or w.tensor.dtype not in (U8, I8) or not (zero is None or isinstance(zero, Weight)):
        return None
    shift = 128 if w.tensor.dtype == U8 else 0
    if np.any((0 if zero is None else zero.data.astype(np.int32)) != shift):
        return None
    return (w.data.astype(np.int32) - shift).astype(np.int8)


def _in_fours(w: np.ndarray, axis: int) -> np.ndarray:
    """An axis as fours, filled up with zeros: `[.., C, ..]` --> `[.., C/4, 4, ..]`."""
    margins = [(0, -n % 4 if k == axis else 0) for k, n in enumerate(w.shape)]
    return np.ascontiguousarray(np.pad(w, margins).reshape(*w.shape[:axis], -1, 4, *w.shape[axis + 1 :]))


RULES: dict[str, tuple[Rule, ...]] = {"ConvInteger": (convolution,), "MatMulInteger": (product,)}


@dataclass(frozen=True)
class UseDot(Pass):
    """Makes products of codes products of unsigned by signed bytes, four to a lane, and adds what zero points make of them.

    `sum((x - z) * w)` is `sum(x * w) - z * sum(w)`; the sums of constant weights are constants. Processors with VNNI
    multiply and add 64 bytes with one instruction: four times what they do in f32.

    `%y = ConvInteger(%x, @w : i8[8,16,1,1], @z)` --> `%y = conv_dot(%x, @u : i8[8,4,4,1,1], @total) {zero=3}`
    """

    name: ClassVar[str] = "use-dot"

    def run(self, m: Module, ctx: Context) -> bool:
        rw = Rewriter(m)
        changes = rw.apply(RULES)
        m.drop_unused_weights()
        return finish(rw, ctx, changes)
