"""Simulates GE's fused kernels for language models, from their public descriptions."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from occ.compiler.ge_simulator.reader import BadGraph, Node

Arrays = list[Any]
Kernel = Callable[[Node, Arrays], Any]
_CORRECTS_EMPTY_ROWS = 2  # the bit of inner_precise


def _rms_norm(node: Node, x: Arrays) -> tuple[np.ndarray, np.ndarray]:
    v, gamma = x
    n = gamma.ndim
    if v.shape[v.ndim - n :] != gamma.shape or v.dtype != gamma.dtype:
        raise BadGraph(f"{node.name}: gamma {gamma.dtype}{list(gamma.shape)} does not fit {v.dtype}{list(v.shape)}")
    axes = tuple(range(v.ndim - n, v.ndim))
    inverse = 1 / np.sqrt(np.mean(np.square(v), axes, keepdims=True) + np.float32(node.attrs.get("epsilon", 1e-6)))
    return (v * inverse * gamma).astype(v.dtype), inverse.astype(np.float32)


def _add_rms_norm(node: Node, x: Arrays) -> tuple[np.ndarray, ...]:
    a, b, gamma = x
    if a.shape != b.shape or a.dtype != b.dtype:
        raise BadGraph(f"{node.name}: {a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)} differ")
    total = (a + b).astype(a.dtype)
    return (*_rms_norm(node, [total, gamma]), total)


def _rotary(node: Node, x: Arrays) -> np.ndarray:
    v, cos, sin = x
    if v.ndim != 4 or cos.shape != sin.shape or v.shape[-1] != cos.shape[-1] or v.shape[-1] % 2:
        raise BadGraph(f"{node.name}: angles {list(cos.shape)} and {list(sin.shape)} do not fit {list(v.shape)}")
    match node.attrs.get("mode", 0):
        case 0:
            first, second = np.split(v, 2, -1)
            turned = np.concatenate([-second, first], -1)
        case 1:
            turned = np.stack([-v[..., 1::2], v[..., ::2]], -1).reshape(v.shape)
        case other:
            raise BadGraph(f"{node.name}: mode {other}")
    return (v * cos + turned * sin).astype(v.dtype)


def _swiglu(node: Node, x: Arrays) -> np.ndarray:
    axis = node.attrs.get("dim", -1)
    if x[0].shape[axis] % 2:
        raise BadGraph(f"{node.name}: {list(x[0].shape)} has no two halves along {axis}")
    a, b = np.split(x[0], 2, axis)
    return (a / (1 + np.exp(-a)) * b).astype(x[0].dtype)


def _heads(node: Node, v: np.ndarray, count: int) -> np.ndarray:
    """An operand as [batch, heads, rows, width]."""
    layout = node.attrs.get("input_layout", "BSH")
    if layout == "BNSD" and v.ndim == 4 and v.shape[1] == count:
        return v
    if layout == "BSND" and v.ndim == 4 and v.shape[2] == count:
        return v.swapaxes(1, 2)
    if layout == "BSH" and v.ndim == 3 and v.shape[2] % count == 0:
        return v.reshape(*v.shape[:2], count, -1).swapaxes(1, 2)
    raise BadGraph(f"{node.name}: {list(v.shape)} is not {layout} of {count} heads")


def _from_heads(node: Node, v: np.ndarray) -> np.ndarray:
    layout = node.attrs.get("input_layout", "BSH")
    if layout == "BNSD":
        return v
    turned = v.swapaxes(1, 2)
    return turned if layout == "BSND" else turned.reshape(*turned.shape[:2], -1)


def _mask(node: Node, mask: np.ndarray | None, scores: tuple[int, ...]) -> np.ndarray | None:
    """Where a key is forbidden."""
    b, _, rows, keys = scores
    if mask is None:
        if node.attrs.get("sparse_mode", 0):
            raise BadGraph(f"{node.name}: sparse_mode {node.attrs['sparse_mode']} is not simulated")
        return None
    shapes = {(rows, keys), (1, rows, keys), (b, rows, keys), (1, 1, rows, keys), (b, 1, rows, keys)}
    shapes |= {(b, keys), (b, 1, keys)} if rows == 1 else set()
    if mask.shape not in shapes or mask.dtype.kind not in "bui":
        raise BadGraph(f"{node.name}: atten_mask is {mask.dtype}{list(mask.shape)}; scores are {list(scores)}")
    lead = 1 if prod(mask.shape) == rows * keys else b
    return mask.reshape(lead, 1, rows, keys).astype(bool)


def _narrow(node: Node) -> Any:
    return node.input_descs[0].dtype or np.float16


def _attend(
    node: Node, q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None, scale: float
) -> np.ndarray:
    a = node.attrs
    heads = a["num_heads"]
    groups = a.get("num_key_value_heads", 0) or heads
    if heads % groups or _narrow(node) not in (np.float16, ml_dtypes.bfloat16):
        raise BadGraph(f"{node.name}: {heads} heads on {groups}, of {_narrow(node)}")
    q, k, v = _heads(node, q, heads), _heads(node, k, groups), _heads(node, v, groups)
    if k.shape != v.shape or k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise BadGraph(f"{node.name}: keys {list(k.shape)} and values {list(v.shape)} do not fit {list(q.shape)}")
    k, v = (np.repeat(t.astype(np.float32), heads // groups, 1) for t in (k, v))
    scores = q.astype(np.float32) @ k.swapaxes(-1, -2) * np.float32(scale)
    forbidden = _mask(node, mask, scores.shape)
    if forbidden is not None:
        scores = np.where(forbidden, np.finfo(np.float32).min, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    if forbidden is not None and a.get("inner_precise", 1) & _CORRECTS_EMPTY_ROWS:
        weights = np.where(forbidden.all(-1, keepdims=True), 0, weights)
    made = weights.astype(_narrow(node)).astype(np.float32) @ v
    return _from_heads(node, made)


def _only(node: Node, x: Arrays, known: int) -> None:
    """Reject operands past those that are simulated."""
    names = [d.name for d, v in zip(node.input_descs[known:], x[known:], strict=False) if v is not None]
    if names:
        raise BadGraph(f"{node.name}: {', '.join(names)} are not simulated")


def _fused_infer(node: Node, x: Arrays) -> tuple[np.ndarray, np.ndarray]:
    _only(node, [*x[:3], x[3] if len(x) > 3 else None], 3)
    _only(node, x, 5)
    mask = x[4] if len(x) > 4 else None
    made = _attend(node, x[0], x[1], x[2], mask, node.attrs.get("scale", 1.0))
    shape = node.output_descs[1].shape
    return made, np.zeros(
        [max(d, 0) for d in shape], np.float32
    )  # softmax_lse_flag is false: the second result is not written


def _flash(node: Node, x: Arrays) -> np.ndarray:
    _only(node, x[:4], 3)
    _only(node, x, 5)
    return _attend(node, x[0], x[1], x[2], x[4] if len(x) > 4 else None, node.attrs.get("scale_value", 1.0))


KERNELS: dict[str, Kernel] = {
    "AddRmsNorm": _add_rms_norm, "FusedInferAttentionScore": _fused_infer, "IncreFlashAttention": _flash,
    "PromptFlashAttention": _flash,
    "RmsNorm": _rms_norm, "RotaryMul": _rotary, "RotaryPositionEmbedding": _rotary, "SwiGlu": _swiglu,
}  # fmt: skip
