"""Resize as GE nodes: a GE resize, a gather, or a matrix product for each axis.

Every mode of ONNX Resize is linear in the input and separable by axis, and the extents are known here. So an axis is a
constant matrix, evaluated from the operator's definition (`ir/ops/resize.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from occ.compiler.codegen_cann.graph.formats import FLOATS
from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.mapping.elementwise import computing_type
from occ.compiler.codegen_cann.mapping.emitter import Emitter, Unsupported
from occ.compiler.codegen_cann.mapping.linear import product
from occ.compiler.codegen_cann.mapping.shape import gathered, placed
from occ.compiler.interp.evaluate import run
from occ.compiler.ir.dtype import F32
from occ.compiler.ir.op import Op
from occ.compiler.ir.ops.resize import along_axis
from occ.compiler.ir.ops.resize_plan import AxisResize, axis_plan
from occ.compiler.ir.te.function import Builder, Param, TeFunc, Tensor
from occ.compiler.ir.types import TensorType

Row = Callable[..., Any]
_LARGEST_MATRIX = 1 << 24  # elements


def axis_matrix(r: AxisResize, a: SimpleNamespace) -> np.ndarray:
    """f32[size, out] with `resized = input @ matrix` along the axis.

    Raises:
        Unsupported: the resizing is not linear: it uses a constant outside of the input.
    """
    size, out = int(r.size), int(r.out)  # pyright: ignore[reportArgumentType]
    if size * out > _LARGEST_MATRIX:
        raise Unsupported(f"resizing {size} to {out} elements needs too large a matrix")
    kind = TensorType(F32, (size, size))
    t = Builder()
    y = along_axis(t, Tensor("x", kind), replace(r, axis=1), a)
    f = TeFunc("resize", (), (Param("x", kind),), tuple(t.stages), (Param(y.name, y.type),), ())
    if np.any(run(f, [np.zeros((size, size), np.float32)], {})[0]):
        raise Unsupported("its `extrapolation_value` is read")
    return run(f, [np.eye(size, dtype=np.float32)], {})[0]


def _resize(e: Emitter, op: Op, x: Ref, *_: Any) -> Ref:
    source = op.operands[0]
    assert source is not None, "Resize has an operand"
    operands: list[Tensor | None] = []
    for k in (1, 2, 3):
        value = op.operands[k] if k < len(op.operands) else None
        known = e.known(op, k)
        tensor = None if value is None or known is None else Tensor(value.name, value.tensor)
        operands.append(
            None if tensor is None or known is None else tensor.with_value(tuple(known.reshape(-1).tolist()))
        )
    plan = axis_plan(Tensor("x", source.tensor), operands[0], operands[1], operands[2], op.a)
    if not plan:
        return e.op("Identity", x)
    matrices = [axis_matrix(r, op.a) for r in plan]
    if op.a.mode == "nearest":
        return _nearest(e, x, plan, matrices)
    return _interpolated(e, op, x, plan, matrices)


def _image_axes(x: Ref, plan: list[AxisResize]) -> bool:
    return len(x.shape) == 4 and {r.axis for r in plan} <= {2, 3}


def _nearest(e: Emitter, x: Ref, plan: list[AxisResize], matrices: list[np.ndarray]) -> Ref:
    chosen = {r.axis: m.argmax(axis=0) for r, m in zip(plan, matrices, strict=True)}
    if _image_axes(x, plan):
        size = [len(chosen[k]) if k in chosen else x.shape[k] for k in (2, 3)]
        halves = (h for h in (False, True) if _is_ge_nearest(x, chosen, h))
        if (half := next(halves, None)) is not None:
            inner = e.cast(x, computing_type(e, "ResizeNearestNeighborV2", x.dtype))
            return e.cast(_image(e, "ResizeNearestNeighborV2", inner, size, half_pixel_centers=half), x.dtype)
    for axis, at in chosen.items():
        x = gathered(e, x, at.astype(np.int64), axis)
    return x


def _is_ge_nearest(x: Ref, chosen: dict[int, np.ndarray], half: bool) -> bool:
    return all(np.array_equal(at, _ge_nearest(x.shape[k], len(at), half)) for k, at in chosen.items())


def _ge_nearest(size: int, out: int, half: bool) -> np.ndarray:
    """The positions that GE's nearest resize reads: scaled by size / out, rounded down."""
    position = (np.arange(out) + (0.5 if half else 0.0)) * (np.float32(size) / np.float32(out))
    return np.minimum(np.floor(position.astype(np.float32)), size - 1).astype(np.int64)


def _image(e: Emitter, kind: str, x: Ref, size: list[int], **attrs: Any) -> Ref:
    out = Desc(x.dtype, (*x.shape[:2], *size), "NCHW")
    made = e.op(kind, x, e.ints(size, np.int32), out=out, align_corners=attrs.pop("align_corners", False), **attrs)
    made.node.formats = {"x": "NCHW"}
    return made


def _interpolated(e: Emitter, op: Op, x: Ref, plan: list[AxisResize], matrices: list[np.ndarray]) -> Ref:
    a = op.a
    dtype = x.dtype
    inner = dtype if dtype in ("FLOAT", "FLOAT16") else "FLOAT"
    value = e.cast(x, inner)
    proportional = all(r.scale is not None and r.scale * int(r.size) == int(r.out) for r in plan)  # pyright: ignore[reportArgumentType]
    mode = a.coordinate_transformation_mode
    by_ge = a.mode == "linear" and not a.antialias and not a.exclude_outside and proportional and _image_axes(x, plan)
    if by_ge and mode in ("half_pixel", "align_corners", "asymmetric") and inner == "FLOAT":
        size = list(e.type(op.result).shape[2:])
        value = _image(
            e, "ResizeBilinearV2", value, size, align_corners=mode == "align_corners",
            half_pixel_centers=mode == "half_pixel", dtype=inner,
        )  # fmt: skip
    else:
        for r, m in zip(plan, matrices, strict=True):
            value = _by_matrix(e, value, r.axis, m)
    if dtype not in FLOATS:
        value = e.op("Round", value)
    return e.cast(value, dtype)


def _by_matrix(e: Emitter, x: Ref, axis: int, matrix: np.ndarray) -> Ref:
    """Resize of an axis as a matrix product: from the left for the second-last axis."""
    rank = len(x.shape)
    weights = matrix.astype(np.float16 if x.dtype == "FLOAT16" else np.float32)
    if rank >= 2 and axis == rank - 2:
        return product(e, e.constant(np.ascontiguousarray(weights.T)), x)
    perm = [k for k in range(rank) if k != axis] + [axis]
    moved = e.transpose(x, perm)
    flat = e.reshape(moved, (-1 if not moved.shape else int(np.prod(moved.shape[:-1])), moved.shape[-1]))
    made = e.reshape(product(e, flat, e.constant(weights)), (*moved.shape[:-1], matrix.shape[1]))
    return e.transpose(made, [perm.index(k) for k in range(rank)])


def _center_crop_pad(e: Emitter, op: Op, x: Ref, *_: Any) -> Ref:
    """Crops or pads around the centre; an odd element is removed or added at the end."""
    left = [
        max(n - size, 0) // 2 - max(size - n, 0) // 2 for n, size in zip(e.type(op.result).shape, x.shape, strict=True)
    ]
    right = [n - size - b for n, size, b in zip(e.type(op.result).shape, x.shape, left, strict=True)]
    return placed(e, x, left, right)


ROWS: dict[str, Row] = {"CenterCropPad": _center_crop_pad, "Resize": _resize}
