"""Simulates GE's data movement: reshape, slice, concat, gather."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from occ.compiler.ge_simulator.reader import BadGraph, Node, cpp_type

Arrays = list[Any]
Kernel = Callable[[Node, Arrays], Any]


def _listed(x: np.ndarray | None) -> list[int]:
    return [] if x is None else [int(v) for v in x.reshape(-1)]


def _strided_slice(node: Node, x: Arrays) -> np.ndarray:
    """Slices as in numpy: negative positions count from the end, then they are clamped."""
    if any(node.attrs.get(f"{m}_mask", 0) for m in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")):
        raise BadGraph(f"{node.name}: masks")
    v, begin, end = x[0], _listed(x[1]), _listed(x[2])
    axes = _listed(x[3]) if len(x) > 3 and x[3] is not None else list(range(len(begin)))
    steps = _listed(x[4]) if len(x) > 4 and x[4] is not None else [1] * len(begin)
    cuts = [slice(None)] * v.ndim
    for b, f, axis, s in zip(begin, end, axes, steps, strict=True):
        d = v.shape[axis]
        low, high = (0, d) if s > 0 else (-1, d - 1)
        b, f = (min(max(p + d if p < 0 else p, low), high) for p in (b, f))
        cuts[axis] = slice(b, None if f < 0 else f, s)
    return v[tuple(cuts)]


def _masked_slice(node: Node, x: Arrays) -> np.ndarray:
    """A slice with begin, end and step for every axis.

    A bit of a mask ignores the bound of its axis (as in TensorFlow's StridedSlice).
    """
    a, v = node.attrs, x[0]
    if any(a.get(f"{m}_mask", 0) for m in ("ellipsis", "new_axis", "shrink_axis")):
        raise BadGraph(f"{node.name}: masks of axes")
    begin, end, steps = (_listed(p) for p in x[1:4])
    if not len(begin) == len(end) == len(steps) == v.ndim:
        raise BadGraph(f"{node.name}: bounds of {len(begin)} axes for {v.ndim}")
    cuts: list[slice] = []
    for k, (b, f, s, d) in enumerate(zip(begin, end, steps, v.shape, strict=True)):
        low, high = (0, d) if s > 0 else (-1, d - 1)
        b, f = (min(max(p + d if p < 0 else p, low), high) for p in (b, f))
        first = None if a.get("begin_mask", 0) >> k & 1 else b
        last = None if a.get("end_mask", 0) >> k & 1 or f < 0 else f
        cuts.append(slice(first, last, s))
    return v[tuple(cuts)]


def _concat(node: Node, x: Arrays) -> np.ndarray:
    if node.attrs.get("N", 1) != len(x) or len({v.dtype for v in x}) != 1:
        raise BadGraph(f"{node.name}: ConcatD of {len(x)} inputs, N is {node.attrs.get('N', 1)}")
    return np.concatenate(x, node.attrs["concat_dim"])


def _split_v(node: Node, x: Arrays) -> list[np.ndarray]:
    v, sizes, axis = x[0], _listed(x[1]), int(x[2].reshape(-1)[0])
    if len(sizes) != node.attrs["num_split"] or sum(sizes) != v.shape[axis]:
        raise BadGraph(f"{node.name}: SplitV into {sizes}")
    return np.split(v, np.cumsum(sizes)[:-1], axis)


def _index(node: Node, index: np.ndarray, size: int) -> np.ndarray:
    """Valid indices; negative ones only if the operator supports them."""
    if index.size and node.attrs.get("negative_index_support", False):
        index = np.where(index < 0, index + size, index)
    if index.size and (index.min() < 0 or index.max() >= size):
        raise BadGraph(f"{node.name}: an index of {node.type} is outside of {size}")
    return index


def _gather(node: Node, x: Arrays) -> np.ndarray:
    v, axis = x[0], int(x[2].reshape(-1)[0])
    return np.take(v, _index(node, x[1], v.shape[axis]), axis)


def _gather_elements(node: Node, x: Arrays) -> np.ndarray:
    v, index, axis = x[0], x[1], node.attrs.get("dim", 0)
    index = _index(node, index, v.shape[axis])
    where = list(np.indices(index.shape, sparse=True))
    where[axis] = index
    return v[tuple(where)]


def _points(node: Node, index: np.ndarray, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    return tuple(_index(node, index[..., k], shape[k]) for k in range(index.shape[-1]))


def _gather_nd(node: Node, x: Arrays) -> np.ndarray:
    return (
        x[0][_points(node, x[1], x[0].shape)]
        if x[1].shape[-1]
        else np.broadcast_to(x[0], (*x[1].shape[:-1], *x[0].shape))
    )


def _scatter_nd(fn: Callable[..., None] | None) -> Kernel:
    def kernel(node: Node, x: Arrays) -> np.ndarray:
        made, where = x[0].copy(), _points(node, x[1], x[0].shape)
        if fn is None:
            made[where] = x[2]
        else:
            fn(made, where, x[2])
        return made

    return kernel


def _scatter_elements(node: Node, x: Arrays) -> np.ndarray:
    made, axis = x[0].copy(), node.attrs.get("axis", 0)
    where = list(np.indices(x[1].shape))
    where[axis] = _index(node, x[1], made.shape[axis])
    match node.attrs.get("reduction", "none"):
        case "none":
            made[tuple(where)] = x[2]
        case "add":
            np.add.at(made, tuple(where), x[2])
        case "mul":
            np.multiply.at(made, tuple(where), x[2])
        case other:
            raise BadGraph(f"{node.name}: reduction {other}")
    return made


def _scatter_rows(node: Node, x: Arrays) -> np.ndarray:
    """Each batch of updates from its own position on, along the second-last or last axis."""
    made, axis = x[0].copy(), node.attrs.get("axis", -1)
    if axis not in (-1, -2) or node.attrs["reduce"] != "update" or x[1].ndim != 1:
        raise BadGraph(f"{node.name}: axis {axis} and indices of rank {x[1].ndim} are not simulated")
    count = x[2].shape[axis]
    for b, start in enumerate(x[1].tolist()):
        if start < 0 or start + count > made.shape[axis]:
            raise BadGraph(f"{node.name}: {count} rows from {start} on do not fit {made.shape[axis]}")
        places = np.moveaxis(made[b], axis, 0)
        places[start : start + count] = np.moveaxis(x[2][b], axis, 0)
    return made


def _pad(node: Node, x: Arrays) -> np.ndarray:
    v, pads = x[0], _listed(x[1])
    pairs = (
        np.array(pads).reshape(v.ndim, 2)
        if node.attrs.get("paddings_contiguous", True)
        else np.array(pads).reshape(2, v.ndim).T
    )
    match node.attrs.get("mode", "constant"):
        case "constant":
            value = 0 if len(x) < 3 or x[2] is None else x[2].reshape(-1)[0]
            return np.pad(v, pairs, constant_values=value)
        case "reflect" | "edge" as mode:
            return np.pad(v, pairs, mode)
        case other:
            raise BadGraph(f"{node.name}: mode {other}")


def _depth_to_space(node: Node, x: Arrays) -> np.ndarray:
    if node.attrs.get("data_format", "NHWC") != "NCHW" or node.input_descs[0].format != "NCHW":
        raise BadGraph(f"{node.name}: formats of DepthToSpace differ")
    n, c, h, w = x[0].shape
    b = node.attrs["block_size"]
    if node.attrs.get("mode", "DCR") == "DCR":
        return x[0].reshape(n, b, b, c // b**2, h, w).transpose(0, 3, 4, 1, 5, 2).reshape(n, c // b**2, h * b, w * b)
    return x[0].reshape(n, c // b**2, b, b, h, w).transpose(0, 1, 4, 2, 5, 3).reshape(n, c // b**2, h * b, w * b)


def _space_to_depth(node: Node, x: Arrays) -> np.ndarray:
    if node.attrs.get("data_format", "NHWC") != "NCHW" or node.input_descs[0].format != "NCHW":
        raise BadGraph(f"{node.name}: formats of SpaceToDepth differ")
    n, c, h, w = x[0].shape
    b = node.attrs["block_size"]
    return x[0].reshape(n, c, h // b, b, w // b, b).transpose(0, 3, 5, 1, 2, 4).reshape(n, c * b * b, h // b, w // b)


def _one_hot(node: Node, x: Arrays) -> np.ndarray:
    index, depth, on, off = x
    axis = node.attrs.get("axis", -1)
    hot = np.expand_dims(index, axis) == np.arange(int(depth.reshape(-1)[0])).reshape(
        [-1 if k == axis % (index.ndim + 1) else 1 for k in range(index.ndim + 1)]
    )
    return np.where(hot, on.reshape(()), off.reshape(()))


def _reverse_sequence(node: Node, x: Arrays) -> np.ndarray:
    v, lengths = x
    seq, batch = node.attrs["seq_dim"], node.attrs.get("batch_dim", 0)
    made = v.copy()
    for k, n in enumerate(lengths.tolist()):
        part: list[Any] = [slice(None)] * v.ndim
        part[batch] = k
        row = np.moveaxis(v[tuple(part)], seq - (batch < seq), 0).copy()
        row[:n] = row[:n][::-1]
        made[tuple(part)] = np.moveaxis(row, 0, seq - (batch < seq))
    return made


def _squeeze(node: Node, x: Arrays) -> np.ndarray:
    return np.squeeze(x[0], tuple(node.attrs["axis"])) if node.attrs.get("axis") else np.squeeze(x[0])


def _unsqueeze(node: Node, x: Arrays) -> np.ndarray:
    made = x[0]
    for axis in sorted(node.attrs["axes"]):
        made = np.expand_dims(made, axis)
    return made


def _range(node: Node, x: Arrays) -> np.ndarray:
    start, limit, delta = (v.reshape(-1)[0] for v in x)
    return np.arange(start, limit, delta).astype(x[0].dtype)


def _shape(node: Node, x: Arrays) -> np.ndarray:
    return np.array(x[0].shape, cpp_type(node.attrs.get("dtype", 3)))


def _random(draw: Callable[[np.random.Generator, list[int]], np.ndarray]) -> Kernel:
    """Numbers of a given distribution; equal seeds produce equal ones, and two zeros differ from run to run."""

    def kernel(node: Node, x: Arrays) -> np.ndarray:
        seeds = node.attrs.get("seed", 0), node.attrs.get("seed2", 0)
        made = draw(np.random.default_rng([s & 0xFFFFFFFF for s in seeds] if any(seeds) else None), _listed(x[0]))
        return made.astype(np.float32).astype(cpp_type(node.attrs["dtype"]))

    return kernel


def _multinomial(node: Node, x: Arrays) -> np.ndarray:
    """Classes drawn by their log-probabilities: the largest after adding Gumbel noise."""
    seeds = node.attrs.get("seed", 0), node.attrs.get("seed2", 0)
    rng = np.random.default_rng([s & 0xFFFFFFFF for s in seeds] if any(seeds) else None)
    rows, classes = x[0].shape
    noise = rng.gumbel(size=(rows, int(x[1].reshape(-1)[0]), classes))
    return (x[0][:, None, :] + noise).argmax(-1).astype(cpp_type(node.attrs.get("dtype", 9)))


KERNELS: dict[str, Kernel] = {
    "BroadcastTo": lambda node, x: np.broadcast_to(x[0], _listed(x[1])).copy(), "ConcatD": _concat,
    "DepthToSpace": _depth_to_space, "Fill": lambda node, x: np.full(_listed(x[0]), x[1].reshape(())),
    "GatherElements": _gather_elements, "GatherNd": _gather_nd, "GatherV2": _gather, "Multinomial": _multinomial,
    "OneHot": _one_hot, "PadV3": _pad,
    "RandomStandardNormal": _random(lambda rng, shape: rng.standard_normal(shape)),
    "RandomUniform": _random(lambda rng, shape: rng.random(shape)), "Range": _range, "Reshape": lambda node, x: x[0].reshape(_listed(x[1])), "ReverseSequence": _reverse_sequence,
    "Scatter": _scatter_rows, "ReverseV2": lambda node, x: np.flip(x[0], tuple(_listed(x[1]))), "ScatterElements": _scatter_elements, "Shape": _shape,
    "SpaceToDepth": _space_to_depth, "SplitV": _split_v, "Squeeze": _squeeze, "StridedSlice": _masked_slice, "StridedSliceV2": _strided_slice,
    "ScatterNdAdd": _scatter_nd(np.add.at), "ScatterNdUpdate": _scatter_nd(None), "ScatterNdMax": _scatter_nd(np.maximum.at), "ScatterNdMin": _scatter_nd(np.minimum.at),
    "TensorScatterAdd": _scatter_nd(np.add.at), "TensorScatterMax": _scatter_nd(np.maximum.at),
    "TensorScatterMin": _scatter_nd(np.minimum.at), "TensorScatterUpdate": _scatter_nd(None),
    "Tile": lambda node, x: np.tile(x[0], _listed(x[1])),
    "Transpose": lambda node, x: x[0].transpose(_listed(x[1])), "Unsqueeze": _unsqueeze,
}  # fmt: skip
