"""Poolings as GE nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from occ.compiler.codegen_cann.graph.formats import occ_type
from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.mapping.ascend_quant import signed_form, unsigned
from occ.compiler.codegen_cann.mapping.chip import HALF_MODES, STRIDE, WINDOW
from occ.compiler.codegen_cann.mapping.emitter import Emitter, Unsupported
from occ.compiler.codegen_cann.mapping.window import flat, pad, padded, strided, window_pads
from occ.compiler.ir.op import Op

Row = Callable[..., Any]
_MOST_SLICES = 128  # elements of a window up to which pooling is unrolled


def _in_two_axes(e: Emitter, x: Ref, pads: Sequence[tuple[int, int]], *more: Sequence[int]) -> tuple[Any, ...]:
    """Pooling over one axis as pooling over two, the first of extent 1."""
    wide = e.op("Unsqueeze", x, out=Desc(x.dtype, (*x.shape[:2], 1, x.shape[2])), axes=[2])
    return wide, [(0, 0), *pads], *([1, *m] for m in more)


def _out_size(size: int, pads: tuple[int, int], kernel: int, stride: int) -> int:
    return (size + sum(pads) - kernel) // stride + 1


def _max_pool(e: Emitter, op: Op, x: Ref) -> Ref:
    a, n = op.a, len(x.shape) - 2
    if len(op.results) > 1 and op.results[1].uses:
        raise Unsupported("GE pooling returns no indices in ONNX's numbering")
    kernel, strides = list(a.kernel_shape), list(a.strides or [1] * n)
    pads = window_pads(op, x.shape[2:], kernel)
    if any(d != 1 for d in a.dilations or ()):
        return _dilated_max(e, op, x, kernel, strides, pads)
    if n == 1:
        wide, pads, kernel, strides = _in_two_axes(e, x, pads, kernel, strides)
        made = _max_pool_node(e, wide, kernel, strides, pads)
        return e.op("Squeeze", made, out=Desc(made.dtype, (*made.shape[:2], made.shape[3])), axis=[2])
    return _max_pool_node(e, x, kernel, strides, pads)


def _max_pool_node(
    e: Emitter, x: Ref, kernel: Sequence[int], strides: Sequence[int], pads: Sequence[tuple[int, int]]
) -> Ref:
    n = len(kernel)
    if (codes := signed_form(e, x)) is not None:
        return unsigned(e, _max_pool_node(e, codes, kernel, strides, pads))
    if x.dtype in ("INT8", "UINT8"):  # half precision represents them exactly, and has a kernel
        return e.cast(_max_pool_node(e, e.cast(x, "FLOAT16"), kernel, strides, pads), x.dtype)
    if not _has_kernel(e, x, kernel, strides):
        low = e.scalar(occ_type(x.dtype).lowest, x)
        return _by_slices(e, "Maximum", padded(e, x, pads, low), kernel, strides)
    shape = (*x.shape[:2], *(_out_size(x.shape[2 + k], pads[k], kernel[k], strides[k]) for k in range(n)))
    layout = "NCHW" if n == 2 else "NCDHW"
    if n == 2:
        made = e.op(
            "MaxPoolV3", x, out=Desc(x.dtype, shape, layout), ksize=[1, 1, *kernel], strides=[1, 1, *strides],
            padding_mode="CALCULATED", pads=flat(pads), data_format="NCHW", ceil_mode=False,
        )  # fmt: skip
    elif n == 3:
        made = e.op(
            "MaxPool3D", x, out=Desc(x.dtype, shape, layout), ksize=[1, 1, *kernel], strides=[1, 1, *strides],
            padding="CALCULATED", pads=flat(pads), ceil_mode=0, data_format="NCDHW",
        )  # fmt: skip
    else:
        raise Unsupported(f"GE has no pooling over {n} axes")
    made.node.formats = {"x": layout}
    return made


def _has_kernel(e: Emitter, x: Ref, kernel: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether GE itself pools such windows: only over two axes in half precision."""
    if len(kernel) == 2 and x.dtype != "FLOAT16" and (x.dtype != "FLOAT" or e.precision not in HALF_MODES):
        return False
    return math.prod(kernel) <= WINDOW and max(strides) <= STRIDE


def _by_slices(e: Emitter, kind: str, x: Ref, kernel: Sequence[int], strides: Sequence[int]) -> Ref:
    """Pooling of a padded input, one axis after the other, with an operation per step."""
    if sum(kernel) > _MOST_SLICES:
        raise Unsupported(
            f"GE pools windows of at most {WINDOW} elements in steps of at most {STRIDE}, not"
            f" {'x'.join(map(str, kernel))} in steps of {'x'.join(map(str, strides))}"
        )
    for k, (width, step) in enumerate(zip(kernel, strides, strict=True)):
        axis, count = 2 + k, _out_size(x.shape[2 + k], (0, 0), width, step)
        if width == step == 1:
            continue
        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        total: Ref | None = None
        for i in range(width):
            part = strided(e, x, [i], [i + (count - 1) * step + 1], [axis], [step], Desc(x.dtype, shape))
            total = part if total is None else e.op(kind, total, part)
        assert total is not None, "windows have elements"
        x = total
    return x


def _dilated_max(
    e: Emitter, op: Op, x: Ref, kernel: Sequence[int], strides: Sequence[int], pads: Sequence[tuple[int, int]]
) -> Ref:
    """The maximum of the shifted inputs, one for each element of the window."""
    if math.prod(kernel) > 49:
        raise Unsupported("GE has no pooling with dilations, and the window is too large to write it out")
    n, out = len(kernel), op.results[0].tensor.static
    shape = tuple(d + sum(p) for d, p in zip(x.shape, [(0, 0), (0, 0), *pads], strict=True))
    low = occ_type(x.dtype).lowest
    padded = pad(e, x, [0, 0, *(p for p, _ in pads)], [0, 0, *(q for _, q in pads)], shape, value=e.scalar(low, x))
    best: Ref | None = None
    for at in np.ndindex(*kernel):
        begin = [0, 0, *(i * d for i, d in zip(at, op.a.dilations, strict=True))]
        end = [*out[:2], *(b + (out[2 + k] - 1) * strides[k] + 1 for k, b in enumerate(begin[2:]))]
        part = strided(e, padded, begin, end, range(n + 2), [1, 1, *strides], Desc(x.dtype, out))
        best = part if best is None else e.op("Maximum", best, part)
    assert best is not None
    return best


def _average_pool(e: Emitter, op: Op, x: Ref) -> Ref:
    a, n = op.a, len(x.shape) - 2
    if any(d != 1 for d in getattr(a, "dilations", None) or ()):
        raise Unsupported("GE has no average pooling with dilations")
    kernel, strides = list(a.kernel_shape), list(a.strides or [1] * n)
    pads = window_pads(op, x.shape[2:], kernel)
    if a.count_include_pad and any(map(any, pads)):
        # Padding that the model requests counts; padding that ceil_mode adds after it does not.
        own = [p for p, _ in pads], [q for _, q in pads]
        if a.auto_pad == "NOTSET" and a.pads:
            own = list(a.pads[:n]), list(a.pads[n:])
        shape = (*x.shape[:2], *(x.shape[2 + k] + own[0][k] + own[1][k] for k in range(n)))
        x = pad(e, x, [0, 0, *own[0]], [0, 0, *own[1]], shape)
        pads = [(0, max(sum(pads[k]) - own[0][k] - own[1][k], 0)) for k in range(n)]
    if n == 1:
        wide, pads, kernel, strides = _in_two_axes(e, x, pads, kernel, strides)
        made = average(e, wide, kernel, strides, pads)
        return e.op("Squeeze", made, out=Desc(made.dtype, (*made.shape[:2], made.shape[3])), axis=[2])
    return average(e, x, kernel, strides, pads)


def average(e: Emitter, x: Ref, kernel: Sequence[int], strides: Sequence[int], pads: Sequence[tuple[int, int]]) -> Ref:
    """The mean of each window over its elements inside of the input."""
    n = len(kernel)
    shape = (*x.shape[:2], *(_out_size(x.shape[2 + k], pads[k], kernel[k], strides[k]) for k in range(n)))
    if tuple(kernel) == x.shape[2:] and shape[2:] == (1,) * n:
        return e.op("ReduceMean", x, e.ints(range(2, 2 + n)), out=Desc(x.dtype, shape), keep_dims=True)
    if not _has_kernel(e, x, kernel, strides):
        counts = _counts(x.shape[2:], kernel, strides, pads)
        total = _by_slices(e, "Add", padded(e, x, pads), kernel, strides)
        return e.op("Mul", total, e.constant((1 / counts).astype(occ_type(x.dtype).numpy)))
    layout = "NCHW" if n == 2 else "NCDHW"
    if n == 2:
        made = e.op(
            "AvgPoolV2", x, out=Desc(x.dtype, shape, layout), ksize=[1, 1, *kernel], strides=[1, 1, *strides],
            padding_mode="CALCULATED", pads=flat(pads), data_format="NCHW", ceil_mode=False, exclusive=True,
        )  # fmt: skip
    elif n == 3:
        made = e.op(
            "AvgPool3D", x, out=Desc(x.dtype, shape, layout), ksize=[1, 1, *kernel], strides=[1, 1, *strides],
            pads=flat(pads), ceil_mode=False, count_include_pad=False, data_format="NCDHW",
        )  # fmt: skip
    else:
        raise Unsupported(f"GE has no pooling over {n} axes")
    made.node.formats = {"x": layout}
    return made


def _counts(
    size: Sequence[int], kernel: Sequence[int], strides: Sequence[int], pads: Sequence[tuple[int, int]]
) -> np.ndarray:
    """The number of elements of each window inside of the input."""
    made = np.ones(())
    for d, width, step, (begin, end) in zip(size, kernel, strides, pads, strict=True):
        starts = np.arange(0, d + begin + end - width + 1, step) - begin
        inside = np.minimum(starts + width, d) - np.maximum(starts, 0)
        made = np.multiply.outer(made, inside)
    return made


def _lp_pool(e: Emitter, op: Op, x: Ref) -> Ref:
    a, n = op.a, len(x.shape) - 2
    if n not in (1, 2) or any(d != 1 for d in getattr(a, "dilations", None) or ()):
        raise Unsupported("it has dilations or three axes")
    kernel, strides = list(a.kernel_shape), list(a.strides or [1] * n)
    pads = window_pads(op, x.shape[2:], kernel)
    if a.p < 0 and any(map(any, pads)):
        raise Unsupported("it has pads, and its p is negative")
    shape = (*x.shape[:2], *(x.shape[2 + k] + sum(pads[k]) for k in range(n)))
    power = raised(e, x, a.p)
    if any(map(any, pads)):
        power = pad(e, power, [0, 0, *(p for p, _ in pads)], [0, 0, *(q for _, q in pads)], shape)
    if n == 1:
        wide, _, kernel, strides = _in_two_axes(e, power, pads, kernel, strides)
        made = average(e, wide, kernel, strides, [(0, 0), (0, 0)])
        made = e.op("Squeeze", made, out=Desc(made.dtype, (*made.shape[:2], made.shape[3])), axis=[2])
    else:
        made = average(e, power, kernel, strides, [(0, 0)] * n)
    return rooted(e, e.op("Muls", made, value=float(math.prod(kernel))), a.p)


def raised(e: Emitter, x: Ref, p: float) -> Ref:
    """`|x| ** p`."""
    if p == 2:
        return e.op("Square", x)
    magnitude = e.op("Abs", x)
    return magnitude if p == 1 else e.op("Pow", magnitude, e.scalar(p, x))


def rooted(e: Emitter, x: Ref, p: float) -> Ref:
    """`x ** (1 / p)`."""
    if p == 1:
        return x
    return e.op("Sqrt", x) if p == 2 else e.op("Pow", x, e.scalar(1 / p, x))


def _global_average(e: Emitter, op: Op, x: Ref) -> Ref:
    shape = (*x.shape[:2], *(1,) * (len(x.shape) - 2))
    if len(x.shape) == 4 and x.dtype in ("FLOAT", "FLOAT16") and not e.chip.dynamic:
        made = e.op("GlobalAveragePool", x, out=Desc(x.dtype, shape, "NCHW"))
        made.node.formats = {"x": "NCHW"}
        return made
    return e.op("ReduceMean", x, e.ints(range(2, len(x.shape))), out=Desc(x.dtype, shape), keep_dims=True)


def _global_max(e: Emitter, op: Op, x: Ref) -> Ref:
    shape = (*x.shape[:2], *(1,) * (len(x.shape) - 2))
    return e.op("ReduceMax", x, e.ints(range(2, len(x.shape))), out=Desc(x.dtype, shape), keep_dims=True)


def _global_lp(e: Emitter, op: Op, x: Ref) -> Ref:
    shape = (*x.shape[:2], *(1,) * (len(x.shape) - 2))
    power = raised(e, x, op.a.p)
    total = e.op("ReduceSum", power, e.ints(range(2, len(x.shape))), out=Desc(x.dtype, shape), keep_dims=True)
    return rooted(e, total, op.a.p)


ROWS: dict[str, Row] = {
    "AveragePool": _average_pool, "GlobalAveragePool": _global_average, "GlobalLpPool": _global_lp,
    "GlobalMaxPool": _global_max, "LpPool": _lp_pool, "MaxPool": _max_pool,
}  # fmt: skip
