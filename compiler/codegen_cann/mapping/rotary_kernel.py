"""Rotary embeddings as one kernel: RotaryPositionEmbedding, or RotaryMul on the older chips."""

from __future__ import annotations

import numpy as np

from occ.compiler.codegen_cann.graph.graph import Node, Ref
from occ.compiler.codegen_cann.mapping.emitter import Emitter
from occ.compiler.codegen_cann.mapping.matching import Users, constant, either, made_by

_WIDEST_HEAD, _MOST = 896, 1000  # the kernel requires heads shorter, and fewer, than this
_BLOCK = 64  # the older kernel requires head widths that are multiples of this


def embedded(e: Emitter, x: Ref, cos: Ref, sin: Ref, heads_at: int = 1) -> Ref | None:
    """`x` rotated by the angles, with its halves as the two parts of a number.

    None if the chip has no kernel for it.

    Args:
        x: has four axes: batch, rows, heads, width.
        cos, sin: of the angles of each row, per batch or shared.
        heads_at: the axis of the heads, 1 or 2.
    """
    if len(x.shape) != 4 or len(cos.shape) != 4:
        return None
    batch, width = x.shape[0], x.shape[3]
    of_rows = (1, *x.shape[2:]) if heads_at == 1 else (x.shape[1], 1, width)
    fits = cos.shape == sin.shape and cos.shape[1:] == of_rows and cos.shape[0] in (1, batch)
    if not fits or not cos.dtype == sin.dtype == x.dtype or x.dtype not in ("FLOAT", "FLOAT16", "BF16"):
        return None
    if width % 2 or width >= _WIDEST_HEAD or max(batch, x.shape[heads_at]) >= _MOST:
        return None
    if e.chip.has("RotaryPositionEmbedding"):
        return e.op("RotaryPositionEmbedding", x, cos, sin, out=x.desc, mode=0)
    if e.chip.has("RotaryMul") and width % _BLOCK == 0:
        return e.op("RotaryMul", x, cos, sin, out=x.desc)
    return None


def rotary(e: Emitter, root: Node, users: Users) -> Ref | None:
    """`x * cos + Concat(-second half, first half) * sin` as RotaryPositionEmbedding."""
    if root.type != "Add":
        return None
    for plain, turned in either(root):
        if plain.node.type != "Mul" or turned.node.type != "Mul":
            continue
        for half, sin in either(turned.node):
            x = _turned(half)
            cosines = [c for v, c in either(plain.node) if v == x]
            if x is not None and cosines and (made := embedded(e, x, cosines[0], sin)) is not None:
                return made
    return None


def _turned(half: Ref) -> Ref | None:
    """The value whose halves are swapped, with the second one negated."""
    if (
        half.node.type != "ConcatD"
        or len(half.node.inputs) != 2
        or half.node.attrs["concat_dim"] != len(half.shape) - 1
    ):
        return None
    second, first = made_by(half.node.inputs[0], "Neg"), half.node.inputs[1]
    width = half.shape[-1] // 2
    x, y = (_part(v, begin, width) for v, begin in ((second, width), (first, 0)))
    return x if x is not None and x == y and x.shape == half.shape else None


def _part(v: Ref | None, begin: int, width: int) -> Ref | None:
    """The operand of a slice of the last axis."""
    if v is None or v.shape[-1] != width:
        return None
    if v.node.type == "StridedSlice":
        return _last_axis(v, begin)
    if v.node.type != "StridedSliceV2":
        return None
    x, first, _, axes, steps = (*v.node.inputs, None, None)[:5]
    if x is None or len(v.shape) != len(x.shape) or v.shape[:-1] != x.shape[:-1]:
        return None
    found = [constant(r) for r in (first, axes, steps)]
    if any(f is None or f.size != 1 for f in found):
        return None
    at, axis, step = (int(f.reshape(())) for f in found if f is not None)
    return x if (at % x.shape[-1], axis % len(x.shape), step) == (begin, len(x.shape) - 1, 1) else None


def _last_axis(v: Ref, begin: int) -> Ref | None:
    """The operand and length of a StridedSlice of only the last axis, from `begin` in steps of 1."""
    x, first, _, steps = v.node.inputs
    at, by = constant(first), constant(steps)
    if x is None or at is None or by is None or v.node.attrs["begin_mask"] != (1 << (len(x.shape) - 1)) - 1:
        return None
    return x if int(at[-1]) % x.shape[-1] == begin and np.all(by == 1) else None
