"""Converts operators of AMCT and torch_npu to equivalent ONNX operators.

AMCT leaves products on 8-bit codes between AscendQuant and AscendDequant, which alone have the scales:

`%q = AscendQuant(%x) {offset, scale}  %p = Conv(%q, @w, @b)  %y = AscendDequant(%p, @s)` -->
`%q = QuantizeLinear(%x, 1 / scale, offset)`
`%y = Conv(DequantizeLinear(%q, ..), DequantizeLinear(@w, s * scale), @b * s)`

Passes turn that into integer products on every target, and back into AscendQuant and AscendDequant on chips that have
them. The operators' meaning follows their prototypes and ONNX plug-ins in CANN's public repositories (ops-nn, 2026-08).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from occ.compiler.diagnostics import error
from occ.compiler.ir.dtype import F16, F32, U8, DType
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.rewriter import Rewriter

_PRODUCTS = ("Conv", "Gemm", "MatMul")
_VIEWS = ("Flatten", "Identity", "MaxPool", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_LOW_HALF = 0xFFFFFFFF  # of 64 bits: the scale as FLOAT; the rest holds fields that INT8 products do not use
# `dtype` uses GE's numbers 0, 1, 2, which mean other types in ONNX.
_GE_TYPES: dict[DType | None, str] = {None: "FLOAT", F32: "FLOAT16", U8: "INT8"}
_GELU_SLOPE = 1.702


class _Reader:
    """Replaces one by ONNX operators."""

    def __init__(self, m: Module, op: Op) -> None:
        self.m, self.op, self.rewriter = m, op, Rewriter(m)
        self.attrs = dict(op.attrs)

    def put(self, name: str, *operands: Value | None, before: Op | None = None, **attrs: Any) -> Value:
        """Insert an op before this one, or before another."""
        at = before or self.op
        assert at.parent is not None
        return at.parent.insert(Op(self.m.registry[name], operands, attrs, loc=self.op.loc), at).result

    def constant(self, data: Any, dtype: Any = np.float32) -> Weight:
        """A constant of the module."""
        return self.m.add_weight("c", np.asarray(data, dtype))

    def known(self, k: int, what: str) -> np.ndarray:
        """The value of an operand that must be constant.

        Raises:
            CompileError: OCC0107 it is computed.
        """
        value = self.op.operands[k] if k < len(self.op.operands) else None
        return _data(value, f"`{self.op.name}`: {what}", self.op)

    def states(self, default: str) -> str:
        """The element type that `dtype` states."""
        return _GE_TYPES.get(self.attrs["dtype"], "") if "dtype" in self.attrs else default

    def refuse(self, what: str) -> Exception:
        """The error for an unsupported kind of node."""
        return error("OCC0107", f"`{self.op.name}` {what}", where=str(self.op.loc))


def _data(value: Value | None, what: str, op: Op) -> np.ndarray:
    if not isinstance(value, Weight):
        raise error("OCC0107", f"{what} has to be constant", where=str(op.loc))
    return value.data


def _codes(r: _Reader, scale: np.ndarray, offset: np.ndarray, **attrs: Any) -> Value:
    if (
        not np.all(np.isfinite(scale) & (scale > 0))
        or np.any(offset != np.rint(offset))
        or np.any(np.abs(offset) > 128)
    ):
        raise r.refuse("has a scale that is not positive, or an offset that is not a code")
    step, zero = r.constant(1 / scale.astype(np.float64)), r.constant(offset, np.int8)
    return r.put("QuantizeLinear", r.op.operands[0], step, zero, **attrs)


def _quant(r: _Reader) -> Sequence[Value]:
    a = r.attrs
    if a.get("sqrt_mode", 0) or a.get("round_mode", "Round") != "Round":
        raise r.refuse("with sqrt_mode, or another round_mode than `Round`, is not read")
    if a.get("dst_type", 2) not in (2, "INT8"):
        raise r.refuse("of other codes than INT8 is not read")
    return [_codes(r, np.array(a.get("scale", 1.0), np.float32), np.array(a.get("offset", 0.0), np.float32))]


def _quant_v2(r: _Reader) -> Sequence[Value]:
    scale = r.known(1, "the scale").astype(np.float32)
    given = len(r.op.operands) > 2 and r.op.operands[2] is not None
    offset = np.broadcast_to(r.known(2, "the offset").astype(np.float32) if given else np.float32(0), scale.shape)
    if r.states("INT8") != "INT8":
        raise r.refuse("of other codes than INT8 is not read")
    if scale.size == 1:
        return [_codes(r, scale.reshape(()), offset.reshape(()))]
    return [_codes(r, scale.reshape(-1), offset.reshape(-1), axis=r.attrs.get("axis", -1))]


def _anti_quant(r: _Reader) -> Sequence[Value]:
    a = r.attrs
    scale = np.float32(a.get("scale", 1.0)) ** (2 if a.get("sqrt_mode", 0) else 1)
    moved = r.put("Add", r.put("Cast", r.op.operands[0], to=F32), r.constant(a.get("offset", 0.0)))
    made = r.put("Mul", moved, r.constant(scale))
    return [r.put("Cast", made, to=F16) if r.states("FLOAT") == "FLOAT16" else made]


def _scales(r: _Reader) -> np.ndarray:
    """The scales of the sums, per channel or common."""
    given = r.known(1, "the scale").reshape(-1)
    if given.dtype.kind in "iu" and given.dtype.itemsize == 8:
        bits = given.astype(np.uint64)
        if np.any(bits >> np.uint64(32)):
            raise r.refuse("has a scale with an offset or a shift in its upper half, which is not read")
        given = (bits & np.uint64(_LOW_HALF)).astype(np.uint32).view(np.float32)
    if given.dtype.kind != "f":
        raise r.refuse(f"has scales of {given.dtype}")
    return given.astype(np.float32) ** (2 if r.attrs.get("sqrt_mode", 0) else 1)


def _dequant(r: _Reader) -> Sequence[Value]:
    scales, sums = _scales(r), r.op.operands[0]
    product, added = sums.defining_op if sums is not None else None, None
    if product is not None and product.name == "Add":
        at = next((k for k, v in enumerate(product.operands) if isinstance(v, Weight)), -1)
        added, inner = (product, at), product.operands[1 - at] if at >= 0 else None
        product = inner.defining_op if inner is not None else None
    codes = _origin(product)
    if product is None or codes is None:
        raise r.refuse(f"reads no {', '.join(_PRODUCTS)} of codes of AscendQuant")
    _in_float(r, product, codes, scales)
    if added is not None:
        add, k = added
        bias = _data(add.operands[k], "the bias of sums", r.op).astype(np.float32)
        shape = [1, -1, *[1] * (bias.ndim - 2)] if bias.ndim > 2 else [-1]
        r.rewriter.replace_operand(add, k, r.constant(bias * (scales.reshape(shape) if scales.size > 1 else scales)))
    made = r.put("Relu", sums) if r.attrs.get("relu_flag", 0) else sums
    assert made is not None
    return [r.put("Cast", made, to=F16) if r.states("FLOAT") == "FLOAT16" else made]


def _origin(product: Op | None) -> Op | None:
    """The QuantizeLinear whose codes a product reads, through views of them."""
    if product is None or product.name not in _PRODUCTS or product.operands[0] is None:
        return None
    maker = product.operands[0].defining_op
    while maker is not None and maker.name in _VIEWS and maker.operands[0] is not None:
        maker = maker.operands[0].defining_op
    return maker if maker is not None and maker.name == "QuantizeLinear" else None


def _in_float(r: _Reader, product: Op, codes: Op, scales: np.ndarray) -> None:
    """Make a product of codes read the dequantised values."""
    step = _data(codes.operands[1], "the scale of codes", codes)
    if step.size != 1:
        raise r.refuse("reads a product of codes with a scale for each channel, which is not read")
    weights = _data(product.operands[1], "the weights of a product of codes", product)
    if weights.dtype != np.int8:
        raise r.refuse(f"reads a product with weights of {weights.dtype}")
    x = r.put("DequantizeLinear", product.operands[0], *codes.operands[1:3], before=product)
    steps = r.constant(scales / step if scales.size > 1 else (scales / step).reshape(()))
    axis = 0 if product.name == "Conv" or product.attrs.get("transB", 0) else weights.ndim - 1
    w = r.put(
        "DequantizeLinear", product.operands[1], steps, before=product, **({"axis": axis} if scales.size > 1 else {})
    )
    more: list[Value | None] = []
    if len(product.operands) > 2 and product.operands[2] is not None:
        bias = _data(product.operands[2], "the bias of a product of codes", product)
        more = [r.constant(bias.astype(np.float32) * scales)]
    r.rewriter.replace_operands(product, [x, w, *more])


def _rms_norm(r: _Reader) -> Sequence[Value]:
    x, gamma = r.op.operands
    return [r.put("RMSNormalization", x, gamma, axis=-1, epsilon=r.attrs.get("epsilon", 1e-6)), *_unread(r, 1)]


def _add_rms_norm(r: _Reader) -> Sequence[Value]:
    total = r.put("Add", *r.op.operands[:2])
    y = r.put("RMSNormalization", total, r.op.operands[2], axis=-1, epsilon=r.attrs.get("epsilon", 1e-6))
    return [y, *_unread(r, 1, 2), total]


def _unread(r: _Reader, first: int, end: int | None = None) -> list[Value]:
    """Placeholders for results that must not have readers."""
    skipped = r.op.results[first:end]
    if any(v.uses for v in skipped):
        raise r.refuse("has a second result that is read, which training needs")
    return [r.constant(0.0) for _ in skipped]


def _rotary(r: _Reader) -> Sequence[Value]:
    x, cos, sin = r.op.operands
    first, second = _halves(r, x)
    turned = r.put("Concat", r.put("Neg", second), first, axis=-1)
    return [r.put("Add", r.put("Mul", x, cos), r.put("Mul", turned, sin))]


def _halves(r: _Reader, x: Value | None) -> list[Value]:
    assert r.op.parent is not None
    split = Op(r.m.registry["Split"], (x,), {"axis": -1, "num_outputs": 2}, (None, None), loc=r.op.loc)
    return list(r.op.parent.insert(split, r.op).results)


def _linear(r: _Reader) -> Sequence[Value]:
    x, w, *bias = r.op.operands
    made = r.put("MatMul", x, r.put("Transpose", w, perm=(1, 0)))
    return [r.put("Add", made, bias[0]) if bias else made]


def _fast_gelu(r: _Reader) -> Sequence[Value]:
    (x,) = r.op.operands
    slope = r.put("CastLike", r.constant(_GELU_SLOPE), x)
    return [r.put("Mul", x, r.put("Sigmoid", r.put("Mul", x, slope)))]


_NPU: dict[str, Callable[[_Reader], Sequence[Value]]] = {
    "NPUAddRmsNorm": _add_rms_norm, "NPUAscendQuantV2": _quant_v2, "NPUFastGelu": _fast_gelu, "NPULinear": _linear,
    "NPUMish": lambda r: [r.put("Mish", r.op.operands[0])], "NPURmsNorm": _rms_norm, "NPURotaryMul": _rotary,
    "NPUTranspose": lambda r: [r.put("Transpose", r.op.operands[0], perm=r.attrs.get("perm", r.attrs.get("perms")))],
}  # fmt: skip
READERS: dict[str, Callable[[_Reader], Sequence[Value]]] = {
    "AscendAntiQuant": _anti_quant,
    "AscendDequant": _dequant,
    "AscendQuant": _quant,
    **_NPU,
    **{f"npu.{name}": read for name, read in _NPU.items()},
}


def read_huawei(m: Module) -> None:
    """Replace the operators in `READERS` by ONNX operators.

    Raises:
        CompileError: OCC0107 one of them has an unsupported form.
    """
    for func in m.funcs.values():
        for op in list(func.body.walk()):
            if op.name not in READERS or op.name in m.registry:  # a plug-in may define its own
                continue
            r = _Reader(m, op)
            made = READERS[op.name](r)
            r.rewriter.replace(op, made[: len(op.results)])
