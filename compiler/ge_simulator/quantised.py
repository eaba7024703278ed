"""Simulates AscendQuant, AscendDequant, AscendAntiQuant and the products between them.

Their kernels work in half precision, and the unit that scales sums reads 19 bits of a scale: sign, exponent and 10 bits
of the mantissa.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from occ.compiler.ge_simulator.reader import BadGraph, Graph, Node, cpp_type

Arrays = list[Any]
Kernel = Callable[[Node, Arrays], Any]
_PRODUCTS = frozenset({"BatchMatMulV2", "Conv2D", "MatMulV2"})
_ROUND: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Round": np.rint,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Trunc": np.trunc,
}
_READ = np.uint64(0xFFFFE000)


def take_offsets(g: Graph) -> None:
    """Set `offset_x` of the products between an AscendQuant and an AscendDequant, as GE's passes for these patterns do.

    The offset of the codes is removed from the bias by the sums of the weights, and used as the padding value. The
    result is the product of the codes minus the offset.

    Raises:
        BadGraph: an AscendDequant does not read a product; or the weights are not constant, so GE cannot sum them.
    """
    nodes = {n.name: n for n in g.nodes}
    for node in g.nodes:
        if node.type != "AscendDequant":
            continue
        cube = _maker(nodes, node, 0)
        if cube is None or cube.type not in _PRODUCTS:
            raise BadGraph(f"{node.name}: AscendDequant reads no sums of the matrix unit")
        quant = _maker(nodes, cube, 0)
        if quant is None or quant.type != "AscendQuant":
            continue
        weights = _maker(nodes, cube, 1)
        if weights is None or weights.type not in ("Const", "Constant", "FileConstant"):
            raise BadGraph(f"{cube.name}: GE sums constant weights alone, for the offset of {quant.name}")
        cube.attrs["offset_x"] = int(np.int8(int(quant.attrs["offset"])))


def _maker(nodes: dict[str, Node], node: Node, k: int) -> Node | None:
    edge = node.inputs[k]
    return None if edge is None else nodes.get(edge[0])


def without_offset(node: Node, x: np.ndarray) -> np.ndarray:
    """The integer operand of a product, minus the offset that `take_offsets` has set."""
    offset = node.attrs.get("offset_x", 0)
    return x.astype(np.int32) - offset if offset and x.dtype.kind == "i" else x


def _half(x: Any) -> np.ndarray:
    return np.asarray(x, np.float32).astype(np.float16)


def _quant(node: Node, x: Arrays) -> np.ndarray:
    a = node.attrs
    if a.get("sqrt_mode", False) or cpp_type(a.get("dst_type", 2)) != np.int8:
        raise BadGraph(f"{node.name}: sqrt_mode and other codes than INT8 are not simulated")
    rounded = _ROUND.get(a.get("round_mode", "Round"))
    if rounded is None:
        raise BadGraph(f"{node.name}: round_mode is one of {', '.join(_ROUND)}, not {a['round_mode']}")
    scaled = (_half(x[0]) * _half(a["scale"])).astype(np.float16)
    moved = (scaled + _half(a["offset"])).astype(np.float16).astype(np.float32)
    return np.clip(np.nan_to_num(rounded(moved), nan=0), -128, 127).astype(np.int8)


def _anti_quant(node: Node, x: Arrays) -> np.ndarray:
    a = node.attrs
    if a.get("sqrt_mode", False):
        raise BadGraph(f"{node.name}: sqrt_mode is not simulated")
    moved = (_half(x[0]) + _half(a["offset"])).astype(np.float16)
    return (moved * _half(a["scale"])).astype(np.float16).astype(cpp_type(a.get("dtype", 0)))


def _scales(node: Node, encoded: np.ndarray) -> np.ndarray:
    """Scales: half precision, or the low half of 64 bits.

    The other half holds unused fields, and must be 0.
    """
    if node.input_descs[1].dtype == np.float16:
        if encoded.ndim != 1 or not np.all(np.isfinite(encoded) & (encoded > 0)):
            raise BadGraph(f"{node.name}: a scale is not positive, or they are not a vector")
        return encoded.astype(np.float32)
    if encoded.dtype != np.uint64 or encoded.ndim != 1 or np.any(encoded >> np.uint64(32)):
        raise BadGraph(f"{node.name}: deq_scale is {encoded.dtype}{list(encoded.shape)}, not a vector of UINT64 scales")
    found = (encoded & _READ).astype(np.uint32).view(np.float32)
    if not np.all(np.isfinite(found) & (found > 0)):
        raise BadGraph(f"{node.name}: a scale is not positive")
    return found


def _saturated(x: np.ndarray) -> np.ndarray:
    """Rounded to half precision, saturating, as on chips with half-precision scales."""
    return np.clip(x, -65504, 65504).astype(np.float16).astype(np.float32)


def _dequant(node: Node, x: Arrays) -> np.ndarray:
    a, sums = node.attrs, x[0]
    scale = _scales(node, x[1])
    axis = 1 if node.input_descs[0].format == "NCHW" else sums.ndim - 1
    if scale.size not in (1, sums.shape[axis]):
        raise BadGraph(f"{node.name}: {scale.size} scales for {sums.shape[axis]} channels")
    shape = [1] * sums.ndim
    shape[axis] = scale.size
    made = (sums.astype(np.float64) * scale.reshape(shape)).astype(np.float32)
    if a.get("sqrt_mode", False):
        if node.input_descs[1].dtype != np.float16:
            raise BadGraph(f"{node.name}: scales of UINT64 have no sqrt_mode")
        made = _saturated(_saturated(made) * scale.reshape(shape))
    if a.get("relu_flag", False):
        made = np.maximum(made, 0)
    return made.astype(np.float16).astype(cpp_type(a.get("dtype", 0)))


KERNELS: dict[str, Kernel] = {"AscendAntiQuant": _anti_quant, "AscendDequant": _dequant, "AscendQuant": _quant}
