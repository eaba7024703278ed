"""Folds per-channel scaling and shifting into the weights of the preceding convolution or matrix product."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.rewriter import OpRule, Rewriter
from occ.compiler.passes.base import Context, Pass, finish
from occ.runtime.dataclass import dataclass


def batch_norm(op: Op, rw: Rewriter) -> bool:
    """`BatchNormalization(x, ...)` with constant statistics --> folded into the preceding convolution, else `x * s + t`."""
    params = op.operands[1:5]
    if op.a.training_mode or len(op.results) > 1 or not all(isinstance(p, Weight) for p in params):
        return False  # in training mode the statistics come from the data
    scale, bias, mean, var = (p.data.astype(np.float64) for p in params if isinstance(p, Weight))
    factor = scale / np.sqrt(var + op.a.epsilon)
    return _absorb(op, op.operands[0], factor, bias - mean * factor, rw) or _as_affine(
        op, factor, bias - mean * factor, rw
    )


def _as_affine(op: Op, factor: np.ndarray, shift: np.ndarray, rw: Rewriter) -> bool:
    x = op.operands[0]
    assert x is not None
    if x.tensor.rank > 1 and x.tensor.dims[1] != len(factor):
        return False  # the number of channels depends on run-time data
    b, dtype = rw.builder(op), x.tensor.dtype
    shape = (-1, *(1,) * (x.tensor.rank - 2)) if x.tensor.rank > 2 else (-1,)
    s, t = (b.constant(v.astype(dtype.numpy).reshape(shape)) for v in (factor, shift))
    rw.replace(op, [b.Add(b.Mul(x, s), t)])
    return True


def scale_or_shift(op: Op, rw: Rewriter) -> bool:
    """`Conv(x, w, b) * s + t` --> `Conv(x, w * s, b * s + t)`, for constants with one value per channel."""
    x, c = op.operands
    if isinstance(x, Weight) and op.name in ("Add", "Mul"):
        x, c = c, x
    if x is None or isinstance(x, Weight) or not isinstance(c, Weight) or x.type != op.result.type:
        return False
    value = _per_channel(c, x)
    if value is None:
        return False
    one, zero = np.ones(1), np.zeros(1)
    factor, shift = {
        "Add": (one, value),
        "Sub": (one, -value),
        "Mul": (value, zero),
        "Div": (1 / value if op.name == "Div" else one, zero),
    }[op.name]
    if op.name == "Div" and not np.all(np.isfinite(factor)):
        return False
    return _absorb(op, x, factor, shift, rw)


def _per_channel(c: Weight, x: Value) -> np.ndarray | None:
    """The values of a constant along the channel axis of `x`, if it varies along no other; f64[1] or f64[C]."""
    rank = x.tensor.rank
    channel = 1 if rank > 2 else rank - 1
    if not x.tensor.dtype.is_float or c.data.ndim > rank:
        return None
    full = c.data.reshape((1,) * (rank - c.data.ndim) + c.data.shape)
    if any(n != 1 for k, n in enumerate(full.shape) if k != channel):
        return None
    return full.reshape(-1).astype(np.float64)


def _absorb(op: Op, x: Value | None, factor: np.ndarray, shift: np.ndarray, rw: Rewriter) -> bool:
    """Rebuild the op that computes `x` with scaled weights and bias; returns whether that was possible."""
    maker = x.defining_op if x is not None else None
    if x is None or maker is None or len(x.uses) != 1 or maker.name not in _CHANNEL_OF:
        return False
    data, w, *rest = maker.operands
    bias = rest[0] if rest else None
    if not isinstance(w, Weight) or (bias is not None and not isinstance(bias, Weight)) or len(w.uses) != 1:
        return False
    if maker.name == "Gemm" and (maker.a.alpha != 1 or maker.a.beta != 1 or (bias is not None and bias.data.ndim != 1)):
        return False
    channels = x.tensor.dims[1]
    assert isinstance(channels, int), "constant weights have constant channels"
    old = np.zeros(1) if bias is None else bias.data.astype(np.float64)
    total = np.broadcast_to(old * factor + shift, (channels,))
    b = rw.builder(op)
    dtype = w.data.dtype
    scaled: Value = w
    if not np.all(factor == 1):
        scaled = b.constant(_scaled(w.data, factor, maker, channels).astype(dtype, copy=False))
    made = b.op(maker.name, data, scaled, b.constant(np.ascontiguousarray(total.astype(dtype))), **maker.attrs)
    made.defining_op.loc = maker.loc
    rw.replace(op, [made])
    rw.erase(maker)  # or its weights would have two readers, and later scalings could not be folded into them
    return True


_CHANNEL_OF = ("Conv", "ConvTranspose", "Gemm")


def _scaled(w: np.ndarray, factor: np.ndarray, maker: Op, channels: int) -> np.ndarray:
    """Weights with each output channel multiplied by its factor."""
    each = np.broadcast_to(factor, (channels,)).astype(w.dtype)
    match maker.name:
        case "Conv":
            return w * each.reshape(-1, *(1,) * (w.ndim - 1))
        case "ConvTranspose":  # (C, M/group, k...): output channel g*M/group + m reads the rows of group g
            groups = maker.a.group
            per_group = each.reshape(groups, 1, w.shape[1], *(1,) * (w.ndim - 2))
            return (w.reshape(groups, -1, *w.shape[1:]) * per_group).reshape(w.shape)
        case _:
            return w * (each.reshape(-1, 1) if maker.a.transB else each)


RULES: dict[str, tuple[OpRule, ...]] = {
    "BatchNormalization": (batch_norm,),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div"), (scale_or_shift,)),
}


@dataclass(frozen=True)
class FoldAffine(Pass):
    """Folds BatchNormalization and constant per-channel Mul, Div, Add and Sub into the preceding op.

    `%c = Conv(%x, @w)  %y = BatchNormalization(%c, @s, @b, @m, @v)` --> `%y = Conv(%x, @w.1, @b.1)`
    """

    name: ClassVar[str] = "fold-affine"

    def run(self, m: Module, ctx: Context) -> bool:
        rw = Rewriter(m)
        with np.errstate(all="ignore"):  # non-finite values are left alone
            changes = rw.apply(RULES)
        m.drop_unused_weights()
        return finish(rw, ctx, changes)
