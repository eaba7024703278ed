"""Padding and slicing that convolutions and pooling share.

GE orders pads top, bottom, left, right; ONNX all begins, then all ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.mapping.chip import PADDED
from occ.compiler.codegen_cann.mapping.emitter import Emitter, Unsupported
from occ.compiler.ir.op import Op


def window_pads(op: Op, size: Sequence[int], kernel: Sequence[int]) -> list[tuple[int, int]]:
    """Explicit pads of a window operator: (begin, end) per axis.

    The end pad follows from the result's extents, so that ceil_mode and auto_pad need no special cases.
    """
    a, n = op.a, len(size)
    strides, dilations = a.strides or (1,) * n, getattr(a, "dilations", None) or (1,) * n
    given = a.pads or (0,) * 2 * n
    out = op.results[0].tensor.static[2:]
    pads: list[tuple[int, int]] = []
    for k in range(n):
        need = (out[k] - 1) * strides[k] + dilations[k] * (kernel[k] - 1) + 1 - size[k]
        match a.auto_pad:
            case "SAME_UPPER":
                begin = max(need, 0) // 2
            case "SAME_LOWER":
                begin = -(-max(need, 0) // 2)
            case "VALID":
                begin = 0
            case _:
                begin = given[k]
        pads.append((begin, max(need - begin, 0)))
    return pads


def flat(pads: Sequence[tuple[int, int]]) -> list[int]:
    """Pads in GE's order."""
    return [p for pair in pads for p in pair]


def pad(
    e: Emitter, x: Ref, begins: Sequence[int], ends: Sequence[int], shape: Sequence[int], mode: str = "constant",
    value: Ref | None = None,
) -> Ref:  # fmt: skip
    """A PadV3 with begins and ends of every axis.

    Raises:
        Unsupported: there are too many axes.
    """
    if len(shape) > PADDED:
        raise Unsupported(f"PadV3 takes {PADDED} axes, not {len(shape)}")
    fill = (value if value is not None else e.scalar(0, x)) if mode == "constant" else None
    paddings = e.ints([*begins, *ends])
    return e.op("PadV3", x, paddings, fill, out=Desc(x.dtype, tuple(shape)), mode=mode, paddings_contiguous=False)


def padded(e: Emitter, x: Ref, pads: Sequence[tuple[int, int]], value: Ref | None = None) -> Ref:
    """`x` with pads on its spatial axes, which come last; `x` itself if there are none."""
    if not any(map(any, pads)):
        return x
    lead = [0] * (len(x.shape) - len(pads))
    begins, ends = ([*lead, *(p[k] for p in pads)] for k in (0, 1))
    shape = [d + b + f for d, b, f in zip(x.shape, begins, ends, strict=True)]
    return pad(e, x, begins, ends, shape, value=value)


def strided(
    e: Emitter, x: Ref, begin: Sequence[int], end: Sequence[int], axes: Sequence[int], steps: Sequence[int], out: Desc
) -> Ref:
    """A slice over some axes, with begins and ends as numpy takes them after clamping.

    A pass turns a StridedSliceV2 with constant bounds into an AI Core kernel. If extents may be unknown, on most chips
    that kernel does not support it, but StridedSlice does, which names all axes: masks leave the others unchanged.
    """
    if e.unit_for("StridedSliceD", x.dtype) != "fixed" or x.dtype == "BOOL":
        return e.op("StridedSliceV2", x, e.ints(begin), e.ints(end), e.ints(axes), e.ints(steps), out=out)
    rank = len(x.shape)
    bounds = [[0] * rank, [0] * rank, [1] * rank]
    for b, f, k, s in zip(begin, end, axes, steps, strict=True):
        for values, value in zip(bounds, (b, f, s), strict=True):
            values[k] = int(value)
    whole = sum(1 << k for k in range(rank) if k not in {int(a) for a in axes})
    return e.op("StridedSlice", x, *(e.ints(v) for v in bounds), out=out, begin_mask=whole, end_mask=whole)
