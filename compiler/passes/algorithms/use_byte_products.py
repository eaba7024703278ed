"""Products of codes in the form that processors multiply bytes in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from occ.compiler.ir.dtype import BF16, F32, I8, U8
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.rewriter import OpRule, Rewriter, erase_dead
from occ.compiler.ir.value import Value, Weight
from occ.compiler.passes.algorithms.round_operands import is_rounded
from occ.compiler.passes.base import Context, Pass, finish
from occ.compiler.passes.layout.narrow_weights import narrowed

_LEAST = 4  # columns of a weight: fewer are no vector
_FEW = 8  # channels and filters: fewer channels do not lie last in memory, fewer filters fill no vector


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
    fours = _in_groups(w, 1, 4) if groups == 1 else w
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
    moved = zero is not None or x.tensor.dtype == I8
    fours = b.constant(_in_groups(w, 0, 4))
    total = b.constant(w.sum(0, dtype=np.int64).astype(np.int32)) if moved else None
    rw.replace(op, [b.matmul_dot(x, fours, total, zero)])
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


def rounded_convolution(op: Op, rw: Rewriter) -> bool:
    """`Conv(Cast(x: bf16), w)` of one group and a weight that is bf16 in all but type, or all bf16 --> `conv_dot`."""
    found = _rounded(op)
    if found is None or op.a.group != 1 or min(found[1].shape[:2]) < _FEW:
        return False
    (x, w), b = found, rw.builder(op)
    attrs = {"auto_pad": op.a.auto_pad, **{key: getattr(op.a, key) or () for key in ("pads", "strides", "dilations")}}
    attrs |= {"kernel_shape": w.shape[2:], "zero": 0, "group": 1}
    made = b.conv_dot(x, b.constant(_in_groups(w, 1, 2)), **attrs)
    bias = op.operands[2] if len(op.operands) > 2 else None
    if isinstance(bias, Weight):
        bias = b.constant(bias.data.reshape(-1, *[1] * (w.ndim - 2)))
    elif bias is not None:
        bias = b.Reshape(bias, b.constant(np.array([-1, *[1] * (w.ndim - 2)], np.int64)))
    return _with_bias(op, made, bias, rw)


def rounded_product(op: Op, rw: Rewriter) -> bool:
    """`MatMul(Cast(x: bf16), w)` or Gemm, with a weight that is bf16 in all but type, or all bf16 --> `matmul_dot`."""
    found = _rounded(op)
    is_gemm = op.name == "Gemm"
    if found is None or found[1].ndim != 2 or (is_gemm and (op.a.transA or op.a.alpha != 1 or op.a.beta != 1)):
        return False
    x, w = found
    w = w.T if is_gemm and op.a.transB else w
    if w.shape[1] < _LEAST or w.shape[0] == 0 or x.tensor.rank < 2:
        return False
    b = rw.builder(op)
    made = b.matmul_dot(x, b.constant(_in_groups(w, 0, 2)))
    bias = op.operands[2] if is_gemm and len(op.operands) > 2 else None
    return _with_bias(op, made, bias, rw)


def _with_bias(op: Op, made: Value, bias: Value | None, rw: Rewriter) -> bool:
    """Put sums, and what is added to them, in the place of a product."""
    w = op.operands[1]
    b, dtype = rw.builder(op), op.result.tensor.dtype
    if isinstance(bias, Weight) and bias.tensor.dtype != F32:
        bias = b.constant(bias.data, F32)
    if bias is not None:
        made = b.Add(made, bias if bias.tensor.dtype == F32 else b.Cast(bias, to=F32))
    rw.replace(op, [made if dtype == F32 else b.Cast(made, to=dtype)])
    if isinstance(w, Weight):
        rw.module.release_weight(w)
    return True


def _rounded(op: Op) -> tuple[Value, np.ndarray] | None:
    """The operands of a product as bf16, if they have no more digits than that."""
    x, w = op.operands[:2]
    if x is None or not isinstance(w, Weight):
        return None
    if x.tensor.dtype == w.tensor.dtype == BF16:
        return x, w.data
    x = is_rounded(x)
    if x is None or w.tensor.dtype != F32:
        return None
    data = narrowed(w.data, f16=False)
    return None if data is None else (x, data)


def _in_groups(w: np.ndarray, axis: int, some: int) -> np.ndarray:
    """An axis as groups, fours say, filled up with zeros: `[.., C, ..]` --> `[.., C/4, 4, ..]`."""
    margins = [(0, -n % some if k == axis else 0) for k, n in enumerate(w.shape)]
    return np.ascontiguousarray(np.pad(w, margins).reshape(*w.shape[:axis], -1, some, *w.shape[axis + 1 :]))


RULES: dict[str, tuple[OpRule, ...]] = {"ConvInteger": (convolution,), "MatMulInteger": (product,)}
BF16_RULES: dict[str, tuple[OpRule, ...]] = {
    "Conv": (rounded_convolution,),
    "MatMul": (rounded_product,),
    "Gemm": (rounded_product,),
}


@dataclass(frozen=True)
class UseByteProducts(Pass):
    """Makes products of codes products of unsigned by signed bytes, four to a lane, and adds what zero points make of them.

    `sum((x - z) * w)` is `sum(x * w) - z * sum(w)`; the sums of constant weights are constants. Processors with VNNI
    multiply and add 64 bytes with one instruction: four times what they do in f32. Where they have one for 32 bf16, the
    same is done with operands that are bf16 or were rounded to it: twice what they do in f32.

    `%y = ConvInteger(%x, @w : i8[8,16,1,1], @z)` --> `%y = conv_dot(%x, @u : i8[8,4,4,1,1], @total) {zero=3}`
    """

    bf16: bool = False  # as if the processor had the instruction

    name: ClassVar[str] = "use-byte-products"

    def run(self, m: Module, ctx: Context) -> bool:
        rw = Rewriter(m)
        pairs = self.bf16 or ctx.machine.dots_bf16
        changes = rw.apply({**RULES, **(BF16_RULES if pairs else {})})
        erase_dead(m)
        m.drop_unused_weights()
        return finish(rw, ctx, changes)
