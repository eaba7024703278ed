"""Makers of nodes that move elements: shapes, joins, indices, sizes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import numpy_helper

from tools.fuzz.generate import Graph
from tools.fuzz.inputs import is_float, values
from tools.fuzz.operators import F32, TYPES, allowed, axes, axis, dtype_of, fits_together, operand
from tools.fuzz.oracle import Reject


def reshape(g: Graph, op: str) -> Any:
    x = operand(g, op)
    shape, rank = g.values[x].shape, g.values[x].ndim
    if op == "Flatten":
        return g.node(op, [x], axis=int(g.rng.integers(0 if g.opset < 11 else -rank, rank + 1)))
    if op == "Squeeze":
        ones = [k for k, n in enumerate(shape) if n == 1]
        return g.node(op, [x], axes=[k for k in ones if g.chance(0.7)] or ones or None)
    if op == "Unsqueeze":
        count = int(g.rng.integers(1, 3))
        return g.node(op, [x], axes=sorted(g.rng.permutation(rank + count)[:count].tolist()))
    dims = _dims(g, math.prod(shape))
    kind = g.choose(["as is", "hole", "zero"])
    if kind == "hole" and dims and math.prod(shape):
        dims[int(g.rng.integers(len(dims)))] = -1
    if kind == "zero" and rank:
        dims = [0, -1] if math.prod(shape) else dims
    return g.node(op, [x], shape=dims)


def _dims(g: Graph, size: int) -> list[int]:
    """A shape of some elements."""
    made: list[int] = []
    while size > 1 and len(made) < 4:
        n = g.choose([k for k in range(1, min(size, 40) + 1) if size % k == 0])
        made.append(n)
        size //= n
    return made + ([size] if size != 1 or g.chance(0.1) else [])


def transpose(g: Graph, op: str) -> Any:
    x = operand(g, op, low=1)
    return g.node(op, [x], perm=g.rng.permutation(g.values[x].ndim).tolist() if g.chance(0.9) else None)


def concat(g: Graph, op: str) -> Any:
    x = operand(g, op, low=1)
    shape, d = g.values[x].shape, g.values[x].dtype
    k = axis(g, len(shape)) if g.opset >= 11 else int(g.rng.integers(len(shape)))
    at = k % len(shape)
    parts = [x]
    for _ in range(int(g.rng.integers(0, 4))):
        found = g.pick(lambda y: y.dtype == d and y.ndim == len(shape) and y.shape[:at] + y.shape[at + 1 :] == shape[:at] + shape[at + 1 :], 0.6)  # fmt: skip
        parts.append(found or g.new(d, (*shape[:at], g.extent(), *shape[at + 1 :])))
    return g.node(op, g.rng.permutation(parts).tolist(), axis=k)


def split(g: Graph, op: str) -> Any:
    x = operand(g, op, low=1, fits=lambda x: x.size > 0)
    shape = g.values[x].shape
    k = axis(g, len(shape)) if g.opset >= 11 else int(g.rng.integers(len(shape)))
    n = shape[k]
    count = int(g.rng.integers(1, min(n, 4) + 1))
    cuts = sorted(g.rng.permutation(n - 1)[: count - 1].tolist()) if n > 1 else []
    sizes = np.diff([0, *(c + 1 for c in cuts), n]).tolist()
    if n % count == 0 and g.chance(0.4):
        return g.node(op, [x], results=count, axis=k, num_outputs=count)
    return g.node(op, [x], results=len(sizes), axis=k, split=sizes)


def slice_(g: Graph, op: str) -> Any:
    x = operand(g, op, low=1)
    shape = g.values[x].shape
    listed = axes(g, len(shape))
    steps = [g.choose([1, 1, 2, 3, -1, -2]) if g.opset >= 10 else 1 for _ in listed]
    far = lambda: g.choose([0, 1, 2, -1, -2, 5, 99, -99])
    begin, end = ([far() for _ in listed] for _ in range(2))
    for i, s in enumerate(steps):
        if g.chance(0.6):
            begin[i], end[i] = (0, 99) if s > 0 else (-1, -99)
    made = {"starts": begin, "ends": end, "axes": listed}
    return g.node(op, [x], **made, steps=steps if g.opset >= 10 else None)


def pad(g: Graph, op: str) -> Any:
    x = operand(g, op, low=1, high=4, fits=lambda x: x.size > 0)
    v = g.values[x]
    mode = g.choose(["constant", "constant", "edge", "reflect", *(["wrap"] if g.opset >= 19 else [])])
    most = [3 if mode == "constant" else n - 1 for n in v.shape]
    pads = [int(g.rng.integers(0, min(m, 3) + 1)) if g.chance(0.6) else 0 for m in [*most, *most]]
    if mode == "constant" and g.chance(0.15):
        pads = [-int(p > 0 and n > 3) if g.chance(0.4) else p for p, n in zip(pads, [*v.shape, *v.shape], strict=True)]
    fill = {"value": 0.5} if g.opset < 11 else {"constant_value": np.array(1, v.dtype)} if g.chance(0.5) else {}
    return g.node(op, [x], mode=mode, pads=pads, **fill)


def expand(g: Graph, op: str) -> Any:
    x = operand(g, op, high=4)
    shape = g.values[x].shape
    if op == "Tile":
        return g.node(op, [x], repeats=g.rng.integers(1, 4, len(shape)))
    dims = [g.extent() if n == 1 else n if g.chance(0.7) else 1 for n in shape]
    return g.node(op, [x], shape=[*g.rng.integers(1, 4, int(g.rng.integers(0, 2))).tolist(), *dims][-5:])


def gather(g: Graph, op: str) -> Any:
    x = operand(g, op, low=1, fits=lambda x: x.size > 0)
    shape = g.values[x].shape
    k = axis(g, len(shape)) if g.opset >= 11 else int(g.rng.integers(len(shape)))
    n = shape[k]
    dims = tuple(int(g.rng.integers(1, m + 1)) if j != k % len(shape) else g.extent() for j, m in enumerate(shape))
    at = g.rng.integers(-n if g.opset >= 11 else 0, n, g.shape(int(g.rng.integers(0, 3))) if op == "Gather" else dims)
    return g.node(op, [x, g.leaf(at.astype(g.choose([np.int64, np.int32])))], axis=k)


def gather_nd(g: Graph, op: str) -> Any:
    x = operand(g, op, low=1, fits=lambda x: x.size > 0)
    shape = g.values[x].shape
    batch = int(g.rng.integers(0, len(shape))) if g.opset >= 12 and g.chance(0.3) and op == "GatherND" else 0
    depth = int(g.rng.integers(1, len(shape) - batch + 1))
    lead = (*shape[:batch], *g.shape(int(g.rng.integers(0, 2))))
    at = np.stack([g.rng.integers(-n, n, lead) for n in shape[batch : batch + depth]], -1).astype(np.int64)
    if op == "GatherND":
        return g.node(op, [x, g.leaf(at, fixed=True)], batch_dims=batch or None)
    kind = g.choose(["none", "add", "max", "min"]) if g.opset >= 18 else "none"
    flat = np.ravel_multi_index(tuple(np.moveaxis(at % shape[:depth], -1, 0)), shape[:depth])
    if kind == "none" and len(np.unique(flat)) != flat.size:
        raise Reject("an element would be written twice")
    updates = g.new(g.values[x].dtype, (*lead, *shape[depth:]))
    return g.node(op, [x, g.leaf(at, fixed=True), updates], reduction=None if kind == "none" else kind)


def scatter(g: Graph, op: str) -> Any:
    x = operand(g, op, low=1, fits=lambda x: x.size > 0)
    v = g.values[x]
    k = axis(g, v.ndim) if g.opset >= 11 else int(g.rng.integers(v.ndim))
    dims = tuple(int(g.rng.integers(1, n + 1)) for n in v.shape)
    order = np.argsort(g.rng.random((*dims[: k % v.ndim], v.shape[k], *dims[k % v.ndim + 1 :])), axis=k)
    at = np.take(order, range(dims[k % v.ndim]), axis=k)
    kind = g.choose(["none", "none", "add", "max", "min"]) if g.opset >= 18 else "none"
    return g.node(op, [x, g.leaf(at.astype(np.int64)), g.new(v.dtype, at.shape)], axis=k, reduction=None if kind == "none" else kind)  # fmt: skip


def blocks(g: Graph, op: str) -> Any:
    k = g.choose([1, 2, 3])
    fits = (
        (lambda x: x.shape[1] % (k * k) == 0)
        if op == "DepthToSpace"
        else (lambda x: x.shape[2] % k == 0 == x.shape[3] % k)
    )
    x = g.pick(lambda x: x.ndim == 4 and x.dtype in allowed(g, op) and x.size > 0 and fits(x))
    if x is None:
        x = g.new(F32, (2, 2 * k * k, 3, 2) if op == "DepthToSpace" else (2, 3, 2 * k, 3 * k))
    return g.node(
        op, [x], blocksize=k, mode=g.choose(["DCR", "CRD"]) if op == "DepthToSpace" and g.opset >= 11 else None
    )


def trilu(g: Graph, op: str) -> Any:
    x = operand(g, op, low=2)
    k = np.array(g.rng.integers(-4, 5), np.int64) if g.chance(0.6) else None
    return g.node(op, [x], k=k, upper=int(g.chance(0.5)))


def one_hot(g: Graph, op: str) -> Any:
    at = g.leaf(g.rng.integers(-5, 6, g.shape(int(g.rng.integers(0, 3)))).astype(np.int64))
    d = dtype_of(g, allowed(g, op, 2))
    return g.node(op, [at], depth=np.array(g.choose([5, 7]), np.int64), values=values(g.rng, d, (2,)), axis=axis(g, g.values[at].ndim + 1))  # fmt: skip


def counted(g: Graph, op: str) -> Any:
    """Range, ConstantOfShape, EyeLike."""
    if op == "Range":
        d = dtype_of(g, allowed(g, op))
        start, n, step = int(g.rng.integers(0, 3)), int(g.rng.integers(0, 9)), int(g.rng.integers(1, 3))
        return g.node(
            op, [], **{k: np.array(v, d) for k, v in (("start", start), ("limit", start + n), ("delta", step))}
        )
    if op == "EyeLike":
        return g.node(op, [operand(g, op, low=2, high=2)], k=int(g.rng.integers(-2, 3)))
    d = dtype_of(g, {TYPES[t] for t in g.schema(op).outputs[0].types if t in TYPES})
    shape = g.pick(lambda x: x.dtype == np.int64 and x.ndim == 1 and x.size < 5 and np.all(x > 0) and x.prod() < 2000)
    shape = shape or g.leaf(np.array(g.shape(), np.int64), hint="s", fixed=True)
    return g.node(op, [shape], value=numpy_helper.from_array(np.array([2]).astype(d)) if g.chance(0.7) else None)


def sizes(g: Graph, op: str) -> Any:
    """Shape and Size, and a shape that is made of them: the sizes of a value reach a Reshape or Expand."""
    x = operand(g, op, low=1)
    if op == "Size":
        return g.node(op, [x])
    start = int(g.rng.integers(0, g.values[x].ndim)) if g.opset >= 15 and g.chance(0.3) else None
    shape = g.add(op, [x], start=start)
    if g.chance(0.5) and g.values[shape].size:
        at = g.rng.permutation(g.values[shape].size)[:2]
        picked = g.add("Gather", [shape, g.leaf(at, True)], axis=0)
        one = g.leaf(np.array([g.choose([1, 2, -1])], np.int64), True)
        shape = g.add("Concat", g.rng.permutation([picked, one]).tolist(), axis=0)
    dims = tuple(int(n) for n in g.values[shape])
    if -1 in dims or g.chance(0.5):
        size = abs(math.prod(dims))
        return g.node("Reshape", [g.pick(lambda x: x.size == size) or g.new(F32, (size,)), shape])
    x = g.pick(lambda x: fits_together(x.shape, dims)) or g.new(F32, tuple(1 if g.chance(0.4) else n for n in dims))
    return g.node("Expand", [x, shape])


def found(g: Graph, op: str) -> Any:
    """Operators with data-dependent sizes: NonZero, Compress, Unique."""
    x = operand(g, op, low=1, high=3, fits=lambda x: x.size > 0)
    if op == "NonZero":
        return g.node(op, [x])
    v = g.values[x]
    if op == "Unique":
        return g.node(op, [x], results=4, sorted=1, axis=axis(g, v.ndim) if g.chance(0.5) else None)
    k = axis(g, v.ndim) if g.chance(0.6) else None
    mask = g.rng.random(v.size if k is None else v.shape[k]) < 0.6
    return g.node(op, [x, g.leaf(mask)], axis=k)


def resize(g: Graph, op: str) -> Any:
    x = operand(g, op, low=3, high=4, fits=lambda x: 0 < x.size < 4000 and is_float(x.dtype))  # integers: halves differ
    rank = g.values[x].ndim
    scales = np.array([1, 1, *(g.choose([0.5, 1, 1.5, 2, 3]) for _ in range(rank - 2))], np.float32)
    mode = g.choose(["nearest", "linear", "cubic"] if rank == 4 and g.opset >= 11 else ["nearest", "linear"])
    if g.opset < 11:
        return g.node(op, [x], mode=mode, scales=scales)
    extra: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": g.choose(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])}  # fmt: skip
    if mode == "nearest":
        extra["nearest_mode"] = g.choose(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
    if mode == "cubic":
        extra |= {"cubic_coeff_a": -0.5, "exclude_outside": int(g.chance(0.3))}
    if g.opset >= 18 and g.chance(0.3):
        extra["antialias"] = int(mode != "nearest")
    if g.chance(0.3):
        sizes_ = np.floor(g.values[x].shape * scales).astype(np.int64)
        return g.node(op, [x, "" if g.opset >= 13 else g.leaf(np.zeros(0, np.float32), True)], sizes=sizes_, scales=None if g.opset >= 13 else np.zeros(0, np.float32), **extra)  # fmt: skip
    roi = "" if g.opset >= 13 else g.leaf(np.zeros(0, np.float32), True)
    return g.node(op, [x, roi], scales=scales, **extra)


def reverse(g: Graph, op: str) -> Any:
    x = operand(g, op, low=2, fits=lambda x: x.size > 0)
    shape, b = g.values[x].shape, int(g.chance(0.5))
    lens = g.leaf(g.rng.integers(1, shape[1 - b] + 1, shape[b]))
    return g.node(op, [x, lens], batch_axis=b, time_axis=1 - b)


def crop(g: Graph, op: str) -> Any:
    x = operand(g, op, low=1, fits=lambda x: x.size > 0)
    listed = axes(g, g.values[x].ndim)
    return g.node(op, [x], shape=[g.choose([1, 2, 5, 8]) for _ in listed], axes=listed)


MOVERS: dict[str, Any] = {
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), reshape), "Transpose": transpose, "Concat": concat,
    "Split": split, "Slice": slice_, "Pad": pad, **dict.fromkeys(("Expand", "Tile"), expand), "CenterCropPad": crop,
    **dict.fromkeys(("Gather", "GatherElements"), gather), **dict.fromkeys(("GatherND", "ScatterND"), gather_nd),
    "ScatterElements": scatter, **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), blocks), "Trilu": trilu, "OneHot": one_hot,
    **dict.fromkeys(("Range", "EyeLike", "ConstantOfShape"), counted), **dict.fromkeys(("Shape", "Size"), sizes),
    **dict.fromkeys(("NonZero", "Compress", "Unique"), found), "Resize": resize, "ReverseSequence": reverse,
}  # fmt: skip
