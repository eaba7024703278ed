"""Makers of nodes of com.microsoft, one operator each; only onnxruntime defines their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import helper

from tools.fuzz.generate import Graph
from tools.fuzz.inputs import F16
from tools.fuzz.operators import F32, TYPES, axis, fraction
from tools.fuzz.oracle import MICROSOFT, Reject

F64 = np.dtype(np.float64)
I8, U8 = np.dtype(np.int8), np.dtype(np.uint8)
BYTES = (I8, U8)
ACTIVATIONS: dict[str, Sequence[str]] = {
    "Relu": (), "Tanh": (), "Sigmoid": (), "LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Clip": ("min", "max"),
}  # fmt: skip
_WILD = ("MurmurHash3", "NGramRepeatBlock", "MatMulInteger16")  # hashes, what is never to be chosen, and large sums


def put(g: Graph, op: str, reads: Sequence[str], results: int = 1, domain: str = MICROSOFT, **attrs: Any) -> list[str]:
    """A node of a domain; attributes that are None are left out."""
    kept = {k: v for k, v in attrs.items() if v is not None}
    made = [g.fresh("v") for _ in range(results)]
    return g.keep(helper.make_node(op, list(reads), made, domain=domain, **kept), wild=op in _WILD)


def reals(g: Graph) -> Any:
    return g.choose([F32, F32, F32, F16])


def _odd(g: Graph) -> int:
    return g.choose([1, 2, 3, 5, 8, 17])


def _codes(g: Graph, shape: tuple[int, ...], d: Any, *, constant: bool | None = None) -> str:
    info = np.iinfo(d)
    return g.leaf(g.rng.integers(info.min, info.max, shape, endpoint=True).astype(d), constant)


def _scale(g: Graph, shape: tuple[int, ...] = ()) -> str:
    return g.leaf(g.rng.uniform(0.003, 0.2, shape).astype(np.float32), True)


def _zero(g: Graph, d: Any, shape: tuple[int, ...] = ()) -> str:
    info = np.iinfo(d)
    if g.chance(0.15):
        return g.leaf(np.full(shape, g.choose([info.min, info.max]), d), True)
    return g.leaf((g.rng.integers(-9, 9, shape) + (128 if d == U8 else 0)).astype(d), True)


def _coded(g: Graph, d: Any) -> list[str]:
    """The scale and the zero point of a tensor of codes."""
    return [_scale(g), _zero(g, d)]


# Elementwise and norms ------------------------------------------------------------------------------------------------


def smooth(g: Graph, op: str) -> Any:
    d = g.choose([F32, F32, F64]) if op != "FastGelu" else F32
    shape = (*g.shape(int(g.rng.integers(0, 3))), _odd(g))
    reads = [g.new(d, shape)]
    if op == "BiasGelu" or (op == "FastGelu" and g.chance(0.6)):
        reads.append(g.new(d, shape[-1:]))
    alpha = g.choose([None, fraction(g), -fraction(g)]) if op == "QuickGelu" else None
    return put(g, op, reads, alpha=alpha)


def skip_norm(g: Graph, op: str) -> Any:
    d, n = reals(g), _odd(g)
    shape = (g.choose([1, 2, 3]), g.choose([1, 4, 7]), n)
    x, skip = g.new(d, shape), g.new(d, g.choose([shape, shape, (1, *shape[1:]), shape[1:]]))
    reads = [x, skip, *(g.new(d, (n,)) for _ in range(1 if "Simplified" in op else int(g.rng.integers(1, 3))))]
    if g.chance(0.4):
        reads += [""] * (4 - len(reads) - ("Simplified" in op)) + [g.new(d, (n,))]
    if g.chance(0.3):
        node = helper.make_node(op, reads, [g.fresh("v"), "", "", g.fresh("v")], domain=MICROSOFT, epsilon=fraction(g))
        return g.keep(node)
    return put(g, op, reads, epsilon=g.choose([None, fraction(g)]))


def embed(g: Graph, op: str) -> Any:
    n, words, batch, steps = _odd(g), g.choose([3, 11]), g.choose([1, 2, 3]), g.choose([1, 4, 7])
    ids = lambda most: g.leaf(g.rng.integers(0, most, (batch, steps)).astype(np.int32))
    segments = g.chance(0.6)
    reads = [ids(words), ids(2) if segments else "", g.new(F32, (words, n)), g.new(F32, (8, n)),
             g.new(F32, (2, n)) if segments else "", g.new(F32, (n,)), g.new(F32, (n,))]  # fmt: skip
    masked = g.chance(0.4)
    if masked:
        reads.append(g.leaf((np.arange(steps) < g.rng.integers(1, steps + 1, (batch, 1))).astype(np.int32)))
    return put(g, op, reads, 2, epsilon=g.choose([None, fraction(g)]), mask_index_type=None if masked else 0)


# Products -------------------------------------------------------------------------------------------------------------


def fused_matmul(g: Graph, op: str) -> Any:
    d = g.choose([F32, F32, F64])
    m, k, n, batch = _odd(g), _odd(g), _odd(g), g.choose([(), (2,), (2, 3)])
    ta, tb = int(g.chance(0.4)), int(g.chance(0.4))
    a = g.new(d, (*batch, *((k, m) if ta else (m, k))))
    b = g.new(d, (*(batch if g.chance(0.7) else ()), *((n, k) if tb else (k, n))))
    return put(g, op, [a, b], transA=ta, transB=tb, alpha=g.choose([None, fraction(g), -fraction(g)]))


def fused_gemm(g: Graph, op: str) -> Any:
    m, k, n, ta, tb = _odd(g), _odd(g), _odd(g), int(g.chance(0.4)), int(g.chance(0.4))
    name = g.choose(list(ACTIVATIONS)[:5])
    reads = [g.new(F32, (k, m) if ta else (m, k)), g.new(F32, (n, k) if tb else (k, n))]
    reads += [g.new(F32, g.choose([(n,), (1, n), (m, n), (m, 1), ()]))] if g.chance(0.6) else []
    extra = {f"activation_{p}": fraction(g) for p in ACTIVATIONS[name] if g.chance(0.7)}
    return put(g, op, reads, activation=name, transA=ta, transB=tb, alpha=g.choose([None, fraction(g)]),
               beta=g.choose([None, fraction(g)]), **extra)  # fmt: skip


def fused_conv(g: Graph, op: str) -> Any:
    c, f, group = g.choose([2, 4, 8]), g.choose([1, 2, 4]), g.choose([1, 1, 2])
    x = g.new(F32, (g.choose([1, 2]), c, 6, 7))
    k, name = g.choose([1, 3]), g.choose(list(ACTIVATIONS))
    given = {"alpha": fraction(g), "beta": fraction(g), "min": -fraction(g), "max": fraction(g)}
    params = [given[p] for p in ACTIVATIONS[name]] or None
    reads = [x, g.new(F32, (f * group, c // group, k, k), -1, 1, constant=True)]
    reads += [g.new(F32, (f * group,))] if g.chance(0.6) else []
    pads = g.rng.integers(0, k, 4).tolist()
    return put(g, op, reads, activation=name, activation_params=params, group=group, pads=pads, kernel_shape=[k, k],
               strides=[g.choose([1, 2]), g.choose([1, 3])])  # fmt: skip


def of_codes(g: Graph, op: str) -> Any:
    """Products of codes: MatMulIntegerToFloat, DynamicQuantizeMatMul, QGemm, MatMulInteger16."""
    m, k, n = _odd(g), _odd(g), _odd(g)
    if op == "MatMulInteger16":
        kinds = [g.choose([np.int16]) for _ in "ab"]
        return put(g, op, [_codes(g, s, d) for s, d in zip(((m, k), (k, n)), kinds, strict=True)])
    db, each = g.choose(BYTES), (n,) if g.chance(0.4) else ()
    if op == "DynamicQuantizeMatMul":
        reads = [g.new(F32, (m, k)), _codes(g, (k, n), db, constant=True), _scale(g, each)]
        reads += [_zero(g, db, each) if g.chance(0.7) else ""]
        return put(g, op, [*reads, *([g.new(F32, (n,))] if g.chance(0.5) else [])])
    da = g.choose(BYTES)
    if op == "MatMulIntegerToFloat":
        lead = g.choose([(), (2,)])
        reads = [
            _codes(g, (*lead, m, k), da),
            _codes(g, (k, n), db, constant=g.chance(0.8)),
            _scale(g),
            _scale(g, each),
        ]
        reads += [_zero(g, da), _zero(g, db, each)] if g.chance(0.7) else ["", ""]
        return put(g, op, [*reads, *([g.new(F32, (n,))] if g.chance(0.5) else [])])
    ta, tb = int(g.chance(0.3)), int(g.chance(0.5))
    reads = [
        _codes(g, (k, m) if ta else (m, k), da),
        *_coded(g, da),
        _codes(g, (n, k) if tb else (k, n), db, constant=True),
    ]
    reads += [_scale(g, each), _zero(g, db, each)]
    bias = [g.leaf(g.rng.integers(-999, 999, n).astype(np.int32), True)] if g.chance(0.6) else [""]
    out = _coded(g, da) if g.chance(0.6) else []
    return put(g, op, [*reads, *(bias if out or bias != [""] else []), *out], transA=ta, transB=tb,
               alpha=g.choose([None, 1.0, fraction(g)]))  # fmt: skip


def in_blocks(g: Graph, op: str) -> Any:
    """MatMulNBits, of a number of terms that blocks may not divide."""
    bits, block = g.choose([4, 4, 8]), g.choose([16, 32, 128])
    k, n, rows = g.choose([16, 33, 64, 130]), g.choose([1, 8, 17]), g.choose([1, 3, 9])
    count = -(-k // block)
    w = g.leaf(g.rng.integers(0, 256, (n, count, block * bits // 8)).astype(np.uint8), True)
    reads = [
        g.new(F32, (rows, k), constant=False),
        w,
        g.leaf(g.rng.uniform(0.01, 0.1, (n, count)).astype(np.float32), True),
    ]
    wide = -(-count * bits // 8)
    zero = g.leaf(g.rng.integers(0, 256, (n, wide)).astype(np.uint8), True) if g.chance(0.5) else ""
    reads += [zero, "", g.new(F32, (n,), constant=True)] if g.chance(0.3) else [zero] if zero else []
    return put(g, op, reads, K=k, N=n, bits=bits, block_size=block, accuracy_level=0)


# Quantised ------------------------------------------------------------------------------------------------------------


def on_codes(g: Graph, op: str) -> Any:
    """QLinear operators of one or two tensors of codes."""
    d, shape = g.choose(BYTES), g.shape(int(g.rng.integers(1, 4)))
    if 0 in shape:
        raise Reject("of nothing")
    x = [_codes(g, shape, d), *_coded(g, d)]
    match op:
        case "QLinearAdd" | "QLinearMul":
            other = tuple(1 if g.chance(0.3) else n for n in shape)
            return put(g, op, [*x, _codes(g, other, d), *_coded(g, d), *_coded(g, d)])
        case "QLinearWhere":
            cond = g.leaf(g.rng.random(shape) < 0.5)
            return put(g, op, [cond, *x, _codes(g, shape, d), *_coded(g, d), *_coded(g, d)])
        case "QLinearConcat":
            k = axis(g, len(shape))
            more = tuple(g.extent() or 1 if j == k % len(shape) else n for j, n in enumerate(shape))
            return put(g, op, [*_coded(g, d), *x, _codes(g, more, d), *_coded(g, d)], axis=k)
        case "QLinearSoftmax":
            # Where the largest share is beyond the largest code, onnxruntime wraps around.
            return put(g, op, [*x, g.leaf(np.array(1 / 127, np.float32), True), g.leaf(np.zeros((), d), True)], axis=axis(g, len(shape)), opset=13)  # fmt: skip
        case _:
            alpha = g.choose([None, fraction(g)]) if op == "QLinearLeakyRelu" else None
            return put(g, op, [*x, *_coded(g, d)], alpha=alpha)


def pooled(g: Graph, op: str) -> Any:
    d, last = g.choose(BYTES), int(g.chance(0.4))
    n, c, h, w = g.choose([1, 2]), _odd(g), g.choose([3, 6, 9]), g.choose([4, 7])
    k = [g.choose([1, 2, 3]), g.choose([2, 3])]
    pads = [int(g.rng.integers(0, m)) for m in (*k, *k)]
    window: dict[str, Any] = {"kernel_shape": k, "strides": [g.choose([1, 2]), g.choose([1, 3])], "pads": pads}
    window["ceil_mode"] = int(g.chance(0.3))
    if op == "NhwcMaxPool":
        return put(g, op, [_codes(g, (n, h, w, c), d)], **window)
    reads = [_codes(g, (n, h, w, c) if last else (n, c, h, w), d), *_coded(g, d), *_coded(g, d)]
    if op == "QLinearGlobalAveragePool":
        return put(g, op, reads, channels_last=last)
    # With both, onnxruntime divides by the size of the window, also where it reaches beyond the pads; its AveragePool does not.
    counted = 0 if window["ceil_mode"] else int(g.chance(0.5))
    return put(g, op, reads, channels_last=last, count_include_pad=counted, **window)


# Attention ------------------------------------------------------------------------------------------------------------


def multi_head(g: Graph, op: str) -> Any:
    b, h, m, n, d, e = g.choose([1, 2]), g.choose([1, 2, 3]), *(g.choose([1, 2, 5, 8]) for _ in range(4))
    past = g.choose([0, 0, 3])
    reads = [g.new(F32, (b, m, h * d)), g.new(F32, (b, n, h * d)), g.new(F32, (b, n, h * e))]
    reads.append(g.new(F32, (h * (d + d + e),)) if g.chance(0.4) else "")
    mask = g.choose(["", "", "keys", "lengths"]) if not past else ""
    lengths = g.rng.integers(1, n + 1, b)
    kept = (np.arange(n) < lengths[:, None]) if mask == "keys" else lengths
    reads.append(g.leaf(kept.astype(np.int32)) if mask else "")
    reads.append(g.new(F32, (g.choose([1, b]), g.choose([1, h]), m, n + past)) if g.chance(0.4) else "")
    results = 1
    if past:
        reads += [g.new(F32, (b, h, past, d)), g.new(F32, (b, h, past, e))]
        results = 3
    return put(g, op, reads, results, num_heads=h, scale=g.choose([None, fraction(g)]),
               unidirectional=g.choose([None, 1]) if m == n and not past else None)  # fmt: skip


def fused_attention(g: Graph, op: str) -> Any:
    b, h, m, d, n = g.choose([1, 2]), g.choose([1, 2, 3]), g.choose([1, 2, 5, 8]), g.choose([2, 4, 8]), _odd(g)
    reads = [g.new(F32, (b, m, n)), g.new(F32, (n, 3 * h * d), -0.5, 0.5, constant=True), g.new(F32, (3 * h * d,))]
    mask = g.choose(["", "ends", "raw", "square"])
    last = g.rng.integers(1, m + 1, b)
    kinds: dict[str, Callable[[], np.ndarray]] = {
        "ends": lambda: last, "raw": lambda: np.arange(m) < last[:, None], "square": lambda: np.tril(np.ones((b, m, m))),
    }  # fmt: skip
    reads += [g.leaf(kinds[mask]().astype(np.int32))] if mask else []
    one_way = g.choose([None, 1])
    return put(g, op, reads, num_heads=h, unidirectional=one_way, scale=g.choose([None, fraction(g)]))


def rotary(g: Graph, op: str) -> Any:
    b, h, m, d, most = g.choose([1, 2]), g.choose([1, 3]), g.choose([1, 4, 7]), g.choose([4, 8, 16]), g.choose([8, 9])
    part = g.choose([0, 0, d // 2])
    x = g.new(F32, (b, m, h * d) if g.chance(0.5) and not part else (b, h, m, d))
    at = g.rng.integers(0, most - m + 1, (1,)) if g.chance(0.4) else g.rng.integers(0, most, (b, m))
    angles = g.rng.uniform(-3, 3, (most, (part or d) // 2))
    tables = [g.leaf(f(angles).astype(np.float32), True) for f in (np.cos, np.sin)]
    flat = g.values[x].ndim == 3
    return put(g, op, [x, g.leaf(at.astype(np.int64)), *tables], interleaved=int(g.chance(0.5)),
               num_heads=h if flat or part else None, rotary_embedding_dim=part or None)  # fmt: skip


def grouped(g: Graph, op: str) -> Any:
    b, kv, shared, m, d = (
        g.choose([1, 2]),
        g.choose([1, 2]),
        g.choose([1, 2, 3]),
        g.choose([1, 1, 3]),
        g.choose([8, 16]),
    )
    past = g.choose([0, 5]) if m == 1 else 0
    whole = past + m
    reads = [g.new(F32, (b, m, kv * shared * d)), *(g.new(F32, (b, m, kv * d)) for _ in "kv")]
    reads += [g.new(F32, (b, kv, past, d)) for _ in "kv"] if past else ["", ""]
    reads += [g.leaf(np.full((b,), whole - 1, np.int32), fixed=True), g.leaf(np.array(whole, np.int32), True)]
    turned = d == 16 and g.chance(0.5)
    if turned:
        angles = g.rng.uniform(-3, 3, (whole + 2, d // 2))
        reads += [g.leaf(f(angles).astype(np.float32), True) for f in (np.cos, np.sin)]
    return put(g, op, reads, 3, num_heads=kv * shared, kv_num_heads=kv, do_rotary=int(turned),
               rotary_interleaved=int(g.chance(0.3)) if turned else None, scale=g.choose([None, fraction(g)]),
               softcap=g.choose([None, None, 1.7]), local_window_size=g.choose([None, None, 2, 4]))  # fmt: skip


# Others ---------------------------------------------------------------------------------------------------------------


def distances(g: Graph, op: str) -> Any:
    d, k = g.choose([F32, F64]), _odd(g)
    return put(g, op, [g.new(d, (_odd(g), k)), g.new(d, (_odd(g), k))], metric=g.choose(["euclidean", "sqeuclidean"]))


def cropped(g: Graph, op: str) -> Any:
    n, count = g.choose([1, 3]), g.choose([1, 4])
    x = g.new(F32, (n, g.choose([1, 3]), 7, 9))
    corners = np.sort(g.rng.uniform(-0.3, 1.3, (count, 2, 2)), 1).reshape(count, 4)
    reads = [x, g.leaf(corners.astype(np.float32)), g.leaf(g.rng.integers(0, n, count).astype(np.int32), fixed=True)]
    reads.append(g.leaf(np.array([g.choose([1, 4]), g.choose([3, 5])], np.int32), True))
    return put(g, op, reads, mode=g.choose(["bilinear", "nearest"]), extrapolation_value=g.choose([None, fraction(g)]))


def moved(g: Graph, op: str) -> Any:
    """ExpandDims, UnfoldTensor, Unique, Inverse, MurmurHash3, NGramRepeatBlock."""
    if op == "ExpandDims":
        shape = g.shape(int(g.rng.integers(1, 4)))
        at = g.leaf(np.array(g.rng.integers(-len(shape) - 1, len(shape) + 1), np.int32), True)
        return put(g, op, [g.new(g.choose(list(TYPES.values())), shape), at])
    if op == "UnfoldTensor":
        shape = tuple(g.choose([3, 5, 8]) for _ in range(int(g.rng.integers(1, 4))))
        k = axis(g, len(shape))
        return put(g, op, [g.new(F32, shape)], dim=k, size=g.choose([1, 2, 3]), step=g.choose([1, 2, 5]))
    if op == "Unique":
        return put(g, op, [g.new(F32, (g.choose([1, 7, 30]),), -2, 2)], 3)
    if op == "Inverse":
        n = g.choose([1, 2, 3, 5])
        lead = g.choose([(), (2,), (2, 3)])
        x = g.rng.standard_normal((*lead, n, n)) + 4 * np.eye(n)
        return put(g, op, [g.leaf(x.astype(g.choose([np.float32, np.float64])))])
    if op == "MurmurHash3":
        d = g.choose([np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64])
        x = g.new(d, g.shape(int(g.rng.integers(1, 3))), -99, 99)
        return put(g, op, [x], seed=g.choose([None, 0, 42, 2**31 - 1]), positive=g.choose([None, 0]))
    ids = g.leaf(g.rng.integers(0, 4, (g.choose([1, 3]), g.choose([2, 6, 9]))).astype(np.int64))
    return put(g, op, [ids, g.new(F32, (g.values[ids].shape[0], 4))], ngram_size=g.choose([1, 2, 3]))


def looked_up(g: Graph, op: str) -> Any:
    """GatherBlockQuantized of bytes with two codes of four bits in each."""
    rows, block = g.choose([3, 8]), g.choose([16, 32])
    width = block * g.choose([1, 2, 3])
    data = g.leaf(g.rng.integers(0, 256, (rows, width // 2)).astype(np.uint8), True)
    at = g.leaf(g.rng.integers(-rows, rows, g.shape(int(g.rng.integers(0, 3)))).astype(g.choose([np.int64, np.int32])))
    reads = [data, at, g.leaf(g.rng.uniform(0.01, 0.2, (rows, width // block)).astype(np.float32), True)]
    reads += [g.leaf(g.rng.integers(0, 256, (rows, -(-width // block // 2))).astype(np.uint8), True)] if g.chance(0.5) else []  # fmt: skip
    return put(g, op, reads, bits=4, block_size=block, gather_axis=0, quantize_axis=1)


_BY_MAKER: dict[Callable[[Graph, str], Any], Sequence[str]] = {
    smooth: ("Gelu", "FastGelu", "QuickGelu", "BiasGelu"),
    skip_norm: ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"),
    embed: ("EmbedLayerNormalization",), fused_matmul: ("FusedMatMul",), fused_gemm: ("FusedGemm",), fused_conv: ("FusedConv",),
    of_codes: ("MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QGemm", "MatMulInteger16"), in_blocks: ("MatMulNBits",),
    on_codes: ("QLinearAdd", "QLinearMul", "QLinearWhere", "QLinearConcat", "QLinearSoftmax", "QLinearLeakyRelu", "QLinearSigmoid"),
    pooled: ("QLinearAveragePool", "QLinearGlobalAveragePool", "NhwcMaxPool"),
    multi_head: ("MultiHeadAttention",), fused_attention: ("Attention",), rotary: ("RotaryEmbedding",),
    grouped: ("GroupQueryAttention",), distances: ("CDist",), cropped: ("CropAndResize",), looked_up: ("GatherBlockQuantized",),
    moved: ("ExpandDims", "UnfoldTensor", "Unique", "Inverse", "MurmurHash3", "NGramRepeatBlock"),
}  # fmt: skip


def _named(maker: Callable[[Graph, str], Any], op: str) -> Callable[[Graph, str], Any]:
    return lambda g, _: maker(g, op)


CONTRIB: dict[str, Any] = {
    f"microsoft.{op}": _named(maker, op) for maker, operators in _BY_MAKER.items() for op in operators
}
