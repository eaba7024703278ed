"""AscendQuant, AscendDequant and AscendAntiQuant nodes around INT8 products.

AscendQuant produces signed codes, in half precision. Unsigned codes are these plus 128; their readers use the signed
ones, see `Emitter.signed`.

GE itself removes the offset of an AscendQuant from a product whose result an AscendDequant reads: it adjusts the bias
by the sums of the constant weights, and pads with the offset (SetQuantParameters and QuantBiasOptimization in its
sources). So nothing must be corrected here in that case, and everything if another node is in between.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.mapping.emitter import Emitter

_LEAST, _MOST = 2.0**-14, 2.0**8  # steps that half precision distinguishes, of which it has 255
_LEAST_ROOT = (
    256 / 65504
) ** 2  # below it, codes times the root of a scale exceed half precision before the second multiplication
_KEPT_BITS = np.uint32(0xFFFFE000)  # bits of a scale that the unit reads: sign, exponent and 10 of the mantissa
_VIEWS = frozenset({"Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_BYTES = ("INT8", "UINT8")
UNSIGNED = 128  # difference between an unsigned code and the signed one


def number(v: Ref | None) -> float | None:
    """The value of a one-element constant; 0 if it is absent, None for anything else."""
    if v is None:
        return 0.0
    if v.node.type != "Const" or v.node.value.size != 1:
        return None
    return float(v.node.value.reshape(()))


def quantised(e: Emitter, x: Ref, scale: float | None, zero: float | None, out: str) -> Ref | None:
    """`x / scale + zero` as codes; None if AscendQuant does not apply.

    Args:
        x: FLOAT or FLOAT16.
        scale, zero: per tensor; None if they are unknown.
        out: element type of the codes.
    """
    if (
        not (e.chip.ascend_quant and e.chip.has("AscendQuant"))
        or out not in _BYTES
        or x.dtype not in ("FLOAT", "FLOAT16")
        or scale is None
        or zero is None
    ):
        return None
    if not _LEAST <= scale <= _MOST:
        return None
    shift = UNSIGNED if out == "UINT8" else 0
    made = e.op(
        "AscendQuant", x, out=Desc("INT8", x.shape, x.desc.format), scale=float(np.float32(1 / scale)),
        offset=zero - shift, dst_type="INT8",
    )  # fmt: skip
    return unsigned(e, made) if shift else made


def unsigned(e: Emitter, codes: Ref) -> Ref:
    """Signed codes as unsigned ones, linked to their origin."""
    made = e.cast(e.op("Add", e.cast(codes, "INT32"), e.scalar(UNSIGNED, "INT32")), "UINT8")
    e.signed[made] = codes
    return made


def dequantised(e: Emitter, x: Ref, scale: float | None, zero: float | None, out: str) -> Ref | None:
    """`(x - zero) * scale` by AscendAntiQuant, in half precision; None if it does not apply."""
    if out != "FLOAT16" and e.precision != "fp16":
        return None
    if x in e.signed and zero is not None:
        x, zero = e.signed[x], zero - UNSIGNED
    if (
        not (e.chip.ascend_quant and e.chip.has("AscendAntiQuant"))
        or x.dtype != "INT8"
        or scale is None
        or zero is None
        or not _LEAST <= scale <= _MOST
    ):
        return None
    desc = Desc("FLOAT16", x.shape, x.desc.format)
    return e.cast(e.op("AscendAntiQuant", x, out=desc, scale=scale, offset=-zero, dtype="FLOAT16"), out)


def direct(e: Emitter, codes: Ref) -> Ref:
    """Codes directly from an AscendQuant, with only views in between: the views are then moved before it."""
    views: list[Ref] = []
    at = codes
    while at.node.type in _VIEWS and at.node.inputs[0] is not None:
        views.append(at)
        at = at.node.inputs[0]
    source = at.node.inputs[0] if at.node.type == "AscendQuant" else None
    if source is None or not views:
        return codes
    for view in reversed(views):
        rest, attrs = view.node.inputs[1:], view.node.attrs
        source = e.op(view.node.type, source, *rest, out=Desc(source.dtype, view.shape, view.desc.format), **attrs)
    return e.op("AscendQuant", source, out=codes.desc, **at.node.attrs)


def known_sums(w: np.ndarray, zero: int, axes: Sequence[int]) -> np.ndarray:
    """The contribution of the other operand's zero point to a product with constant weights."""
    return (w.astype(np.int64).sum(tuple(axes)) * zero).astype(np.int32)


def requantised(e: Emitter, total: Ref, factor: np.ndarray, zero: float, out: str) -> Ref:
    """INT32 sums of a product as codes: times `factor`, one or one per channel, in steps of the result."""
    desc, scales = Desc("FLOAT16", total.shape, total.desc.format), factor.astype(np.float64).reshape(-1)
    if _half_scales(e):
        twice = bool(scales.min() < _LEAST)
        encoded = (np.sqrt(scales) if twice else scales).astype(np.float16)
    else:
        twice, encoded = None, _nearest(scales.astype(np.float32)).view(np.uint32).astype(np.uint64)
    value = e.op("AscendDequant", total, e.constant(encoded), out=desc, dtype="FLOAT16", sqrt_mode=twice or None)
    made = quantised(e, value, 1.0, zero, out)
    assert made is not None, "the callers ask `can` first"
    return made


def relu_of_product(e: Emitter, codes: Ref) -> Ref | None:
    """The non-negative codes of a product, for which AscendDequant has a flag.

    None if they come from something else.
    """
    quant = codes.node
    if quant.type in _VIEWS and quant.inputs[0] is not None:
        inner = relu_of_product(e, quant.inputs[0])
        return None if inner is None else e.op(quant.type, inner, *quant.inputs[1:], out=codes.desc, **quant.attrs)
    scaled = quant.inputs[0].node if quant.type == "AscendQuant" and quant.inputs[0] is not None else None
    if scaled is None or scaled.type != "AscendDequant" or quant.attrs["offset"] != 0:
        return None
    value = e.op("AscendDequant", *scaled.inputs, out=scaled.outputs[0], **{**scaled.attrs, "relu_flag": True})
    return e.op("AscendQuant", value, out=codes.desc, **quant.attrs)


def _nearest(scale: np.ndarray) -> np.ndarray:
    """Scales rounded to the unit's precision; it would truncate them."""
    half = np.uint32(0x0FFF) + ((scale.view(np.uint32) >> np.uint32(13)) & np.uint32(1))
    return ((scale.view(np.uint32) + half) & _KEPT_BITS).view(np.float32)


def _half_scales(e: Emitter) -> bool:
    """Whether AscendDequant has half-precision scales, as on the 310 and the 910.

    Small ones are stored as their root, and applied twice.
    """
    return bool(e.unit_for("AscendDequant", "FLOAT16", 1)) and not e.unit_for("AscendDequant", "UINT64", 1)


def can(e: Emitter, w: Ref, w_zero: Ref | None, numbers: Sequence[Ref | None], factor: np.ndarray | None) -> bool:
    """Whether a product with weights `w` can use AscendDequant: they are constant and signed, and all scales known."""
    if (
        not (e.chip.ascend_quant and e.chip.has("AscendDequant"))
        or w.node.type != "Const"
        or w.dtype != "INT8"
        or factor is None
    ):
        return False
    if w_zero is not None and (w_zero.node.type != "Const" or np.any(w_zero.node.value)):
        return False
    if any(number(v) is None for v in numbers):
        return False
    least, most = (_LEAST_ROOT, _MOST) if _half_scales(e) else (2.0**-100, 2.0**16)
    return bool(np.all(np.isfinite(factor) & (factor > least) & (factor < most)))


def factor_of(xs: Ref, ws: Ref, ys: Ref) -> np.ndarray | None:
    """The product's step in units of the result's step; None if a scale is not constant."""
    if any(v.node.type != "Const" for v in (xs, ws, ys)) or xs.node.value.size * ys.node.value.size != 1:
        return None
    x, w, y = (v.node.value.astype(np.float64).reshape(-1) for v in (xs, ws, ys))
    return x * w / y


def signed_form(e: Emitter, x: Ref) -> Ref | None:
    """The INT8 codes from which UINT8 ones were made by adding 128; views of them are recreated."""
    if x in e.signed:
        return e.signed[x]
    source = x.node.inputs[0] if x.node.type in _VIEWS else None
    inner = None if source is None else signed_form(e, source)
    if inner is None:
        return None
    made = e.op(x.node.type, inner, *x.node.inputs[1:], out=Desc("INT8", x.shape, x.desc.format), **x.node.attrs)
    e.signed[x] = made
    return made
