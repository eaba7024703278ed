"""MatMulNBits and GatherBlockQuantized as GE nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.mapping.chip import HALF_MODES, HALF_RESULTS
from occ.compiler.codegen_cann.mapping.emitter import Emitter, Unsupported
from occ.compiler.codegen_cann.mapping.indexing import from_end
from occ.compiler.codegen_cann.mapping.linear import matmul
from occ.compiler.ir.op import Op

Row = Callable[..., Any]
_HALF_LEVELS = (2, 3, 4)  # accuracy levels at which the model allows activations in half precision or less
_LARGEST = 65535  # inner extents of WeightQuantBatchMatmulV2
_HALF_MAX, _LEAST_HALF = 65504.0, 2.0**-14  # between these, half-precision numbers have full precision


def constant_operand(e: Emitter, op: Op, name: str) -> np.ndarray | None:
    """An operand that must be constant; None if it is absent."""
    k = next(k for k in range(len(op.operands) + 1) if k == len(op.operands) or op.spec.operand_name(k) == name)
    if k == len(op.operands) or op.operands[k] is None:
        return None
    return e.known(op, k)


def fields(packed: np.ndarray, bits: int, count: int) -> np.ndarray:
    """The first `count` codes of the last axis as INT16, from bytes that pack them low bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    found = (packed[..., None] >> shifts) & ((1 << bits) - 1)
    return found.reshape(*packed.shape[:-1], -1)[..., :count].astype(np.int16)


def zero_points(zeros: np.ndarray | None, bits: int, shape: tuple[int, ...]) -> np.ndarray:
    """The zero point of each block, stored or the centre of the codes."""
    if zeros is None:
        return np.full(shape, 1 << (bits - 1), np.int16)
    if zeros.dtype.kind == "u":
        return fields(zeros.reshape(*shape[:-1], -1), bits, shape[-1])
    return zeros.reshape(shape)


def _matmul_nbits(e: Emitter, op: Op, x: Ref, *_: Ref | None) -> Ref:
    """`x @ W'`: on the matrix unit with 4-bit weights if the chip has that kernel, otherwise with W in floats."""
    a = op.a
    blocks = -(-a.K // a.block_size)
    packed, scales = constant_operand(e, op, "B"), constant_operand(e, op, "scales")
    groups, bias = constant_operand(e, op, "g_idx"), constant_operand(e, op, "bias")
    assert packed is not None, "B is required"
    assert scales is not None, "scales are required"
    codes = fields(packed.reshape(a.N, -1), a.bits, blocks * a.block_size)[:, : a.K]
    scales = scales.reshape(a.N, blocks)
    zeros = zero_points(constant_operand(e, op, "zero_points"), a.bits, (a.N, blocks))
    kind = _kernel_codes(e, op, scales, zeros) if groups is None else ""
    if kind:
        made = _weight_quantised(e, op, x, kind, codes, scales, zeros)
    else:
        at = np.arange(a.K) // a.block_size if groups is None else groups[: a.K]
        wide = (codes.astype(np.float32) - zeros.astype(np.float32)[:, at]) * scales.astype(np.float32)[:, at]
        made = matmul(e, x, e.cast(narrowed(e, wide.T, x.dtype), x.dtype))
    return made if bias is None else e.op("Add", made, e.constant(bias))


def narrowed(e: Emitter, w: np.ndarray, dtype: str) -> Ref:
    """A weight for a product of `dtype`, in half precision if the matrix unit rounds it to that anyway."""
    halves = e.precision in HALF_MODES and float(np.abs(w).max(initial=0)) <= _HALF_MAX
    kind = np.float16 if dtype == "FLOAT16" or halves else ml_dtypes.bfloat16 if dtype == "BF16" else np.float32
    return e.constant(np.ascontiguousarray(w.astype(kind)))


def _kernel_codes(e: Emitter, op: Op, scales: np.ndarray, zeros: np.ndarray) -> str:
    """The type of the codes that the chip's WeightQuantBatchMatmulV2 would have; empty where it is not for the product.

    It supports INT4 in blocks on some chips, and INT8 with one scale per result column. Rows and results are in half
    precision, which the model or the precision mode must allow.
    """
    a = op.a
    allowed = a.accuracy_level in _HALF_LEVELS or e.precision in HALF_RESULTS
    scaled = np.abs(scales[scales != 0].astype(np.float32))
    normal = bool(np.all((scaled >= _LEAST_HALF) & (scaled <= _HALF_MAX)))
    if not (allowed and normal) or max(a.K, a.N) > _LARGEST or zeros.dtype.kind != "i":
        return ""
    if a.bits == 4 and e.chip.block_products and a.block_size % 32 == 0 and a.block_size < a.K and a.K % 2 == 0:
        return "INT4"
    whole = a.block_size >= a.K and e.unit_for("WeightQuantBatchMatmulV2", "INT8", 1) == "AI Core"
    return "INT8" if whole else ""


def _weight_quantised(
    e: Emitter, op: Op, x: Ref, kind: str, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray
) -> Ref:
    rows = e.reshape(e.cast(x, "FLOAT16"), (int(np.prod(x.shape[:-1])), op.a.K))
    centre, grouped = 1 << (op.a.bits - 1), kind == "INT4"
    weight = e.int4(codes - centre) if grouped else e.constant((codes - centre).astype(np.int8))
    offset = (centre - zeros).astype(np.float16)
    per_group = [v if grouped else v.reshape(-1) for v in (scales.astype(np.float16), offset)]
    made = e.op(
        "WeightQuantBatchMatmulV2", rows, weight, e.constant(per_group[0]),
        e.constant(per_group[1]) if offset.any() else None,
        out=Desc("FLOAT16", (rows.shape[0], op.a.N)), transpose_weight=True,
        antiquant_group_size=op.a.block_size if grouped else 0,
    )  # fmt: skip
    return e.reshape(e.cast(made, x.dtype), (*x.shape[:-1], op.a.N))


def _gather(e: Emitter, op: Op, data: Ref, indices: Ref, *_: Ref | None) -> Ref:
    """Rows of codes and scales are gathered first and then multiplied: the table stays in integers."""
    a = op.a
    packed, scales = constant_operand(e, op, "data"), constant_operand(e, op, "scales")
    assert packed is not None, "data is required"
    assert scales is not None, "scales are required"
    rank, size = packed.ndim, a.block_size
    if packed.dtype != np.uint8 or a.gather_axis % rank or a.quantize_axis % rank != rank - 1:
        raise Unsupported("rows are gathered along axis 0 from u8 that has its blocks along the last axis")
    width = packed.shape[-1] * (8 // a.bits)
    if width % size:
        raise Unsupported(f"rows of {width} are not whole blocks of {size}")
    zeros = zero_points(constant_operand(e, op, "zero_points"), a.bits, scales.shape)
    codes = fields(packed, a.bits, width).reshape(*scales.shape, size) - zeros[..., None]
    at = from_end(e, indices, data.shape[0])
    rows = _rows(e, codes.astype(np.int8 if a.bits < 8 else np.int16), at)
    factors = _rows(e, scales[..., None], at)
    return e.reshape(e.op("Mul", e.cast(rows, factors.dtype), factors), e.type(op.result).shape)


def _rows(e: Emitter, table: np.ndarray, at: Ref) -> Ref:
    out = e.constant(table)
    axis = e.constant(np.array(0, np.int32))
    return e.op("GatherV2", out, at, axis, out=Desc(out.dtype, (*at.shape, *table.shape[1:])))


ROWS: dict[str, Row] = {
    "com.microsoft.MatMulNBits": _matmul_nbits,
    "com.microsoft.GatherBlockQuantized": _gather,
}
