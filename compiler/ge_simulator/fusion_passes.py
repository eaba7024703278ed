"""Operators that a GE fusion pass replaces by one with an AI Core kernel: TopK by TopKD."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from occ.compiler.ge_simulator.reader import Node, Tensor

# Requirements of TopKD's kernel: above this many elements `k` must be at least 16, since the AI CPU is faster for less.
_MANY, _LEAST_OF_MANY = 32768, 16
_MOST, _LONGEST = 4096, 1 << 21


def replacement(node: Node) -> Node | None:
    """The node that a pass substitutes for another; None if it leaves it.

    The source is TopKFusionPass and the check of top_k_d in Huawei's operator repositories.
    """
    if node.type != "TopK" or not node.attrs.get("sorted", True) or 1 not in node.constants:
        return None
    x, k = node.input_descs[0], int(node.constants[1].reshape(-1)[0])
    length = x.shape[node.attrs.get("dim", -1)]
    many = min(x.shape) >= 0 and prod(x.shape) > _MANY
    if (many and 0 < k < _LEAST_OF_MANY) or k > _MOST or length > _LONGEST or (length == 1 and x.dtype != np.float16):
        return None
    assist = Tensor("assist_seq", np.dtype(np.float16), (2 * _MOST,), "ND")
    return replace(node, type="TopKD", input_descs=[x, assist], constants={})
