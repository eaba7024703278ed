"""Quantisation and integer products as GE nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from occ.compiler.codegen_cann.graph.formats import occ_type
from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.mapping.ascend_quant import UNSIGNED, dequantised, number, quantised, signed_form
from occ.compiler.codegen_cann.mapping.emitter import Emitter, Unsupported
from occ.compiler.codegen_cann.mapping.linear import matmul, product
from occ.compiler.codegen_cann.mapping.reduce import reduced
from occ.compiler.codegen_cann.mapping.shape import joined
from occ.compiler.codegen_cann.mapping.window import strided
from occ.compiler.ir.op import Op

Row = Callable[..., Any]
_INTS = ("INT8", "UINT8", "INT16", "UINT16", "INT32")


def _along(e: Emitter, v: Ref, x: Ref, axis: int, block: int) -> Ref:
    """A scale or zero point broadcastable to `x`: per tensor, per axis, or per block."""
    if not v.shape or (v.shape == (1,) and not block):
        return v
    if not block:
        shape = [1] * len(x.shape)
        shape[axis % len(x.shape)] = v.shape[0]
        return e.reshape(v, shape)
    k = axis % len(x.shape)
    parts = [v] * block
    stacked = joined(e, [e.reshape(p, (*v.shape[: k + 1], 1, *v.shape[k + 1 :])) for p in parts], k + 1)
    whole = e.reshape(stacked, (*v.shape[:k], v.shape[k] * block, *v.shape[k + 1 :]))
    if whole.shape[k] == x.shape[k]:
        return whole
    return strided(e, whole, [0], [x.shape[k]], [k], [1], Desc(v.dtype, x.shape))


def _dequantize(e: Emitter, op: Op, x: Ref, scale: Ref, zero: Ref | None = None) -> Ref:
    out = e.type(op.result).dtype
    if (made := dequantised(e, x, number(scale), number(zero), out)) is not None:
        return made
    return e.cast(dequantized(e, x, scale, zero, op.a.axis, op.a.block_size or 0), out)


def dequantized(e: Emitter, x: Ref, scale: Ref, zero: Ref | None = None, axis: int = 0, block: int = 0) -> Ref:
    """`(x - zero) * scale` in FLOAT."""
    if x.dtype not in _INTS:
        raise Unsupported(f"GE computes with no {x.dtype}")
    if (inner := signed_form(e, x)) is not None and (point := number(zero)) is not None:
        x, zero = inner, e.constant(np.array(point - UNSIGNED, np.float32))
    if zero is not None and _may_differ_from_zero(zero):
        # 8-bit values are exact in every float type; differences of wider ones are computed in INT32.
        wide = "INT32" if x.dtype == "INT32" else "FLOAT"
        x = e.op("Sub", e.cast(x, wide), e.cast(_along(e, zero, x, axis, block), wide))
    return e.op("Mul", e.cast(x, "FLOAT"), e.cast(_along(e, scale, x, axis, block), "FLOAT"))


def _may_differ_from_zero(zero: Ref) -> bool:
    return zero.node.type != "Const" or bool(np.any(zero.node.value))


def _quantize(e: Emitter, op: Op, x: Ref, scale: Ref, zero: Ref | None = None) -> Ref:
    axis, block, out = op.a.axis, op.a.block_size or 0, e.type(op.result).dtype
    if (made := quantised(e, x, number(scale), number(zero), out)) is not None:
        return made
    value = e.op("RealDiv", e.cast(x, "FLOAT"), e.cast(_along(e, scale, x, axis, block), "FLOAT"))
    return rounded(e, value, None if zero is None else _along(e, zero, x, axis, block), out)


def rounded(e: Emitter, value: Ref, zero: Ref | None, out: str) -> Ref:
    """FLOAT as quantised codes: scaled, shifted by a broadcastable zero point, and saturated."""
    if out not in ("INT8", "UINT8", "INT16", "UINT16"):
        raise Unsupported(f"GE rounds to no {out}")
    dtype = occ_type(out)
    value = e.op("Round", value)
    if zero is not None and _may_differ_from_zero(zero):
        value = e.op("Add", value, e.cast(zero, "FLOAT"))
    low, high = e.scalar(dtype.lowest, "FLOAT"), e.scalar(dtype.highest, "FLOAT")
    codes = e.op("ClipByValue", value, low, high)
    if out in ("INT8", "UINT8") and not e.casts("FLOAT", "INT32"):  # in half precision they are just as exact
        codes = e.cast(codes, "FLOAT16")
    return e.cast(codes, out)


def _dynamic_quantize(e: Emitter, op: Op, x: Ref) -> tuple[Ref, Ref, Ref]:
    axes = list(range(len(x.shape)))
    zero = e.scalar(0, x)
    high = e.op("Maximum", reduced(e, "ReduceMax", x, axes, keep=False), zero)
    low = e.op("Minimum", reduced(e, "ReduceMin", x, axes, keep=False), zero)
    scale = e.op("RealDiv", e.op("Sub", high, low), e.scalar(255, x))
    top, bottom = e.scalar(255, x), e.scalar(0, x)
    point = e.op("Round", e.op("ClipByValue", e.op("DivNoNan", e.op("Neg", low), scale), bottom, top))
    y = e.op("Add", e.op("Round", e.op("DivNoNan", x, scale, out=x.desc)), point)
    return e.cast(e.op("ClipByValue", y, bottom, top), "UINT8"), scale, e.cast(point, "UINT8")


def signed(e: Emitter, x: Ref, zero: Ref | None) -> tuple[Ref, Ref | None]:
    """An 8-bit operand as INT8, and the INT32 value to subtract from it; None for nothing."""
    if zero is not None and not _may_differ_from_zero(zero):
        zero = None
    if x.dtype == "INT8":
        return x, None if zero is None else as_int32(e, zero)
    shift = e.scalar(UNSIGNED, "INT32")
    if (inner := signed_form(e, x)) is not None:
        moved = inner
    elif x.node.type == "Const":
        moved = e.constant((x.node.value.astype(np.int32) - UNSIGNED).astype(np.int8))
    else:
        moved = e.cast(e.op("Sub", e.cast(x, "INT32"), shift), "INT8")
    if zero is None:
        return moved, e.scalar(-UNSIGNED, "INT32")
    point = as_int32(e, zero)
    known = point.node.type == "Const"
    return moved, e.constant(point.node.value - np.int32(UNSIGNED)) if known else e.op("Sub", point, shift)


def as_int32(e: Emitter, x: Ref) -> Ref:
    """Integers as INT32; a constant stays constant."""
    return e.constant(x.node.value.astype(np.int32)) if x.node.type == "Const" else e.cast(x, "INT32")


def integer_product(e: Emitter, x: Ref, y: Ref, xz: Ref | None, yz: Ref | None) -> Ref:
    """`(x - xz) @ (y - yz)` from an INT8 product and sums of rows and columns, all exact in INT32."""
    if len(x.shape) < 2 or len(y.shape) < 2:
        raise Unsupported("an operand is a vector")
    left, a = signed(e, x, xz)
    right, b = signed(e, y, yz)
    if a is not None and len(a.shape) == 1 and a.shape[0] > 1:
        a = e.reshape(a, (a.shape[0], 1))
    total = matmul(e, left, right, "INT32")
    if a is not None:
        total = e.op("Sub", total, times(e, sums(e, right, -2), a))
    if b is not None:
        total = e.op("Sub", total, times(e, sums(e, left, -1), b))
    if a is not None and b is not None:
        total = e.op("Add", total, times(e, times(e, a, b), e.scalar(x.shape[-1], "INT32")))
    return total


def sums(e: Emitter, x: Ref, axis: int) -> Ref:
    """The sums of INT8 matrices along axis -1 or -2, kept with extent 1, in INT32.

    For a constant they are constant. Others are products with ones: every chip's matrix unit supports these, while some
    have no kernel for sums of integers.
    """
    if x.node.type == "Const":
        return e.constant(x.node.value.sum(axis, dtype=np.int32, keepdims=True))
    batch, size = [1] * (len(x.shape) - 2), x.shape[axis]
    ones = e.constant(np.ones([*batch, *((size, 1) if axis == -1 else (1, size))], np.int8))
    return product(e, x, ones, "INT32") if axis == -1 else product(e, ones, x, "INT32")


def times(e: Emitter, x: Ref, y: Ref) -> Ref:
    """A product of INT32; constant for constants."""
    if x.node.type == y.node.type == "Const":
        return e.constant(x.node.value * y.node.value)
    return e.op("Mul", x, y)


def _matmul_integer(e: Emitter, op: Op, x: Ref, y: Ref, xz: Ref | None = None, yz: Ref | None = None) -> Ref:
    return e.reshape(integer_product(e, x, y, xz, yz), e.type(op.result).shape)


ROWS: dict[str, Row] = {
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "MatMulInteger": _matmul_integer,
    "QuantizeLinear": _quantize,
}
