"""Simulates GE's convolutions, poolings and image resizes.

Pads come as top, bottom, left, right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from occ.compiler.ge_simulator.quantised import without_offset
from occ.compiler.ge_simulator.reader import BadGraph, Node

Arrays = list[Any]
Kernel = Callable[[Node, Arrays], Any]
_LAYOUT = {2: "NCHW", 3: "NCDHW"}
_LARGEST_COLUMNS = 1 << 26  # elements of an unfolded input; larger ones are processed one kernel element at a time


def _spatial(node: Node, name: str, n: int) -> list[int]:
    """A per-axis attribute in NCHW order without batch and channel, which must be 1."""
    values = node.attrs.get(name) or [1] * (n + 2)
    if list(values[:2]) != [1, 1] or len(values) != n + 2:
        raise BadGraph(f"{node.name}: {name} of {node.type} is {values}")
    return list(values[2:])


def _pairs(node: Node, n: int) -> list[tuple[int, int]]:
    pads = node.attrs.get("pads") or [0] * 2 * n
    if len(pads) != 2 * n or min(pads) < 0:
        raise BadGraph(f"{node.name}: pads of {node.type} are {pads}")
    return [(pads[2 * k], pads[2 * k + 1]) for k in range(n)]


def _check_layout(node: Node, n: int, operands: Sequence[int]) -> None:
    want = _LAYOUT[n]
    formats = [node.input_descs[k].format for k in operands] + [node.output_descs[0].format]
    if node.attrs.get("data_format") != want or any(f != want for f in formats):
        raise BadGraph(
            f"{node.name}: data_format {node.attrs.get('data_format')!r}, tensors {formats}; expected {want}"
        )


def windows(x: np.ndarray, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> np.ndarray:
    """A view (N, C, out..., kernel...) of a padded input."""
    n = len(kernel)
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    view = sliding_window_view(x, reach, tuple(range(2, 2 + n)))
    steps = [slice(None, None, s) for s in strides] + [slice(None, None, d) for d in dilations]
    return view[(slice(None), slice(None), *steps)]


def convolve(
    x: np.ndarray,
    w: np.ndarray,
    pads: Sequence[tuple[int, int]],
    strides: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> np.ndarray:
    """The correlation of (N, C, s...) with (M, C/groups, k...)."""
    if x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
        raise BadGraph(f"a convolution of {x.shape} with {w.shape} in {groups} groups")
    if x.dtype.kind == "i":
        exact = convolve(x.astype(np.float64), w.astype(np.float64), pads, strides, dilations, groups)
        return exact.astype(np.int64).astype(np.int32)
    padded = np.pad(x, [(0, 0), (0, 0), *pads])
    view = windows(padded, w.shape[2:], strides, dilations)
    n, c, kernel = x.shape[0], w.shape[1], w.shape[2:]
    out = view.shape[2 : 2 + len(kernel)]
    m = w.shape[0] // groups
    if groups == 1 and n * prod(out) * c * prod(kernel) <= _LARGEST_COLUMNS:
        axes = [1, *range(2 + len(kernel), 2 + 2 * len(kernel))]
        return np.moveaxis(np.tensordot(view, w, (axes, list(range(1, w.ndim)))), -1, 1)
    total = np.zeros((n, groups, m, prod(out)), x.dtype)
    for at in np.ndindex(*kernel):
        part = np.ascontiguousarray(view[(..., *at)]).reshape(n, groups, c, -1)
        total += np.matmul(w[(..., *at)].reshape(1, groups, m, c), part)
    return total.reshape(n, groups * m, *out)


def _conv(node: Node, x: Arrays) -> np.ndarray:
    n = int(node.type[4])
    _check_layout(node, n, (0, 1))
    strides, dilations = _spatial(node, "strides", n), _spatial(node, "dilations", n)
    made = convolve(without_offset(node, x[0]), x[1], _pairs(node, n), strides, dilations, node.attrs.get("groups", 1))
    return made if len(x) < 3 or x[2] is None else made + x[2].reshape(-1, *(1,) * n)


def _conv_transpose(node: Node, x: Arrays) -> np.ndarray:
    n = int(node.type[4])
    _check_layout(node, n, (1, 2))
    _, v, w, *rest = x
    strides, dilations, groups = (
        _spatial(node, "strides", n),
        _spatial(node, "dilations", n),
        node.attrs.get("groups", 1),
    )
    extra = (node.attrs.get("output_padding") or [0] * (n + 2))[2:]
    pads = _pairs(node, n)
    c, m = w.shape[0] // groups, w.shape[1]
    full = [(v.shape[2 + k] - 1) * strides[k] + dilations[k] * (w.shape[2 + k] - 1) + 1 + extra[k] for k in range(n)]
    total = np.zeros((v.shape[0], groups * m, *full), v.dtype)
    for at in np.ndindex(*w.shape[2:]):
        kernel = w[(..., *at)].reshape(groups, c, m)
        part = np.einsum("ngcs,gcm->ngms", v.reshape(v.shape[0], groups, c, -1), kernel)
        where = tuple(
            slice(at[k] * dilations[k], at[k] * dilations[k] + (v.shape[2 + k] - 1) * strides[k] + 1, strides[k])
            for k in range(n)
        )
        total[(slice(None), slice(None), *where)] += part.reshape(v.shape[0], groups * m, *v.shape[2:])
    cut = tuple(slice(p, s - q) for (p, q), s in zip(pads, full, strict=True))
    made = total[(slice(None), slice(None), *cut)]
    return made if not rest or rest[0] is None else made + rest[0].reshape(-1, *(1,) * n)


def _pool_view(node: Node, x: np.ndarray, n: int, fill: float) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """The windows of a pooling, and its pads. Only explicit pads without ceil_mode are supported here."""
    a = node.attrs
    mode = a.get("padding_mode", a.get("padding", "CALCULATED"))
    if mode != "CALCULATED" or a.get("ceil_mode", False) or a.get("global_pooling", False):
        raise BadGraph(f"{node.name}: {node.type} with padding {mode}, ceil_mode {a.get('ceil_mode')}")
    _check_layout(node, n, (0,))
    kernel, strides, pads = _spatial(node, "ksize", n), _spatial(node, "strides", n), _pairs(node, n)
    padded = np.pad(x, [(0, 0), (0, 0), *pads], constant_values=fill)
    return windows(padded, kernel, strides, [1] * n), pads


def _max_pool(node: Node, x: Arrays) -> np.ndarray:
    v = x[0]
    n = v.ndim - 2
    low = -np.inf if v.dtype.kind == "f" else np.iinfo(v.dtype).min
    view, _ = _pool_view(node, v, n, low)
    return view.max(axis=tuple(range(2 + n, 2 + 2 * n)))


def _avg_pool(node: Node, x: Arrays) -> np.ndarray:
    v = x[0]
    n = v.ndim - 2
    axes = tuple(range(2 + n, 2 + 2 * n))
    view, pads = _pool_view(node, v, n, 0)
    inside = (
        not node.attrs["count_include_pad"] if "count_include_pad" in node.attrs else node.attrs.get("exclusive", True)
    )
    if not inside or not any(map(any, pads)):
        return view.mean(axis=axes, dtype=v.dtype)
    ones, _ = _pool_view(node, np.ones((1, 1, *v.shape[2:]), v.dtype), n, 0)
    return view.sum(axis=axes) / ones.sum(axis=axes)


def _global_average(node: Node, x: Arrays) -> np.ndarray:
    return x[0].mean(axis=(2, 3), keepdims=True)


def _positions(node: Node, size: int, out: int) -> np.ndarray:
    """The input position of each output position, f32[out]."""
    i = np.arange(out, dtype=np.float32)
    if node.attrs.get("align_corners", False):
        return i * np.float32((size - 1) / (out - 1) if out > 1 else 0)
    scale = np.float32(size) / np.float32(out)
    half = node.attrs.get("half_pixel_centers", False)
    if node.type == "ResizeNearestNeighborV2":
        return (i + np.float32(0.5)) * scale if half else i * scale
    return (i + np.float32(0.5)) * scale - np.float32(0.5) if half else i * scale


def _resize_nearest(node: Node, x: Arrays) -> np.ndarray:
    v, size = x
    made = v
    for axis, out in zip((2, 3), size.tolist(), strict=True):
        at = _positions(node, v.shape[axis], out)
        at = np.floor(at + 0.5) if node.attrs.get("align_corners", False) else np.floor(at)
        made = np.take(made, np.clip(at, 0, v.shape[axis] - 1).astype(np.int64), axis)
    return made


def _resize_bilinear(node: Node, x: Arrays) -> np.ndarray:
    v, size = x
    made = v.astype(np.float32)
    for axis, out in zip((2, 3), size.tolist(), strict=True):
        last = v.shape[axis] - 1
        at = np.clip(_positions(node, v.shape[axis], out), 0, last)
        left = np.floor(at).astype(np.int64)
        part = (at - left).reshape([-1 if k == axis else 1 for k in range(4)]).astype(np.float32)
        made = np.take(made, left, axis) * (1 - part) + np.take(made, np.minimum(left + 1, last), axis) * part
    return made


KERNELS: dict[str, Kernel] = {
    "AvgPool3D": _avg_pool, "AvgPoolV2": _avg_pool, "Conv2D": _conv, "Conv2DTranspose": _conv_transpose,
    "Conv3D": _conv,
    "Conv3DTranspose": _conv_transpose, "GlobalAveragePool": _global_average, "MaxPool3D": _max_pool,
    "MaxPoolV3": _max_pool, "ResizeBilinearV2": _resize_bilinear, "ResizeNearestNeighborV2": _resize_nearest,
}  # fmt: skip
