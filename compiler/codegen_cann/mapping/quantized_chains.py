"""Quantised products with constant weights between AscendQuant nodes.

Everything else is left to `qlinear`.
"""

from __future__ import annotations

from math import prod

import numpy as np

from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.mapping.ascend_quant import can, direct, known_sums, number, requantised
from occ.compiler.codegen_cann.mapping.chip import DILATION, FILTER, PAD, STRIDE
from occ.compiler.codegen_cann.mapping.convolution import ConvAttrs, convolve
from occ.compiler.codegen_cann.mapping.emitter import Emitter
from occ.compiler.codegen_cann.mapping.quantize import signed
from occ.compiler.codegen_cann.mapping.window import padded, window_pads
from occ.compiler.ir.op import Op
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class QuantizedChain:
    """The quantisation of a product's operands and result.

    Attributes:
        x_zero: of the codes, as in the model.
        w_zero: of the weights; None for 0.
        factor: the product's step in units of the result's, one or one per channel; None if not constant.
        zero: of the result.
        bias: in steps of the product, INT32.
        out: element type of the result.
    """

    x_zero: Ref | None
    w_zero: Ref | None
    factor: np.ndarray | None
    zero: Ref | None
    bias: Ref | None
    out: str

    def fits(self, e: Emitter, w: Ref) -> bool:
        """Whether all of it is known, and the chip has the operators."""
        known = self.bias is None or self.bias.node.type == "Const"
        return known and can(e, w, self.w_zero, (self.x_zero, self.zero), self.factor)


def _taken_out(codes: Ref, zero: int) -> bool | None:
    """Whether GE removes the zero point from a product itself; None if it would remove another one."""
    if codes.node.type != "AscendQuant":
        return False
    return True if codes.node.attrs["offset"] == zero else None


def _bias(e: Emitter, given: Ref | None, less: np.ndarray | None) -> Ref | None:
    if less is None:
        return given
    return e.constant(-less if given is None else given.node.value.reshape(-1) - less)


def convolution(e: Emitter, op: Op, x: Ref, w: Ref, how: QuantizedChain) -> Ref | None:
    """A convolution over one or two axes; None if it cannot use AscendDequant."""
    n, a = len(x.shape) - 2, op.a
    if n not in (1, 2) or not how.fits(e, w) or e.unit_for("Conv2D", "INT8") != "AI Core":
        return None
    strides, dilations = list(a.strides or [1] * n), list(a.dilations or [1] * n)
    pads = window_pads(op, x.shape[2:], w.shape[2:])
    most = max(map(max, pads))
    if max(w.shape[2:]) > FILTER or max(strides) > STRIDE or max(dilations) > DILATION or most > PAD:
        return None
    codes, point = signed(e, x, how.x_zero)
    zero = int(number(point) or 0)
    if n == 1:
        codes = e.op("Unsqueeze", codes, out=Desc(codes.dtype, (*x.shape[:2], 1, x.shape[2])), axes=[2])
        w = e.constant(w.node.value[:, :, None])  # GE only sums constants
        pads, strides, dilations = [(0, 0), *pads], [1, *strides], [1, *dilations]
    codes = direct(e, codes)
    taken = _taken_out(codes, zero)
    if taken is None:
        return None
    less: np.ndarray | None = None
    if not taken and zero:
        codes, pads = padded(e, codes, pads, e.constant(np.array(zero, np.int8))), [(0, 0)] * 2
        less = known_sums(w.node.value, zero, (1, 2, 3))
    total = convolve(
        e, codes, w, _bias(e, how.bias, less), pads, ConvAttrs(strides, dilations, a.group), Desc("INT32", ())
    )
    assert how.factor is not None, "it fits"
    made = requantised(e, total, how.factor, number(how.zero) or 0, how.out)
    if n == 2:
        return made
    shape = (*made.shape[:2], made.shape[3])
    return e.reshape(made, shape)


def product(e: Emitter, x: Ref, y: Ref, how: QuantizedChain) -> Ref | None:
    """Rows of codes times a matrix; None if it cannot use AscendDequant."""
    if len(x.shape) < 2 or len(y.shape) != 2 or not how.fits(e, y) or e.unit_for("MatMulV2", "INT8") != "AI Core":
        return None
    codes, point = signed(e, x, how.x_zero)
    zero = int(number(point) or 0)
    codes = direct(e, e.reshape(codes, (prod(x.shape[:-1]), x.shape[-1])))
    taken = _taken_out(codes, zero)
    if taken is None:
        return None
    less = None if taken or not zero else known_sums(y.node.value, zero, (0,))
    out = Desc("INT32", (codes.shape[0], y.shape[1]))
    total = e.op("MatMulV2", codes, y, _bias(e, how.bias, less), out=out)
    assert how.factor is not None, "it fits"
    made = requantised(e, total, how.factor, number(how.zero) or 0, how.out)
    return e.reshape(made, (*x.shape[:-1], y.shape[1]))
