"""com.microsoft operators: agreement with onnxruntime on the same node, on random data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, helper, numpy_helper

import occ
from occ.compiler.ir.dtype import from_numpy

RNG = np.random.default_rng(7)
Arrays = Mapping[str, np.ndarray]


def f32(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (RNG.normal(size=shape) * scale).astype(np.float32)


def u8(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def i8(*shape: int) -> np.ndarray:
    return RNG.integers(-128, 128, shape).astype(np.int8)


def s(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def z(value: int, dtype: type = np.uint8) -> np.ndarray:
    return np.array(value, dtype)


def model(name: str, operands: Arrays, attrs: Mapping[str, Any], n: int, constant: tuple[str, ...]) -> ModelProto:
    """One node; operands whose name is `_...` are absent, and those in `constant` are weights."""
    names = ["" if k.startswith("_") else k for k in operands]
    outputs = [f"y{k}" for k in range(n)]
    domain = "" if name == "SimplifiedLayerNormalization" else "com.microsoft"
    node = helper.make_node(name, names, outputs, domain=domain, **attrs)
    given = {k: v for k, v in operands.items() if not k.startswith("_")}
    infos = [
        helper.make_tensor_value_info(k, from_numpy(v.dtype).onnx, v.shape)
        for k, v in given.items()
        if k not in constant
    ]
    graph = helper.make_graph(
        [node], name, infos, [helper.make_empty_tensor_value_info(o) for o in outputs],
        [numpy_helper.from_array(given[k], k) for k in constant],
    )  # fmt: skip
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)], ir_version=9
    )


QUANT = {
    "a": u8(2, 3, 4),
    "as": s(0.02),
    "az": z(120),
    "b": u8(3, 4),
    "bs": s(0.03),
    "bz": z(3),
    "cs": s(0.05),
    "cz": z(9),
}
UNARY = {"x": u8(2, 5, 6), "xs": s(0.05), "xz": z(128), "ys": s(0.03), "yz": z(100)}
IMAGE = {"x": u8(1, 3, 7, 8), "xs": s(0.05), "xz": z(128), "ys": s(0.03), "yz": z(100)}
HIDDEN = {"x": f32(2, 3, 8), "skip": f32(2, 3, 8), "gamma": f32(8), "beta": f32(8), "bias": f32(8)}
QKV = {"q": f32(2, 3, 16), "k": f32(2, 5, 16), "v": f32(2, 5, 16)}
GQA = {
    "q": f32(2, 1, 64), "k": f32(2, 1, 32), "v": f32(2, 1, 32), "pk": f32(2, 2, 6, 16), "pv": f32(2, 2, 6, 16),
    "lens": np.array([6, 6], np.int32), "total": np.array(7, np.int32), "cos": f32(16, 8), "sin": f32(16, 8),
}  # fmt: skip
GQA_PROMPT = {
    "q": f32(2, 5, 64), "k": f32(2, 5, 32), "v": f32(2, 5, 32), "_pk": f32(), "_pv": f32(),
    "lens": np.array([4, 4], np.int32), "total": np.array(5, np.int32), "cos": f32(16, 8), "sin": f32(16, 8),
}  # fmt: skip
LSTM = {
    "x": f32(5, 2, 6), "w": i8(1, 6, 16), "r": i8(1, 4, 16), "b": f32(1, 32), "_l": f32(), "_h": f32(), "_c": f32(), "_p": f32(),
    "ws": np.array([0.01], np.float32), "wz": np.zeros(1, np.int8), "rs": np.array([0.02], np.float32), "rz": np.zeros(1, np.int8),
}  # fmt: skip
LSTM_BOTH = {
    "x": f32(4, 3, 6), "w": u8(2, 6, 20), "r": u8(2, 5, 20), "b": f32(2, 40), "_l": f32(), "h": f32(2, 3, 5),
    "c": f32(2, 3, 5), "p": f32(2, 15), "ws": f32(2, 20) ** 2 * 0.01 + 0.001, "wz": np.full((2, 20), 128, np.uint8),
    "rs": f32(2, 20) ** 2 * 0.01 + 0.001, "rz": np.full((2, 20), 128, np.uint8),
}  # fmt: skip
POOL = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
# name -> (operator, operands, attributes, number of results, largest difference); one quantum where results are u8
CASES: dict[str, tuple[str, Arrays, dict[str, Any], int, float]] = {
    "qlinear-add": ("QLinearAdd", QUANT, {}, 1, 1),
    "qlinear-mul": ("QLinearMul", QUANT, {}, 1, 1),
    "qlinear-leaky-relu": ("QLinearLeakyRelu", UNARY, {"alpha": 0.2}, 1, 1),
    "qlinear-sigmoid": ("QLinearSigmoid", UNARY | {"ys": s(1 / 256), "yz": z(0)}, {}, 1, 1),
    "qlinear-softmax": ("QLinearSoftmax", UNARY | {"ys": s(1 / 256), "yz": z(0)}, {"opset": 13, "axis": -1}, 1, 1),
    "qlinear-where": (
        "QLinearWhere",
        {"when": RNG.integers(0, 2, (2, 3, 4)).astype(bool), "x": u8(2, 3, 4), "xs": s(0.02), "xz": z(120),
         "y": u8(3, 1), "ys": s(0.03), "yz": z(7), "zs": s(0.04), "zz": z(90)},
        {}, 1, 1,
    ),
    "quantize-16": ("QuantizeLinear", {"x": f32(3, 5), "s": s(1e-4), "z": z(300, np.uint16)}, {}, 1, 0),
    "quantize-axis": ("QuantizeLinear", {"x": f32(3, 5), "s": f32(5) ** 2 + 0.1, "z": i8(5)}, {}, 1, 0),
    "dequantize-16": ("DequantizeLinear", {"x": RNG.integers(-9999, 9999, (3, 5)).astype(np.int16), "s": s(0.01), "z": z(-7, np.int16)}, {}, 1, 0),
    "dequantize-axis": ("DequantizeLinear", {"x": u8(3, 5), "s": f32(3), "z": u8(3)}, {"axis": 0}, 1, 0),
    "qlinear-global-average": ("QLinearGlobalAveragePool", IMAGE, {}, 1, 1),
    "qlinear-average": ("QLinearAveragePool", IMAGE, POOL, 1, 1),
    "qlinear-average-include": ("QLinearAveragePool", IMAGE, POOL | {"count_include_pad": 1}, 1, 1),
    "qlinear-conv-channels-last": (
        "QLinearConv",
        {"x": u8(1, 7, 8, 3), "xs": s(0.02), "xz": z(120), "w": i8(5, 3, 3, 3), "ws": f32(5) ** 2 * 0.01 + 0.001, "wz": np.zeros(5, np.int8),
         "ys": s(0.3), "yz": z(128), "b": RNG.integers(-99, 99, (5,)).astype(np.int32)},
        {"channels_last": 1, "strides": [2, 1], "pads": [1, 0, 1, 1]}, 1, 1,
    ),
    "qlinear-conv": (
        "QLinearConv",
        {"x": u8(2, 4, 9), "xs": s(0.02), "xz": z(3), "w": u8(6, 2, 3), "ws": s(0.01), "wz": z(99), "ys": s(0.1), "yz": z(7)},
        {"group": 2}, 1, 1,
    ),
    "qlinear-concat": (
        "QLinearConcat",
        {"ys": s(0.04), "yz": z(100), "a": u8(2, 3), "as": s(0.02), "az": z(4), "b": u8(2, 2), "bs": s(0.05), "bz": z(77)},
        {"axis": 1}, 1, 1,
    ),
    "qgemm": (
        "QGemm",
        {"a": u8(3, 8), "as": s(0.02), "az": z(120), "b": i8(5, 8), "bs": f32(5) ** 2 + 0.01, "bz": np.zeros(5, np.int8),
         "c": RNG.integers(-99, 99, (5,)).astype(np.int32), "ys": s(0.3), "yz": z(128)},
        {"transB": 1}, 1, 1,
    ),
    "qgemm-float": (
        "QGemm", {"a": u8(3, 8), "as": s(0.02), "az": z(120), "b": u8(8, 5), "bs": s(0.01), "bz": z(100)}, {"alpha": 0.5}, 1, 1e-4
    ),
    "dynamic-matmul": ("DynamicQuantizeMatMul", {"a": f32(3, 8), "b": i8(8, 5), "bs": s(0.1), "bz": z(3, np.int8), "bias": f32(5)}, {}, 1, 2e-3),
    "matmul-integer-to-float": (
        "MatMulIntegerToFloat",
        {"a": u8(3, 8), "b": i8(8, 5), "as": s(0.1), "bs": f32(5) ** 2, "az": z(100), "_bz": f32(), "bias": f32(5)}, {}, 1, 1e-3,
    ),
    "nbits": ("MatMulNBits", {"a": f32(3, 64), "b": u8(6, 2, 16), "scales": f32(12)}, {"K": 64, "N": 6, "bits": 4, "block_size": 32}, 1, 1e-3),
    "nbits-zero-points": (
        "MatMulNBits", {"a": f32(2, 3, 80), "b": u8(6, 5, 8), "scales": f32(30), "zp": u8(18)},
        {"K": 80, "N": 6, "bits": 4, "block_size": 16}, 1, 1e-3,
    ),
    "fused-matmul": ("FusedMatMul", {"a": f32(2, 4, 3), "b": f32(2, 5, 4)}, {"transA": 1, "transB": 1, "alpha": 0.5}, 1, 1e-5),
    "fused-matmul-batch": ("FusedMatMul", {"a": f32(3, 2, 4), "b": f32(2, 4, 5)}, {"transBatchA": 1}, 1, 1e-5),
    "transpose-matmul": ("TransposeMatMul", {"a": f32(2, 4, 3), "b": f32(2, 5, 4)}, {"transA": 1, "transB": 1, "alpha": 0.5}, 1, 1e-5),
    "expand-dims": ("ExpandDims", {"x": f32(2, 3), "axis": np.array(-1, np.int32)}, {}, 1, 0),
    "expand-dims-0": ("ExpandDims", {"x": f32(0, 3), "axis": np.array(1, np.int32)}, {}, 1, 0),
    "cdist": ("CDist", {"a": f32(3, 4), "b": f32(5, 4)}, {"metric": "euclidean"}, 1, 1e-5),
    "cdist-squares": ("CDist", {"a": f32(1, 7), "b": f32(2, 7)}, {"metric": "sqeuclidean"}, 1, 1e-4),
    "nhwc-max-pool": ("NhwcMaxPool", {"x": u8(2, 7, 5, 3)}, {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}, 1, 0),
    "nhwc-max-pool-line": ("NhwcMaxPool", {"x": i8(1, 9, 2)}, {"kernel_shape": [3], "dilations": [2]}, 1, 0),
    "fused-conv-hard-swish": (
        "FusedConv", {"x": f32(1, 3, 6, 6), "w": f32(4, 3, 3, 3), "b": f32(4)},
        {"activation": "HardSwish", "activation_params": [1 / 6, 0.5]}, 1, 1e-4,
    ),
    "fused-conv": ("FusedConv", {"x": f32(1, 3, 6, 6), "w": f32(4, 3, 3, 3), "b": f32(4), "z": f32(1, 4, 4, 4)}, {"activation": "Relu"}, 1, 1e-4),
    "fused-conv-clip": (
        "FusedConv", {"x": f32(1, 3, 6, 6), "w": f32(4, 3, 3, 3), "b": f32(4)},
        {"activation": "Clip", "activation_params": [-0.5, 0.5]}, 1, 1e-4,
    ),
    "fused-gemm": ("FusedGemm", {"a": f32(3, 4), "b": f32(4, 5), "c": f32(5)}, {"activation": "LeakyRelu", "activation_alpha": 0.2}, 1, 1e-5),
    "gelu": ("Gelu", {"x": f32(3, 4)}, {}, 1, 1e-5),
    "bias-gelu": ("BiasGelu", {"x": f32(3, 4), "b": f32(4)}, {}, 1, 1e-5),
    "fast-gelu": ("FastGelu", {"x": f32(3, 4), "b": f32(4)}, {}, 1, 1e-5),
    "quick-gelu": ("QuickGelu", {"x": f32(3, 4)}, {"alpha": 1.5}, 1, 1e-5),
    "skip-norm": ("SkipLayerNormalization", HIDDEN, {"epsilon": 1e-5}, 1, 1e-4),
    "skip-rms": ("SkipSimplifiedLayerNormalization", {k: v for k, v in HIDDEN.items() if k != "beta"}, {"epsilon": 1e-5}, 1, 1e-4),
    "rms": ("SimplifiedLayerNormalization", {"x": f32(2, 3, 8), "scale": f32(8)}, {"axis": -1}, 1, 1e-4),
    "embed": (
        "EmbedLayerNormalization",
        {"ids": RNG.integers(0, 9, (2, 4)).astype(np.int32), "seg": RNG.integers(0, 2, (2, 4)).astype(np.int32),
         "words": f32(9, 8), "positions": f32(5, 8), "segments": f32(2, 8), "gamma": f32(8), "beta": f32(8),
         "mask": np.array([[1, 1, 2, 0], [1, 1, 0, -1]], np.int32)},
        {"epsilon": 1e-5}, 2, 1e-4,
    ),
    "qembed": (
        "QEmbedLayerNormalization",
        {"ids": RNG.integers(0, 9, (2, 4)).astype(np.int32), "seg": RNG.integers(0, 2, (2, 4)).astype(np.int32),
         "words": u8(9, 8), "positions": u8(5, 8), "segments": u8(2, 8), "gamma": u8(8), "beta": u8(8),
         "mask": np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32), "ws": s(0.02), "ps": s(0.01), "ss": s(0.03), "gs": s(0.01),
         "bs": s(0.02), "wz": z(120), "pz": z(90), "sz": z(8), "gz": z(0), "bz": z(100)},
        {"epsilon": 1e-5}, 2, 1e-4,
    ),
    "attention": ("Attention", {"x": f32(2, 4, 12), "w": f32(12, 24, scale=0.3), "b": f32(24)}, {"num_heads": 2}, 1, 1e-4),
    "attention-mask": (
        "Attention", {"x": f32(2, 4, 12), "w": f32(12, 24, scale=0.3), "b": f32(24), "m": np.array([[1, 1, 1, 0], [1, 0, 1, 1]], np.int32)},
        {"num_heads": 2}, 1, 1e-4,
    ),
    "attention-past": (
        "Attention", {"x": f32(2, 2, 12), "w": f32(12, 24, scale=0.3), "b": f32(24), "_m": f32(), "past": f32(2, 2, 2, 3, 4)},
        {"num_heads": 2, "unidirectional": 1}, 2, 1e-4,
    ),
    "qattention": (
        "QAttention",
        {"x": u8(2, 4, 12), "w": i8(12, 24), "b": f32(24), "xs": s(0.02), "ws": s(0.005), "m": np.array([4, 2], np.int32),
         "xz": z(128), "wz": z(0, np.int8)},
        {"num_heads": 2}, 1, 1e-3,
    ),
    "multi-head": ("MultiHeadAttention", QKV, {"num_heads": 2}, 1, 1e-4),
    "multi-head-lengths-and-starts": (
        "MultiHeadAttention", QKV | {"_b": f32(), "m": np.array([2, 5, 0, 3, 6, 0, 5, 10], np.int32)}, {"num_heads": 2}, 1, 1e-4,
    ),
    "multi-head-mask-below-0": (
        "MultiHeadAttention", QKV | {"_b": f32(), "m": np.array([[1, -1, 2, 0, 1], [0, 1, 1, 1, -7]], np.int32)}, {"num_heads": 2}, 1, 1e-4,
    ),
    "multi-head-in-a-shared-buffer": (
        "MultiHeadAttention",
        {"q": f32(2, 1, 16), "k": f32(2, 1, 16), "v": f32(2, 1, 16), "_b": f32(), "_m": f32(), "_s": f32(),
         "pk": f32(2, 2, 6, 8), "pv": f32(2, 2, 6, 8), "l": np.array([3], np.int32)}, {"num_heads": 2}, 3, 1e-4,
    ),
    "multi-head-in-a-shared-buffer-causal": (
        "MultiHeadAttention",
        {"q": f32(2, 1, 16), "k": f32(2, 1, 16), "v": f32(2, 1, 16), "_b": f32(), "_m": f32(), "_s": f32(),
         "pk": f32(2, 2, 6, 8), "pv": f32(2, 2, 6, 8), "l": np.array([3], np.int32)}, {"num_heads": 2, "unidirectional": 1}, 3, 1e-4,
    ),
    "multi-head-bias": ("MultiHeadAttention", QKV | {"b": f32(48), "m": np.array([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]], np.int32)}, {"num_heads": 2}, 1, 1e-4),
    "multi-head-scores": ("MultiHeadAttention", QKV | {"_b": f32(), "_m": f32(), "bias": f32(1, 2, 3, 5)}, {"num_heads": 2, "scale": 0.2}, 1, 1e-4),
    "group-query": ("GroupQueryAttention", GQA, {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}, 3, 1e-4),
    "group-query-prompt": ("GroupQueryAttention", GQA_PROMPT, {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}, 3, 1e-4),
    "group-query-window": ("GroupQueryAttention", GQA, {"num_heads": 4, "kv_num_heads": 2, "local_window_size": 3, "softcap": 5.0}, 3, 1e-4),
    "group-query-packed": (
        "GroupQueryAttention", {"q": f32(2, 1, 128), "_k": f32(), "_v": f32(), **{k: GQA[k] for k in ("pk", "pv", "lens", "total", "cos", "sin")}},
        {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}, 3, 1e-4,
    ),
    "group-query-lengths": (
        "GroupQueryAttention", GQA | {"lens": np.array([6, 3], np.int32)}, {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}, 3, 1e-4
    ),
    "group-query-interleaved": (
        "GroupQueryAttention", GQA, {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, "rotary_interleaved": 1, "scale": 0.3}, 3, 1e-4
    ),
    "group-query-window-prompt": (
        "GroupQueryAttention", GQA_PROMPT, {"num_heads": 4, "kv_num_heads": 2, "local_window_size": 2}, 3, 1e-4
    ),
    "group-query-bias": (
        "GroupQueryAttention", GQA | {"_ids": f32(), "bias": f32(1, 4, 1, 7)}, {"num_heads": 4, "kv_num_heads": 2}, 3, 1e-4
    ),
    "group-query-equal-heads": (
        "GroupQueryAttention", GQA_PROMPT | {"k": f32(2, 5, 64), "v": f32(2, 5, 64)}, {"num_heads": 4, "kv_num_heads": 4}, 3, 1e-4
    ),
    "group-query-positions": (
        "GroupQueryAttention", GQA | {"ids": np.array([[6], [6]])}, {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}, 3, 1e-4
    ),
    "group-query-part-of-a-head": (  # turns 16 of 32 elements, as many as the caches have angles for
        "GroupQueryAttention",
        {"q": f32(2, 1, 128), "k": f32(2, 1, 64), "v": f32(2, 1, 64), "pk": f32(2, 2, 6, 32), "pv": f32(2, 2, 6, 32),
         **{k: GQA[k] for k in ("lens", "total", "cos", "sin")}},
        {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}, 3, 1e-4,
    ),
    "group-query-smooth": (
        "GroupQueryAttention", GQA, {"num_heads": 4, "kv_num_heads": 2, "smooth_softmax": 1}, 3, 1e-4
    ),
    "group-query-sink": (
        "GroupQueryAttention", GQA | {"_ids": f32(), "_bias": f32(), "sink": f32(4)}, {"num_heads": 4, "kv_num_heads": 2}, 3, 1e-4
    ),
    "dynamic-lstm": ("DynamicQuantizeLSTM", LSTM, {"hidden_size": 4}, 3, 1e-3),
    "dynamic-lstm-both": ("DynamicQuantizeLSTM", LSTM_BOTH, {"hidden_size": 5, "direction": "bidirectional"}, 3, 1e-3),
    "rotary": (
        "RotaryEmbedding", {"x": f32(2, 3, 16), "p": np.array([[0, 1, 2], [3, 4, 5]]), "cos": f32(9, 4), "sin": f32(9, 4)}, {}, 1, 1e-5
    ),
    "rotary-sections": (
        "MRotaryEmbedding", {"x": f32(2, 3, 32), "p": RNG.integers(0, 9, (3, 2, 3)), "cos": f32(9, 8), "sin": f32(9, 8)},
        {"mrope_section": [4, 2, 2], "num_heads": 2}, 1, 1e-5,
    ),
    "rotary-sections-in-turn": (
        "MRotaryEmbedding", {"x": f32(2, 2, 3, 32), "p": RNG.integers(0, 9, (3, 2, 3)), "cos": f32(9, 8), "sin": f32(9, 8)},
        {"mrope_section": [3, 3, 2], "mrope_layout": 1, "rotary_embedding_dim": 16, "num_heads": 2}, 1, 1e-5,
    ),
    "scaled-silu": ("ScaledSiLU", {"x": f32(3, 4)}, {"alpha": 1.7}, 1, 1e-6),
    "scaled-silu-by-a-number": ("ScaledSiLU", {"x": f32(3, 4), "by": s(0.3)}, {}, 1, 1e-6),
    "branch-norm": ("BranchwiseRMSNorm", {"x": f32(2, 3, 4, 8), "scale": f32(4, 8)}, {}, 1, 1e-5),
    "branch-norm-flat": ("BranchwiseRMSNorm", {"x": f32(2, 3, 32), "scale": f32(32)}, {"num_branches": 4, "epsilon": 0.1}, 1, 1e-5),
    "branch-norm-one-scale": ("BranchwiseRMSNorm", {"x": f32(5, 16), "scale": f32(8)}, {"num_branches": 2}, 1, 1e-5),
    "branch-norm-alone": ("BranchwiseRMSNorm", {"x": f32(5, 2, 8)}, {}, 1, 1e-5),
    "pre-mix": ("HyperConnectionPreMix", {"x": f32(2, 3, 4, 8), "gate": f32(2, 3, 4)}, {"reduction_scale": 0.5}, 1, 1e-5),
    "pre-mix-of-features": ("HyperConnectionPreMix", {"x": f32(2, 3, 32), "gate": f32(2, 3, 32)}, {"num_branches": 4}, 1, 1e-5),
    "pre-mix-of-columns": ("HyperConnectionPreMix", {"x": f32(2, 4, 8), "gate": f32(2, 4, 1)}, {}, 1, 1e-5),
    "post-mix": ("HyperConnectionPostMix", {"x": f32(2, 3, 4, 8), "y": f32(2, 3, 8), "gate": f32(2, 3, 4), "mix": f32(2, 3, 4, 4)}, {}, 1, 1e-5),
    "post-mix-flat": ("HyperConnectionPostMix", {"x": f32(3, 32), "y": f32(3, 8), "gate": f32(3, 4, 8)}, {"num_branches": 4}, 1, 1e-5),
    "engram-gate": (
        "EngramGate",
        {"k": f32(2, 3, 4, 8), "q": f32(2, 3, 4, 8), "v": f32(2, 3, 8), "ks": f32(4, 8), "qs": f32(4, 8), "cs": f32(4, 8)}, {}, 2, 1e-4,
    ),
    "engram-gate-alone": ("EngramGate", {"k": f32(1, 3, 2, 8), "q": f32(1, 3, 2, 8), "v": f32(1, 3, 8), "ks": f32(2, 8), "qs": f32(2, 8)}, {}, 1, 1e-5),
    "gated-add": ("GatedAdd", {"x": f32(2, 3, 4), "y": f32(2, 3, 4), "gate": f32(2, 3, 1)}, {}, 1, 1e-6),
    "rotary-offset": ("RotaryEmbedding", {"x": f32(2, 2, 3, 8), "p": np.array([2]), "cos": f32(9, 4), "sin": f32(9, 4)}, {"interleaved": 1}, 1, 1e-5),
}  # fmt: skip
# onnxruntime takes scales and zero points of these as constants only
WEIGHTS = {
    "QLinearConv",
    "QLinearLeakyRelu",
    "QLinearSigmoid",
    "QLinearSoftmax",
    "MatMulNBits",
    "QAttention",
    "QLinearConcat",
}
QUANT_WEIGHTS = {"DynamicQuantizeLSTM": ("w", "r", "ws", "wz", "rs", "rz")}

CONSTANT = ("total", "axis")  # what decides shapes


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
@pytest.mark.parametrize("case", CASES)
def test_contrib_operator_gives_what_onnxruntime_gives(case: str, target: str) -> None:
    name, operands, attrs, n, most = CASES[case]
    given = {k: v for k, v in operands.items() if not k.startswith("_")}
    weights = QUANT_WEIGHTS.get(name, [k for k in given if k not in ("x", "a")] if name in WEIGHTS else ())
    constant = tuple(k for k in given if k in weights or k in CONSTANT)
    made = model(name, operands, attrs, n, constant)
    feed = {k: v for k, v in given.items() if k not in constant}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # or rows of a batch would be quantised apart, each thread its own
    expected = onnxruntime.InferenceSession(made.SerializeToString(), options).run(None, feed)
    got = list(occ.compile(made, target).run(feed).values())
    for x, y in zip(got, expected, strict=True):
        assert x.dtype == y.dtype
        assert x.shape == y.shape
        np.testing.assert_allclose(x.astype(np.float64), y.astype(np.float64), rtol=0, atol=most)
