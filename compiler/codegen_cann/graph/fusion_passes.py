"""Replacements that GE's fusion passes make for nodes without an AI Core kernel.

Sources: ConstToAttrStridedSliceV2Fusion and TopKFusionPass in Huawei's operator repositories, and TopKD's kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from occ.compiler.codegen_cann.graph.graph import Desc, Node, Ref, data_node

_SMALL, _FEW = 32768, 16  # TopKD leaves a `k` below 16 among more elements to the AI CPU
_LARGEST_K, _LONGEST = 4096, 1 << 21


def _slice(node: Node) -> Node | None:
    """StridedSliceV2 with constant bounds as StridedSliceD, whose bounds are attributes."""
    if any(r is None or r.node.type != "Const" for r in node.inputs[1:]):
        return None
    return Node("", "StridedSliceD", node.inputs[:1], node.outputs, {}, node.input_names[:1], node.output_names)


def _top_k(node: Node) -> Node | None:
    """TopK with a constant `k` as TopKD."""
    x, k = node.inputs
    if x is None or k is None or k.node.type != "Const" or not node.attrs.get("sorted", True):
        return None
    count, length = int(k.node.value.reshape(-1)[0]), x.shape[node.attrs.get("dim", -1)]
    few = 0 < count < _FEW and min(x.shape) >= 0 and prod(x.shape) > _SMALL
    if few or count > _LARGEST_K or length > _LONGEST or (length == 1 and x.dtype != "FLOAT16"):
        return None
    assist = data_node("", Desc("FLOAT16", (2 * _LARGEST_K,)), 0)
    return Node("", "TopKD", [x, Ref(assist)], node.outputs, {}, ["x", "assist_seq"], node.output_names)


_PASSES: dict[str, Callable[[Node], Node | None]] = {"StridedSliceV2": _slice, "TopK": _top_k}


def replacement(node: Node) -> Node | None:
    """The node into which a pass turns one, if it has a kernel; None if no pass applies."""
    made = _PASSES.get(node.type)
    return made(node) if made else None
