"""Nodes with rare attributes and operands.

Factors that are not binary fractions; axes that are out of order, negative, or repeated where that is allowed; integers at
the ends of their types; and operators that no other profile has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import floor
from typing import Any

import numpy as np
from onnx import helper

from occ.compiler.ir.fractions import shortest_fraction
from tools.fuzz.generate import Graph
from tools.fuzz.operators import F32, axis, fraction, operand
from tools.fuzz.oracle import Reject

F64 = np.dtype(np.float64)
FACTORS = (1 / 3, 0.4, 0.7, 1.1, 1.3, 2.7, 1 / 300, 0.999, 3.3)
LARGE = (2**31 - 1, 2**62, 2**63 - 1, -(2**31), -(2**63), -(2**63) + 1)


def resize(g: Graph, op: str) -> Any:
    """By factors such as 0.4, of some axes, in any order."""
    x = g.new(F32, (1, g.choose([1, 2]), g.choose([5, 10, 33]), g.choose([7, 30, 170])), constant=False)
    mode = g.choose(["nearest", "linear", "cubic"]) if g.opset >= 11 else g.choose(["nearest", "linear"])
    factors = [float(np.float32(g.choose(FACTORS))) for _ in range(2)]
    if any(int(n * f) < 1 for n, f in zip(g.values[x].shape[2:], factors, strict=True)):
        raise Reject("nothing is left")
    exact, first = _agree(g.values[x].shape[2:], factors, Fraction), not any(n.op_type == op for n in g.nodes)
    if not _agree(g.values[x].shape[2:], factors, shortest_fraction):
        raise Reject("onnxruntime rounds the product first")
    if g.options and not exact:
        raise Reject("by definition it has another extent")
    if first and exact and g.chance(0.4):
        g.options["resize"] = "exact"
    how: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": "asymmetric"}
    if g.opset >= 11:
        how["coordinate_transformation_mode"] = g.choose(["half_pixel", "asymmetric"])
    if mode == "nearest":
        how["nearest_mode"] = "floor"  # or "ceil", along axes that shrink
        if g.opset >= 11:
            how["nearest_mode"] = g.choose(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
        if not all(_is_certain(n, f, **how) for n in g.values[x].shape[2:] for f in factors):
            raise Reject("whether 39 / 1.3 is 30 or more hangs on how it is computed")
    if g.opset < 11:
        return g.node(op, [x], mode=mode, scales=np.array([1, 1, *factors], np.float32))
    roi = "" if g.opset >= 13 else g.leaf(np.zeros(0, np.float32), True)
    if g.opset >= 18 and g.chance(0.5):
        listed = g.choose([[2, 3], [3, 2], [-1, -2], [-2, 3]])
        if g.chance(0.4):
            sizes = np.array([g.choose([3, 11, 40]) for _ in listed], np.int64)
            # onnxruntime keeps the input's size where axes are negative, whatever the policy.
            policy = g.choose(["stretch", "not_larger", "not_smaller"]) if min(listed) > 0 else "stretch"
            return g.node(op, [x, ""], sizes=sizes, axes=listed, keep_aspect_ratio_policy=policy, **how)
        if not _agree([g.values[x].shape[k] for k in listed], factors, Fraction if g.options else shortest_fraction):
            raise Reject("onnxruntime rounds the product of other axes first")
        return g.node(op, [x, ""], scales=np.array(factors, np.float32), axes=listed, **how)
    return g.node(op, [x, roi], scales=np.array([1, 1, *factors], np.float32), **how)


def cropped(g: Graph, op: str) -> Any:
    """Resize of a region that may reach beyond the picture."""
    if g.opset < 11:
        raise Reject("no regions")
    x = g.new(F32, (1, 2, g.choose([5, 10]), g.choose([7, 30])), constant=False)
    low, high = np.round(g.rng.uniform(-0.2, 0.4, 2), 2), np.round(g.rng.uniform(0.6, 1.3, 2), 2)
    roi = g.leaf(np.array([0, 0, *low, 1, 1, *high], np.float32), True)
    sizes = np.array([1, 2, g.choose([3, 8]), g.choose([4, 11])], np.int64)
    scales = "" if g.opset >= 13 else g.leaf(np.zeros(0, np.float32), True)
    return g.node("Resize", [x, roi, scales], sizes=sizes, mode=g.choose(["linear", "nearest"]),
                  coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=g.choose([None, -fraction(g)]))  # fmt: skip


def short_time(g: Graph, op: str) -> Any:
    """STFT of signals whose last extent says whether they are complex."""
    if g.opset < 17:
        raise Reject("no STFT")
    x = g.new(F32, (g.choose([1, 2]), g.choose([16, 23]), g.choose([1, 2])), constant=False)
    step, length, single = g.choose([1, 3, 4]), g.choose([4, 8]), int(g.chance(0.5) and g.values[x].shape[-1] == 1)
    reads = [x, g.leaf(np.array(step, np.int64), True), "", g.leaf(np.array(length, np.int64), True)]
    if g.chance(0.5):
        reads[2:] = [g.leaf(g.rng.uniform(0.1, 1, length).astype(np.float32), True)]
    return g.node(op, reads, onesided=single)


def _agree(extents: Sequence[int], factors: Sequence[float], known_as: Callable[[float], Fraction]) -> bool:
    """Whether results have the extents of onnxruntime, by what factors are taken for."""
    return all(floor(n * known_as(f)) == _product(n, f) for n, f in zip(extents, factors, strict=True))


def _product(extent: int, factor: float) -> int:
    """The extent of a result as onnxruntime has it, which rounds the product to f32."""
    return int(np.float32(extent) * np.float32(factor))


def _is_certain(
    extent: int, factor: float, *, nearest_mode: str, coordinate_transformation_mode: str, **_: Any
) -> bool:
    """Whether no position is so close to a boundary between elements that rounding decides."""
    k = np.arange(int(extent * factor) + 1, dtype=np.float64)
    half = coordinate_transformation_mode == "half_pixel"
    at = (k + 0.5) / factor - 0.5 if half else k[1:] / factor
    edge = at if nearest_mode in ("floor", "ceil") else at - 0.5
    return bool(np.all(np.abs(edge - np.round(edge)) > 1e-4))


def centred(g: Graph, op: str) -> Any:
    """MeanVarianceNormalization along axes in any order."""
    x = g.new(F32, (2, 3, 4, 5), constant=False)
    listed = g.rng.permutation(4)[: int(g.rng.integers(1, 4))].tolist()
    return g.node(op, [x], axes=[k - 4 if g.chance(0.3) else k for k in listed] if g.opset >= 13 else listed)


def far(g: Graph, op: str) -> Any:
    """Slice with bounds at the ends of i64, and axes out of order."""
    x = operand(g, op, low=2, high=4)
    listed = g.rng.permutation(g.values[x].ndim)[:2].tolist()
    if g.opset < 10:
        raise Reject("steps of 1")
    begin, end = ([g.choose([0, 1, -1, *LARGE]) for _ in listed] for _ in range(2))
    steps = [g.choose([1, -1, 2, -3, 2**31, -(2**62), 2**63 - 1]) for _ in listed]
    return g.node(
        op,
        [x],
        starts=begin,
        ends=end,
        axes=[k - g.values[x].ndim if g.chance(0.4) else k for k in listed],
        steps=steps,
    )


def clipped(g: Graph, op: str) -> Any:
    """Clip to bounds at the ends of a type, and to bounds that leave nothing between them."""
    d = g.choose([np.int8, np.uint8, np.int32, np.int64, np.uint64, np.float32])
    x = g.new(d, g.shape(2))
    if g.opset < 12:
        raise Reject("floats alone")
    info: Any = np.iinfo(d) if np.dtype(d).kind in "iu" else np.finfo(d)
    low, high = (np.array(g.choose([info.min, info.max, 0, 1]), d) for _ in range(2))
    return g.node(op, [x], min=low, max=high)


def wrapped(g: Graph, op: str) -> Any:
    """Arithmetic of integers at the ends of their types."""
    d = g.choose([np.int8, np.uint8, np.int16, np.int32, np.int64, np.uint32, np.uint64])
    info, shape = np.iinfo(d), g.shape(1)
    ends = np.array([info.min, info.max, info.max - 1, 1, 2], d)
    pick = lambda: g.leaf(g.rng.choice(ends, shape), False)
    return g.keep(helper.make_node(op, [pick(), pick()], [g.fresh("v")]), wild=True)


def windows(g: Graph, op: str) -> Any:
    n = np.array(g.choose([1, 2, 7, 16]), g.choose([np.int64, np.int32]))
    return g.node(op, [g.leaf(n, True)], periodic=g.choose([None, 0, 1]), output_datatype=g.choose([None, 1]))


def columns(g: Graph, op: str) -> Any:
    """Col2Im."""
    k, image = [g.choose([1, 2, 3]), g.choose([1, 2])], [g.choose([4, 5]), g.choose([5, 6])]
    strides, dilations, pads = (
        [g.choose([1, 2]) for _ in k],
        [g.choose([1, 1, 2]) for _ in k],
        g.rng.integers(0, 2, 4).tolist(),
    )
    out = [(n + pads[j] + pads[j + 2] - dilations[j] * (k[j] - 1) - 1) // strides[j] + 1 for j, n in enumerate(image)]
    if min(out) < 1:
        raise Reject("no window")
    x = g.new(F32, (g.choose([1, 2]), g.choose([1, 3]) * k[0] * k[1], out[0] * out[1]), constant=False)
    reads = [x, *(g.leaf(np.array(v, np.int64), True) for v in (image, k))]
    return g.node(op, reads, strides=strides, dilations=dilations, pads=pads)


def grid(g: Graph, op: str) -> Any:
    if g.opset < 16:
        raise Reject("no GridSample")
    n = g.choose([1, 2])
    x = g.new(F32, (n, g.choose([1, 3]), 5, 7), constant=False)
    at = g.leaf(g.rng.uniform(-1.4, 1.4, (n, 3, 4, 2)).astype(np.float32), False)
    modes = ["linear", "nearest", "cubic"] if g.opset >= 20 else ["bilinear", "nearest", "bicubic"]
    mode, padding = g.choose(modes), g.choose(["zeros", "border", "reflection"])
    if mode.endswith("cubic") and padding == "border":
        raise Reject("onnxruntime moves positions to the border, onnx.reference and PyTorch each of the taps")
    return g.node(op, [x, at], mode=mode, padding_mode=padding,
                  align_corners=int(g.chance(0.5)))  # fmt: skip


def regions(g: Graph, op: str) -> Any:
    """RoiAlign by scales such as 1/3."""
    x = g.new(F32, (2, g.choose([1, 3]), 8, 9), constant=False)
    corners = np.sort(g.rng.uniform(0, 7, (3, 2, 2)), 1).reshape(3, 4).astype(np.float32)
    batch = g.rng.integers(0, 2, 3)
    scale = float(np.float32(g.choose([1.0, 1 / 3, 0.4])))
    how = {"coordinate_transformation_mode": g.choose(["half_pixel", "output_half_pixel"])} if g.opset >= 16 else {}
    return g.node(op, [x, g.leaf(corners, False), g.leaf(batch, False)], output_height=g.choose([1, 3]), output_width=2,
                  sampling_ratio=g.choose([0, 1, 2]), spatial_scale=scale, mode=g.choose(["avg", "max"]), **how)  # fmt: skip


def suppressed(g: Graph, op: str) -> Any:
    batches, classes, boxes = g.choose([1, 2]), g.choose([1, 3]), g.choose([1, 6, 20])
    centre, size = g.rng.uniform(0, 9, (batches, boxes, 2)), g.rng.uniform(0.5, 4, (batches, boxes, 2))
    kind = int(g.chance(0.4))
    given = np.concatenate([centre, size] if kind else [centre - size / 2, centre + size / 2], -1)
    if not kind and g.chance(0.4):  # corners in any order
        given = given[..., [2, 3, 0, 1]]
    scores = g.rng.random((batches, classes, boxes))
    reads = [g.leaf(given.astype(np.float32), False), g.leaf(scores.astype(np.float32), False)]
    reads += [g.leaf(np.array(v, t), True) for v, t in ((g.choose([0, 1, 3, 2**31 - 1, 2**62]), np.int64), (fraction(g) / 2, np.float32), (g.choose([0.0, 1 / 3]), np.float32))]  # fmt: skip
    return g.node(op, reads, center_point_box=kind)


def einsum(g: Graph, op: str) -> Any:
    """Labels of extent 1 that broadcast, repeated ones, spaces, ellipses, and results that are left to ONNX."""
    text, *shapes = g.choose([
        ("ij,jk", (2, 3), (3, 4)), ("b...ij,b...jk->b...ik", (2, 3, 4, 5), (2, 3, 5, 2)), (" ij , jk -> ki ", (2, 3), (3, 4)),
        ("i,i->", (5,), (5,)), ("ij->j", (3, 4)), ("zyx,xw->wzy", (2, 3, 4), (4, 5)), ("ij,kl->ijkl", (2, 3), (1, 2)),
        ("...i,...i->...", (2, 3, 4), (2, 3, 4)), ("ba,cb,dc->ad", (2, 3), (4, 2), (3, 4)), ("ii->i", (4, 4)), ("ii", (4, 4)),
    ])  # fmt: skip
    if g.opset < 12:
        raise Reject("no Einsum")
    return g.node(op, [g.new(F32, s, constant=False) for s in shapes], equation=text)


def spread(g: Graph, op: str) -> Any:
    """Fourier transforms along axes that are not the last."""
    if g.opset < 17:
        raise Reject("no DFT")
    x = g.new(F32, (g.choose([1, 2]), g.choose([4, 5, 8]), g.choose([3, 6]), g.choose([1, 2])), constant=False)
    k = g.choose([1, 2, -2, -3])
    inverse, single = int(g.chance(0.4)), int(g.chance(0.3) and g.values[x].shape[-1] == 1)
    length = g.leaf(np.array(g.choose([3, 4, 9]), np.int64), True) if g.chance(0.5) else ""
    if g.opset < 20:
        return g.node(op, [x, length] if length else [x], axis=k, inverse=inverse, onesided=single and not inverse)
    return g.node(
        op, [x, length, g.leaf(np.array(k, np.int64), True)], inverse=inverse, onesided=single and not inverse
    )


def lost(g: Graph, op: str) -> Any:
    """Losses with weights, and a class that does not count."""
    n, c, more = g.choose([1, 3]), g.choose([2, 5]), g.choose([(), (4,), (2, 3)])
    if g.opset < 13:
        raise Reject("12 differs")
    labels = g.rng.integers(0, c, (n, *more))
    ignore = g.choose([None, 0, 1])
    reads = [g.new(F32, (n, c, *more), constant=False), g.leaf(labels.astype(g.choose([np.int64, np.int32])), False)]
    reads += [g.leaf(g.rng.uniform(0.1, 2, c).astype(np.float32))] if g.chance(0.5) else []
    return g.node(op, reads, reduction=g.choose(["mean", "sum", "none"]), ignore_index=ignore)


def negative(g: Graph, op: str) -> Any:
    """Axes from the end, and last places among equals."""
    if g.opset < 12:
        raise Reject("axes from the front alone")
    x = g.leaf(g.rng.integers(-2, 3, (2, 5, 17)).astype(g.choose([np.float32, np.float64, np.int32])), False)
    return g.node(op, [x], axis=axis(g, 3), keepdims=int(g.chance(0.5)), select_last_index=1)


def affine(g: Graph, op: str) -> Any:
    if g.opset < 20:
        raise Reject("no AffineGrid")
    n, dims = g.choose([1, 2]), g.choose([2, 3])
    theta = g.new(F32, (n, dims, dims + 1), constant=False)
    size = [n, 2, *(g.choose([1, 2, 5]) for _ in range(dims))]
    return g.node(op, [theta, g.leaf(np.array(size, np.int64), True)], align_corners=int(g.chance(0.5)))


_MAKERS: dict[Any, tuple[str, ...]] = {
    resize: ("Resize",), centred: ("MeanVarianceNormalization",), far: ("Slice",), clipped: ("Clip",),
    wrapped: ("Add", "Sub", "Mul"), windows: ("HannWindow", "HammingWindow", "BlackmanWindow"), columns: ("Col2Im",),
    grid: ("GridSample",), regions: ("RoiAlign",), suppressed: ("NonMaxSuppression",), einsum: ("Einsum",),
    spread: ("DFT",), lost: ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), negative: ("ArgMax", "ArgMin"),
    affine: ("AffineGrid",), cropped: ("CropAndResize",), short_time: ("STFT",),
}  # fmt: skip
CORNERS: dict[str, Any] = {
    f"corner.{op}": lambda g, _, maker=maker, op=op: maker(g, op) for maker, ops in _MAKERS.items() for op in ops
}
