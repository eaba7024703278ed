"""Activation functions as GE nodes."""

from __future__ import annotations

import math

from occ.compiler.codegen_cann.graph.formats import FLOATS
from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.mapping.ascend_quant import relu_of_product
from occ.compiler.codegen_cann.mapping.elementwise import Row, widened
from occ.compiler.codegen_cann.mapping.emitter import Emitter, Unsupported
from occ.compiler.ir.op import Op


def _gelu(e: Emitter, op: Op, x: Ref) -> Ref:
    if op.a.approximate == "tanh":
        return widened(e, "Gelu", x)  # GE's Gelu is the tanh form
    inner = e.cast(x, "FLOAT")
    half = e.op("Muls", e.op("Adds", e.op("Erf", e.op("Muls", inner, value=math.sqrt(0.5))), value=1.0), value=0.5)
    return e.cast(e.op("Mul", inner, half), x.dtype)


def _prelu(e: Emitter, op: Op, x: Ref, slope: Ref) -> Ref:
    if x.dtype not in ("FLOAT", "FLOAT16", "BF16"):
        zero = e.scalar(0, x)
        low = widened(e, "Mul", widened(e, "Minimum", x, zero), slope)
        return widened(e, "Add", widened(e, "Maximum", x, zero), low)
    full = (1,) * (len(x.shape) - len(slope.shape)) + slope.shape
    count = math.prod(full)
    if count == 1 or (len(full) > 1 and count == full[1] == x.shape[1]):
        return e.op("PRelu", x, e.reshape(slope, (count,)), out=x.desc)
    negative = e.op("Less", x, e.scalar(0, x), out=Desc("BOOL", x.shape))
    return e.op("SelectV2", negative, e.op("Mul", x, slope), x, out=x.desc)


def _selu(e: Emitter, op: Op, x: Ref) -> Ref:
    if abs(op.a.alpha - 1.67326319) < 1e-6 and abs(op.a.gamma - 1.05070102) < 1e-6:
        return e.op("Selu", x)
    return e.op("Muls", widened(e, "Elu", x, alpha=float(op.a.alpha)), value=float(op.a.gamma))


def _celu(e: Emitter, op: Op, x: Ref) -> Ref:
    alpha = float(op.a.alpha)
    if e.unit_for("Celu", x.dtype) == "AI Core":
        return widened(e, "Celu", x, alpha1=alpha, alpha2=alpha)
    return e.op("Muls", widened(e, "Elu", e.op("Muls", x, value=1 / alpha), alpha=1.0), value=alpha)


def _thresholded(e: Emitter, op: Op, x: Ref) -> Ref:
    above = e.op("Greater", x, e.scalar(op.a.alpha, x), out=Desc("BOOL", x.shape))
    return e.op("SelectV2", above, x, e.scalar(0, x), out=x.desc)


def _relu(e: Emitter, op: Op, x: Ref) -> Ref:
    return relu_of_product(e, x) or widened(e, "Relu", x)


def _thresh_shrink(e: Emitter, op: Op, x: Ref) -> Ref:
    if x.dtype not in FLOATS:
        raise Unsupported(f"GE `Shrink` does not take {x.dtype}")
    return widened(e, "Shrink", x, lambd=float(op.a.lambd), bias=float(op.a.bias))


ROWS: dict[str, Row] = {
    "Celu": _celu,
    "Gelu": _gelu,
    "PRelu": _prelu,
    "Relu": _relu,
    "Selu": _selu,
    "Shrink": _thresh_shrink,
    "ThresholdedRelu": _thresholded,
}
