"""Attention as one GE kernel: FusedInferAttentionScore, PromptFlashAttention or IncreFlashAttention."""

from __future__ import annotations

import numpy as np

from occ.compiler.codegen_cann.graph.graph import Desc, Node, Ref
from occ.compiler.codegen_cann.mapping.chip import HALF_MODES
from occ.compiler.codegen_cann.mapping.emitter import Emitter
from occ.compiler.codegen_cann.mapping.matching import Users, constant, either, made_by, scalar
from occ.runtime.dataclass import dataclass

_MOST_HEADS, _WIDEST_HEAD, _MOST_BATCH, _ALIGNED = 256, 512, 128, 16
_FORBIDDEN = -1e4  # a mask value below this forbids a key
_EVERY = 2147483647


@dataclass(frozen=True)
class Operands:
    """Operands of an attention kernel: queries [B, N, S, D], keys and values [B, M, T, D], and the mask.

    N is a multiple of M. The mask is true where a key is forbidden.
    """

    q: Ref
    k: Ref
    v: Ref
    mask: Ref | None
    scale: float


def attention(e: Emitter, root: Node, users: Users) -> Ref | None:
    """An attention over cached or own keys as the kernel that the chip has."""
    if root.type != "BatchMatMulV2" or not e.chip.attention or any(root.attrs.values()):
        return None
    half = root.outputs[0].dtype in ("FLOAT16", "BF16")
    if not half and (root.outputs[0].dtype != "FLOAT" or e.precision not in HALF_MODES):
        return None
    found = _operands(e, root)
    if found is None or not _fits(found):
        return None
    kind = "BF16" if found.q.dtype == "BF16" else "FLOAT16"
    q, k, v = (e.cast(r, kind) for r in (found.q, found.k, found.v))
    made = _node(e, Operands(q, k, v, found.mask, found.scale))
    return None if made is None else e.reshape(e.cast(made, root.outputs[0].dtype), root.outputs[0].shape)


def _node(e: Emitter, o: Operands) -> Ref | None:
    out, heads, groups, rows, keys = o.q.desc, o.q.shape[1], o.k.shape[1], o.q.shape[2], o.k.shape[2]
    same = {"num_heads": heads, "input_layout": "BNSD", "num_key_value_heads": groups}
    if e.chip.attention == "FusedInferAttentionScore":
        stats = Desc("FLOAT", (*out.shape[:3], 1))
        return e.op(
            "FusedInferAttentionScore", o.q, [o.k], [o.v], None, o.mask, out=[out, stats], scale=o.scale,
            pre_tokens=_EVERY, next_tokens=_EVERY, inner_precise=2 if rows > 1 else 0, **same,
        )[0]  # fmt: skip
    if rows == 1 and heads // groups <= 8:
        mask = o.mask
        return e.op("IncreFlashAttention", o.q, [o.k], [o.v], None, mask, out=out, scale_value=o.scale, **same)
    if rows > 1 and (o.mask is None or (rows == keys and rows % 128 == 0)):
        tokens = {"pre_tokens": _EVERY, "next_tokens": _EVERY}
        return e.op("PromptFlashAttention", o.q, o.k, o.v, None, o.mask, out=out, scale_value=o.scale, **tokens, **same)
    return None


def _fits(o: Operands) -> bool:
    b, n, _, d = o.q.shape
    whole = o.k.shape == o.v.shape and o.k.shape[0] == b and o.k.shape[3] == d and n % o.k.shape[1] == 0
    return whole and n <= _MOST_HEADS and d <= _WIDEST_HEAD and b <= _MOST_BATCH and d % _ALIGNED == 0


def _operands(e: Emitter, root: Node) -> Operands | None:
    weights, v = root.inputs[0], root.inputs[1]
    scores = _softmaxed(_of_all_heads(weights))
    if scores is None or v is None or len(v.shape) != 4:
        return None
    scores, mask = _unmasked(e, scores)
    scores, scale = _unscaled(scores, 1.0)
    heads = scores.shape[:3]
    scores = _of_all_heads(scores) or scores
    if scores.node.type != "BatchMatMulV2" or scores.node.attrs.get("adj_x1", False):
        return None
    q, k = scores.node.inputs[0], scores.node.inputs[1]
    if q is None or k is None or len(q.shape) != 4 or len(k.shape) != 4:
        return None
    if q.shape[:3] != heads and (q := _of_all_heads(q) or q).shape[:3] != heads:
        return None
    q, scale = _unscaled(q, scale)
    k, scale = _unscaled(k, scale)
    if not scores.node.attrs.get("adj_x2", False):
        turned = _untransposed(e, k)
        if turned is None:
            return None
        k, scale = _unscaled(turned, scale)
    return Operands(q, _own_heads(k), _own_heads(v), mask, scale)


def _of_all_heads(x: Ref | None) -> Ref | None:
    """A value of four axes before rows of heads that share keys were merged or split.

    Otherwise unchanged.
    """
    inner = made_by(x, "Reshape")
    if x is None or inner is None or len(x.shape) != 4 or len(inner.shape) != 4:
        return x
    (b, n, s, last), (c, m, t, width) = x.shape, inner.shape
    return inner if (b, n * s, last) == (c, m * t, width) else x


def _softmaxed(x: Ref | None) -> Ref | None:
    """The operand of the softmax that computes a value, and whether fully masked rows are zero."""
    if x is None:
        return None
    if x.node.type == "SelectV2" and x.node.inputs[2] is not None and x.node.inputs[2].node.type == "SoftmaxV2":
        test, zero = x.node.inputs[:2]
        is_nan = test is not None and test.node.type == "NotEqual" and test.node.inputs == [x.node.inputs[2]] * 2
        return _softmaxed(x.node.inputs[2]) if is_nan and scalar(zero) == 0 else None
    if x.node.type == "SoftmaxV2":
        last = [k % len(x.shape) for k in x.node.attrs.get("axes", [-1])] == [len(x.shape) - 1]
        return x.node.inputs[0] if last else None
    power, total = (*x.node.inputs, None)[:2] if x.node.type == "DivNoNan" else (None, None)
    shifted = made_by(power, "Exp")
    if shifted is None or made_by(total, "ReduceSum") != power or shifted.node.type != "Sub":
        return None
    scores, top = shifted.node.inputs
    peak = top.node.inputs[2] if top is not None and top.node.type == "SelectV2" else top
    return scores if scores is not None and made_by(peak, "ReduceMax") == scores else None


def _unmasked(e: Emitter, scores: Ref) -> tuple[Ref, Ref | None]:
    """Scores before masking, and where the mask forbids a key."""
    if scores.node.type == "SelectV2":
        allowed, inner, low = scores.node.inputs
        if allowed is not None and inner is not None and inner.shape == scores.shape and scalar(low) == -np.inf:
            return inner, _forbidden(e, allowed, scores, inverted=True)
    for inner, added in either(scores.node) if scores.node.type == "Add" else ():
        known = constant(added)
        if known is not None and inner.shape == scores.shape and np.all((known == 0) | (known < _FORBIDDEN)):
            made = _forbidden(e, e.constant(known != 0), scores, inverted=False)
            if made is not None:
                return inner, made
        mask = added.node.inputs if added.node.type == "SelectV2" else []
        if len(mask) == 3 and mask[0] is not None and inner.shape == scores.shape:
            yes, no = scalar(mask[1]), scalar(mask[2])
            if yes is not None and no is not None and {yes, no} & {0.0} and min(yes, no) < _FORBIDDEN:
                made = _forbidden(e, mask[0], scores, inverted=yes == 0)
                if made is not None:
                    return inner, made
    return scores, None


def _forbidden(e: Emitter, where: Ref, scores: Ref, *, inverted: bool) -> Ref | None:
    """A mask [B, 1, S, T] that is true where a key is forbidden."""
    lead = [1] * (4 - len(where.shape))
    shape = (*lead, *where.shape)
    if shape[1] != 1 or where.dtype != "BOOL":
        return None
    made = e.op("LogicalNot", where, out=where.desc) if inverted else where
    made, full = e.reshape(made, shape), (shape[0], 1, *scores.shape[2:])
    if made.shape == full:
        return made
    return e.cast(e.op("BroadcastTo", e.cast(made, "INT8"), e.ints(full), out=Desc("INT8", full)), "BOOL")


def _unscaled(x: Ref, scale: float) -> tuple[Ref, float]:
    """A value without a constant factor, and the scale including it."""
    if x.node.type == "Muls" and x.node.inputs[0] is not None:
        return x.node.inputs[0], scale * float(x.node.attrs["value"])
    for inner, factor in either(x.node) if x.node.type == "Mul" else ():
        if (value := scalar(factor)) is not None and inner.shape == x.shape:
            return inner, scale * value
    return x, scale


def _untransposed(e: Emitter, x: Ref) -> Ref | None:
    """The four-axis value whose transposed matrices are the given value; batch and heads may be merged."""
    whole = (*x.shape[:2], x.shape[3], x.shape[2])
    if x.node.type != "Reshape":
        return _swapped(x)
    source = _swapped(x.node.inputs[0])
    before = made_by(source, "Reshape")
    if source is None or before is None or source.shape != (whole[0] * whole[1], *whole[2:]):
        return None
    return before if before.shape == whole else e.reshape(before, whole)


def _swapped(x: Ref | None) -> Ref | None:
    if x is None:
        return None
    perm = constant(x.node.inputs[1]) if x.node.type == "Transpose" else None
    n = len(x.shape)
    return x.node.inputs[0] if perm is not None and perm.tolist() == [*range(n - 2), n - 1, n - 2] else None


def _own_heads(x: Ref) -> Ref:
    """Keys or values before their heads were repeated for the heads of the queries."""
    wide = made_by(x, "Reshape")
    apart = made_by(wide, "BroadcastTo")
    own = made_by(apart, "Unsqueeze")
    if wide is None or apart is None or own is None or len(own.shape) != 4 or x.shape != (
        own.shape[0], wide.shape[1] * wide.shape[2], *own.shape[2:]
    ):  # fmt: skip
        return x
    return own if apart.shape == (*own.shape[:2], 1, *own.shape[2:]) else x
