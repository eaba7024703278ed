"""Convolutions and poolings as GE nodes. GE orders pads top, bottom, left, right; ONNX all begins, then all ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.mapping.emitter import Emitter, Unsupported
from occ.compiler.ir.op import Op

Row = Callable[..., Any]
_CONVOLUTIONS = {2: ("Conv2D", "Conv2DTranspose"), 3: ("Conv3D", "Conv3DTranspose")}  # by spatial axes
_LARGEST_WINDOW, _LARGEST_STRIDE = 255, 63  # of the pooling kernels


def window_pads(op: Op, size: Sequence[int], kernel: Sequence[int]) -> list[tuple[int, int]]:
    """Explicit pads of a window operator: (begin, end) an axis.

    The end pad is what the extents of the result need, so that ceil_mode and auto_pad need no words of their own.
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


def convolve(
    e: Emitter, x: Ref, w: Ref, b: Ref | None, pads: Sequence[tuple[int, int]], strides: Sequence[int],
    dilations: Sequence[int], groups: int, out: Desc | None = None,
) -> Ref:  # fmt: skip
    """A Conv2D or Conv3D of 1 to 3 spatial axes; results have the type of `x`, or that of `out`."""
    n = len(x.shape) - 2
    if n == 1:
        x, w = (e.op("Unsqueeze", v, out=Desc(v.dtype, (*v.shape[:2], 1, v.shape[2])), axes=[2]) for v in (x, w))
        made = convolve(e, x, w, b, [(0, 0), *pads], [1, *strides], [1, *dilations], groups, out)
        return e.op("Squeeze", made, out=Desc(made.dtype, (*made.shape[:2], made.shape[3])), axis=[2])
    if n not in (2, 3):
        raise Unsupported(f"GE has no convolution over {n} axes")
    layout = "NCHW" if n == 2 else "NCDHW"
    kernel = w.shape[2:]
    spatial = [(x.shape[2 + k] + sum(pads[k]) - dilations[k] * (kernel[k] - 1) - 1) // strides[k] + 1 for k in range(n)]
    dtype = out.dtype if out is not None else x.dtype
    made = e.op(
        _CONVOLUTIONS[n][0], x, w, b, out=Desc(dtype, (x.shape[0], w.shape[0], *spatial), layout), strides=[1, 1, *strides],
        pads=flat(pads), dilations=[1, 1, *dilations], groups=groups, data_format=layout,
    )  # fmt: skip
    made.node.formats = {"x": layout, "filter": layout}
    return made


def _conv(e: Emitter, op: Op, x: Ref, w: Ref, b: Ref | None = None) -> Ref:
    n, a = len(x.shape) - 2, op.a
    if a.pads and min(a.pads) < 0:
        raise Unsupported("its pads are negative")
    pads = window_pads(op, x.shape[2:], w.shape[2:])
    strides, dilations = list(a.strides or [1] * n), list(a.dilations or [1] * n)
    return convolve(e, x, w, b, pads, strides, dilations, a.group)


def conv_transpose_pads(op: Op, size: Sequence[int], kernel: Sequence[int]) -> list[int]:
    """What a transposed convolution cuts off at the begin of each axis."""
    a, n = op.a, len(size)
    if not a.output_shape and a.auto_pad in ("NOTSET", "VALID"):
        return list((a.pads or (0,) * 2 * n)[:n])
    strides, dilations = a.strides or (1,) * n, a.dilations or (1,) * n
    extra = a.output_padding or (0,) * n
    out = op.result.tensor.static[2:]
    begins: list[int] = []
    for k in range(n):
        total = strides[k] * (size[k] - 1) + extra[k] + (kernel[k] - 1) * dilations[k] + 1 - out[k]
        total = max(total, 0)
        begins.append(total // 2 if a.auto_pad == "SAME_UPPER" else total - total // 2)
    return begins


def _conv_transpose(e: Emitter, op: Op, x: Ref, w: Ref, b: Ref | None = None) -> Ref:
    """As zeros between the elements and a convolution with the turned kernel: GE's own operator has no fp32 form."""
    a, n = op.a, len(x.shape) - 2
    strides, dilations = list(a.strides or [1] * n), list(a.dilations or [1] * n)
    begins = conv_transpose_pads(op, x.shape[2:], w.shape[2:])
    out = op.result.tensor.static[2:]
    pads: list[tuple[int, int]] = []
    for k in range(n):
        reach = dilations[k] * (w.shape[2 + k] - 1)
        spread = (x.shape[2 + k] - 1) * strides[k] + 1
        begin = reach - begins[k]
        pads.append((begin, out[k] + reach - spread - begin))
    if x.dtype == "FLOAT16":
        return _native_transpose(e, op, x, w, b, begins)
    return convolve(
        e, *_fitted(e, spread_out(e, x, strides), pads, turned(e, w, a.group), b), [1] * n, dilations, a.group
    )


def _fitted(
    e: Emitter, x: Ref, pads: list[tuple[int, int]], w: Ref, b: Ref | None
) -> tuple[Ref, Ref, Ref | None, list[tuple[int, int]]]:
    """Negative pads cut the input instead."""
    if all(p >= 0 for pair in pads for p in pair):
        return x, w, b, pads
    begin = [0, 0, *(max(-p, 0) for p, _ in pads)]
    end = [*x.shape[:2], *(x.shape[2 + k] - max(-q, 0) for k, (_, q) in enumerate(pads))]
    shape = tuple(t - s for s, t in zip(begin, end, strict=True))
    axes = e.ints(range(len(shape)))
    x = e.op("StridedSliceV2", x, e.ints(begin), e.ints(end), axes, e.ints([1] * len(shape)), out=Desc(x.dtype, shape))
    return x, w, b, [(max(p, 0), max(q, 0)) for p, q in pads]


def spread_out(e: Emitter, x: Ref, strides: Sequence[int]) -> Ref:
    """`stride - 1` zeros between the elements of each spatial axis."""
    if all(s == 1 for s in strides):
        return x
    n = len(strides)
    apart = e.reshape(x, (*x.shape[:2], *(d for s in x.shape[2:] for d in (s, 1))))
    ends = [0, 0, *(d for s in strides for d in (0, s - 1))]
    shape = tuple(d + q for d, q in zip(apart.shape, ends, strict=True))
    padded = pad(e, apart, [0] * len(ends), ends, shape)
    full = e.reshape(padded, (*x.shape[:2], *(x.shape[2 + k] * strides[k] for k in range(n))))
    size = (*x.shape[:2], *((x.shape[2 + k] - 1) * strides[k] + 1 for k in range(n)))
    axes = e.ints(range(n + 2))
    return e.op(
        "StridedSliceV2",
        full,
        e.ints([0] * (n + 2)),
        e.ints(size),
        axes,
        e.ints([1] * (n + 2)),
        out=Desc(x.dtype, size),
    )


def pad(
    e: Emitter, x: Ref, begins: Sequence[int], ends: Sequence[int], shape: Sequence[int], mode: str = "constant",
    value: Ref | None = None,
) -> Ref:  # fmt: skip
    """A PadV3 with begins and ends of every axis."""
    fill = (value if value is not None else e.scalar(0, x)) if mode == "constant" else None
    paddings = e.ints([*begins, *ends])
    return e.op("PadV3", x, paddings, fill, out=Desc(x.dtype, tuple(shape)), mode=mode, paddings_contiguous=False)


def turned(e: Emitter, w: Ref, groups: int) -> Ref:
    """The kernel (C, M/g, k...) of a transposed convolution as that (M, C/g, k...) of a convolution."""
    c, m, *k = w.shape
    if w.node.type == "Const":
        data = w.node.value.reshape(groups, c // groups, m, *k).swapaxes(1, 2).reshape(groups * m, c // groups, *k)
        return e.constant(np.ascontiguousarray(data[(slice(None), slice(None), *[slice(None, None, -1)] * len(k))]))
    parts = e.reshape(w, (groups, c // groups, m, *k))
    swapped = e.transpose(parts, [0, 2, 1, *range(3, 3 + len(k))])
    kernel = e.reshape(swapped, (groups * m, c // groups, *k))
    return e.op("ReverseV2", kernel, e.ints(range(2, 2 + len(k)), np.int32), out=kernel.desc)


def _native_transpose(e: Emitter, op: Op, x: Ref, w: Ref, b: Ref | None, begins: Sequence[int]) -> Ref:
    n, a = len(x.shape) - 2, op.a
    if n == 1:
        inner = [e.op("Unsqueeze", v, out=Desc(v.dtype, (*v.shape[:2], 1, v.shape[2])), axes=[2]) for v in (x, w)]
        strides, dilations, kernel = [1, *(a.strides or [1])], [1, *(a.dilations or [1])], (1, w.shape[2])
        out, first = (1, op.result.tensor.static[2]), [0, *begins]
        made = _transpose_node(e, inner[0], inner[1], b, strides, dilations, kernel, out, first, a.group)
        return e.op("Squeeze", made, out=Desc(made.dtype, (*made.shape[:2], made.shape[3])), axis=[2])
    strides, dilations = list(a.strides or [1] * n), list(a.dilations or [1] * n)
    out = op.result.tensor.static[2:]
    return _transpose_node(e, x, w, b, strides, dilations, w.shape[2:], out, begins, a.group)


def _transpose_node(
    e: Emitter, x: Ref, w: Ref, b: Ref | None, strides: Sequence[int], dilations: Sequence[int], kernel: Sequence[int],
    out: Sequence[int], begins: Sequence[int], groups: int,
) -> Ref:  # fmt: skip
    n = len(kernel)
    pads: list[tuple[int, int]] = []
    extra: list[int] = []
    for k in range(n):
        full = (x.shape[2 + k] - 1) * strides[k] + dilations[k] * (kernel[k] - 1) + 1
        end = full - begins[k] - out[k]
        pads.append((begins[k], max(end, 0)))
        extra.append(max(-end, 0))
    layout = "NCHW" if n == 2 else "NCDHW"
    desc = Desc(x.dtype, (x.shape[0], w.shape[1] * groups, *out), layout)
    made = e.op(
        _CONVOLUTIONS[n][1], e.ints([0] * (n + 2)), x, w, b, out=desc, strides=[1, 1, *strides], pads=flat(pads),
        dilations=[1, 1, *dilations], groups=groups, data_format=layout, output_padding=[0, 0, *extra],
    )  # fmt: skip
    made.node.formats = {"x": layout, "filter": layout}
    return made


def _in_two_axes(e: Emitter, x: Ref, pads: Sequence[tuple[int, int]], *more: Sequence[int]) -> tuple[Any, ...]:
    """A pooling over one axis as one over two, the first of extent 1."""
    wide = e.op("Unsqueeze", x, out=Desc(x.dtype, (*x.shape[:2], 1, x.shape[2])), axes=[2])
    return wide, [(0, 0), *pads], *([1, *m] for m in more)


def _out_size(size: int, pads: tuple[int, int], kernel: int, stride: int) -> int:
    return (size + sum(pads) - kernel) // stride + 1


def _max_pool(e: Emitter, op: Op, x: Ref) -> Ref:
    a, n = op.a, len(x.shape) - 2
    if len(op.results) > 1 and op.results[1].uses:
        raise Unsupported("GE pooling gives no indices in ONNX's numbering")
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
    shape = (*x.shape[:2], *(_out_size(x.shape[2 + k], pads[k], kernel[k], strides[k]) for k in range(n)))
    layout = "NCHW" if n == 2 else "NCDHW"
    _check_window(kernel, strides)
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


def _check_window(kernel: Sequence[int], strides: Sequence[int]) -> None:
    if math.prod(kernel) > _LARGEST_WINDOW or max(strides) > _LARGEST_STRIDE:
        raise Unsupported(
            f"GE pools windows of at most {_LARGEST_WINDOW} elements in steps of at most {_LARGEST_STRIDE}, not"
            f" {'x'.join(map(str, kernel))} in steps of {'x'.join(map(str, strides))}"
        )


def _dilated_max(
    e: Emitter, op: Op, x: Ref, kernel: Sequence[int], strides: Sequence[int], pads: Sequence[tuple[int, int]]
) -> Ref:
    """The greatest of the shifted inputs, one for each element of the window."""
    if math.prod(kernel) > 49:
        raise Unsupported("GE has no pooling with dilations, and the window is too large to write it out")
    from occ.compiler.codegen_cann.graph.formats import occ_type

    n, out = len(kernel), op.results[0].tensor.static
    shape = tuple(d + sum(p) for d, p in zip(x.shape, [(0, 0), (0, 0), *pads], strict=True))
    low = occ_type(x.dtype).lowest
    padded = pad(e, x, [0, 0, *(p for p, _ in pads)], [0, 0, *(q for _, q in pads)], shape, value=e.scalar(low, x))
    best: Ref | None = None
    for at in np.ndindex(*kernel):
        begin = [0, 0, *(i * d for i, d in zip(at, op.a.dilations, strict=True))]
        end = [*out[:2], *(b + (out[2 + k] - 1) * strides[k] + 1 for k, b in enumerate(begin[2:]))]
        steps = e.ints([1, 1, *strides])
        part = e.op(
            "StridedSliceV2", padded, e.ints(begin), e.ints(end), e.ints(range(n + 2)), steps, out=Desc(x.dtype, out)
        )
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
        # Padding that the model asks for counts, what ceil_mode adds behind it does not.
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
    """The mean of each window over what lies inside of the input."""
    n = len(kernel)
    shape = (*x.shape[:2], *(_out_size(x.shape[2 + k], pads[k], kernel[k], strides[k]) for k in range(n)))
    if tuple(kernel) == x.shape[2:] and shape[2:] == (1,) * n:
        return e.op("ReduceMean", x, e.ints(range(2, 2 + n)), out=Desc(x.dtype, shape), keep_dims=True)
    _check_window(kernel, strides)
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


def _lp_pool(e: Emitter, op: Op, x: Ref) -> Ref:
    a, n = op.a, len(x.shape) - 2
    if n not in (1, 2) or any(d != 1 for d in getattr(a, "dilations", None) or ()):
        raise Unsupported("it has dilations or three axes")
    kernel, strides = list(a.kernel_shape), list(a.strides or [1] * n)
    pads = window_pads(op, x.shape[2:], kernel)
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
    if len(x.shape) == 4 and x.dtype in ("FLOAT", "FLOAT16"):
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
    "AveragePool": _average_pool, "Conv": _conv, "ConvTranspose": _conv_transpose, "GlobalAveragePool": _global_average,
    "GlobalLpPool": _global_lp, "GlobalMaxPool": _global_max, "LpPool": _lp_pool, "MaxPool": _max_pool,
}  # fmt: skip
