"""Convolutions and pools of com.microsoft."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from occ.compiler.ir.build_te import static_elements
from occ.compiler.ir.operator.spec import FormalSignature, op
from occ.compiler.ir.ops.contrib.activation import activated
from occ.compiler.ir.ops.contrib.domain import DOMAIN
from occ.compiler.ir.shape import equal_shapes

WINDOW = {"auto_pad": "NOTSET", "ceil_mode": 0, "dilations": None, "kernel_shape": None, "pads": None, "strides": None}


@op(f"{DOMAIN}.NhwcMaxPool", signature=FormalSignature.of("x", "y", **WINDOW))
class NhwcMaxPool:
    """MaxPool of channels-last images."""

    def composite(b, x, *, a):
        last = (0, *range(2, x.tensor.rank), 1)
        first = (0, x.tensor.rank - 1, *range(1, x.tensor.rank - 1))
        y = b.MaxPool(b.Transpose(x, perm=first), **{k: getattr(a, k) for k in WINDOW})
        return b.Transpose(y, perm=last)


CONV = {"auto_pad": "NOTSET", "dilations": None, "group": 1, "kernel_shape": None, "pads": None, "strides": None}


@op(f"{DOMAIN}.FusedConv", signature=FormalSignature.of("X W B? Z?", activation=None, activation_params=None, **CONV))
class FusedConv:
    """An activation of Conv with `Z` added."""

    def composite(b, x, w, bias=None, z=None, *, a):
        y = b.Conv(x, w, bias, **{k: getattr(a, k) for k in CONV})
        if z is not None:
            equal_shapes(z.tensor.dims, y.tensor.dims, "`Z` of `FusedConv`")
            y = b.Add(y, z)
        return activated(b, y, a.activation, tuple(a.activation_params or ()))


_TRANSPOSED = {
    "auto_pad": "NOTSET",
    "dilations": None,
    "group": 1,
    "kernel_shape": None,
    "output_padding": None,
    "strides": None,
}


@op(f"{DOMAIN}.ConvTransposeWithDynamicPads", signature=FormalSignature.of("X W Pads? B?", **_TRANSPOSED))
class ConvTransposeWithDynamicPads:
    """ConvTranspose whose pads are an operand; pads known only at run time are cropped from the unpadded result."""

    def composite(b, x, w, pads=None, bias=None, *, a):
        attrs = {k: getattr(a, k) for k in _TRANSPOSED}
        known = None if pads is None else static_elements(pads)
        if pads is None or (known is not None and all(isinstance(p, int) for p in known)):
            return b.ConvTranspose(x, w, bias, pads=known, **attrs)
        axes = range(2, x.tensor.rank)
        equal_shapes(pads.tensor.dims, (2 * len(axes),), "`Pads` of `ConvTransposeWithDynamicPads`")
        y = b.ConvTranspose(x, w, bias, **attrs)
        return b.Pad(y, b.Neg(pads), None, b.constant([*axes]))


ALL = (
    NhwcMaxPool,
    FusedConv,
    ConvTransposeWithDynamicPads,
)
