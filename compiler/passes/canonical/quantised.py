"""Queries on quantised tensors that rewrites share, such as the codes that a value stands for."""

from __future__ import annotations

import numpy as np

from occ.compiler.ir.build_te import static_elements
from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dtype import F32, I8, U8, DType
from occ.compiler.ir.op import Op, Value, Weight
from occ.runtime.dataclass import dataclass

BYTES = (U8, I8)
_ACCUMULATORS = np.iinfo(np.int32)


@dataclass(frozen=True)
class Codes:
    """A quantised tensor: `(data - zero) * scale`.

    Attributes:
        data: the codes; None for a result that does not exist yet.
        scale: constant f32, one value or one per slice along an axis.
        zero: constant of the codes' type, or None for 0.
        dtype: of the codes, u8 or i8.
    """

    data: Value
    scale: Weight
    zero: Weight | None
    dtype: DType

    @classmethod
    def of_result(cls, op: Op) -> Codes | None:
        """The parameters of a per-tensor QuantizeLinear from f32 to bytes; its result stands for the codes."""
        x, scale, zero = (*op.operands, None)[:3]
        dtype = op.result.tensor.dtype
        if x is None or not isinstance(scale, Weight) or not (zero is None or isinstance(zero, Weight)):
            return None
        made = cls(op.result, scale, zero, dtype)
        return made if x.tensor.dtype == F32 and made.is_plain and scale.data.size == 1 else None

    @property
    def is_plain(self) -> bool:
        """Whether these are bytes with finite f32 scales."""
        known = self.dtype in BYTES and self.scale.tensor.dtype == F32
        return known and bool(np.all(np.isfinite(self.scale.data) & (self.scale.data > 0)))

    @property
    def point(self) -> np.ndarray:
        """The zero points."""
        return np.zeros((), self.dtype.numpy) if self.zero is None else self.zero.data

    def scales(self, b: GraphBuilder) -> tuple[Value, Value]:
        """Scale and zero point as operands."""
        return self.scale, b.constant(np.zeros((), self.dtype.numpy)) if self.zero is None else self.zero

    def operands(self, b: GraphBuilder) -> tuple[Value, Value, Value]:
        """Codes, scale and zero point as operands."""
        return (self.data, *self.scales(b))

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and largest number that has a code, for a tensor with one scale."""
        zero, scale = int(self.point.reshape(())), float(self.scale.data.reshape(()))
        return (int(self.dtype.lowest) - zero) * scale, (int(self.dtype.highest) - zero) * scale


def codes_of(value: Value | None, axis: int | None = None) -> Codes | None:
    """The codes that a DequantizeLinear to f32 reads: per tensor, or per slice along `axis` of a constant."""
    op = value.defining_op if value is not None else None
    if op is None or op.name != "DequantizeLinear":
        return None
    data, scale, zero = (*op.operands, None)[:3]
    if data is None or not isinstance(scale, Weight) or not (zero is None or isinstance(zero, Weight)):
        return None
    made = Codes(data, scale, zero, data.tensor.dtype)
    if not made.is_plain or op.result.tensor.dtype != F32:
        return None
    if scale.data.size == 1 and (zero is None or zero.data.size == 1):
        return made
    if axis is None or not isinstance(data, Weight) or scale.data.ndim != 1 or op.a.block_size:
        return None
    rank = data.tensor.rank
    return made if op.a.axis % rank == axis % rank else None


def alone(op: Op) -> bool:
    """Whether an op has one result, with one reader."""
    return len(op.results) == 1 and len(op.result.uses) == 1


def same_scale(x: Codes, y: Codes) -> bool:
    """Whether two tensors have the same quantisation parameters."""
    if x.dtype != y.dtype or x.scale.data.size != 1 or x.point.size != 1:
        return False
    return bool(x.scale.data.reshape(()) == y.scale.data.reshape(()) and x.point.reshape(()) == y.point.reshape(()))


def without_cut(op: Op, to: Codes) -> Op | None:
    """The op whose result `op` quantises, skipping a Relu or Clip that saturation implies."""
    value = op.operands[0]
    maker = value.defining_op if value is not None else None
    if maker is None or maker.name not in ("Relu", "Clip"):
        return maker
    low, high = to.range
    bounds = (0.0, np.inf) if maker.name == "Relu" else _bounds(maker)
    if not alone(maker) or bounds is None or low < bounds[0] or high > bounds[1]:
        return None
    before = maker.operands[0]
    return before.defining_op if before is not None else None


def _bounds(clip: Op) -> tuple[float, float] | None:
    """The constant bounds of a Clip."""
    made = [-np.inf, np.inf]
    for k, v in enumerate(clip.operands[1:]):
        if v is not None:
            found = static_elements(v)
            if found is None or not isinstance(found[0], (int, float)):
                return None
            made[k] = float(found[0])
    return made[0], made[1]


def bias_codes(bias: Value | None, x: Codes, w: Codes, b: GraphBuilder) -> Value | None:
    """A constant bias with one element per channel, in units of the accumulator, as i32.

    None if it cannot be written so.

    The output of a DequantizeLinear has that form if its scale is the product of the other two, as it should be.
    """
    op = bias.defining_op if bias is not None else None
    step = x.scale.data.reshape(-1).astype(np.float32) * w.scale.data.reshape(-1)
    if op is not None and op.name == "DequantizeLinear":
        data, scale, zero = (*op.operands, None)[:3]
        if not isinstance(data, Weight) or not isinstance(scale, Weight) or data.data.ndim != 1:
            return None
        if not (zero is None or (isinstance(zero, Weight) and not np.any(zero.data))):
            return None
        if data.data.dtype == np.int32 and np.allclose(scale.data.reshape(-1), step, rtol=1e-5, atol=0):
            return data
        values = data.data.astype(np.float64) * scale.data.reshape(-1)
    elif isinstance(bias, Weight) and bias.data.ndim == 1 and bias.data.dtype == np.float32:
        values = bias.data.astype(np.float64)
    else:
        return None
    whole = np.rint(values / step)
    if not np.all(np.abs(whole) < _ACCUMULATORS.max // 2):
        return None
    return b.constant(np.broadcast_to(whole, values.shape).astype(np.int32))
