"""Unsupported forms of an operator are rejected with the node: at build time, or at run time if it depends on sizes.

onnxruntime and onnx.reference refuse each of these too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import occ
from occ.compiler.ir.dtype import from_numpy

TARGETS = ("interp", "cpu-jit")
RNG = np.random.default_rng(0)
Arrays = Mapping[str, np.ndarray]
OTHERS = {"ai.onnx.preview": 1, "com.microsoft": 1, "ai.onnx.preview.training": 1, "ai.onnx.ml": 4}


def f(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def model(
    op: str, feeds: Arrays, *, opset: int = 21, outs: int = 1, symbolic: bool = False, **attrs: Any
) -> ModelProto:
    """One node named `it`; operands whose names begin with `_` are constants, those of blanks absent."""
    domain = attrs.pop("domain", "")
    results = [f"y{k}" for k in range(outs)]
    node = helper.make_node(op, [k.strip() for k in feeds], results, name="it", domain=domain, **attrs)
    feeds = {k: v for k, v in feeds.items() if k.strip()}
    dims = lambda k, v: [f"{k}{j}" for j in range(v.ndim)] if symbolic else v.shape
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info(k, from_numpy(v.dtype).onnx, dims(k, v)) for k, v in feeds.items() if k[0] != "_"],
        [helper.make_empty_tensor_value_info(o) for o in node.output],
        [numpy_helper.from_array(v, k) for k, v in feeds.items() if k[0] == "_"],
    )  # fmt: skip
    sets = [helper.make_opsetid("", opset), *(helper.make_opsetid(n, v) for n, v in OTHERS.items())]
    return helper.make_model(graph, opset_imports=sets, ir_version=10)


def branch(op: str) -> Any:
    info = helper.make_tensor_value_info("t", TensorProto.FLOAT, None)
    return helper.make_graph([helper.make_node(op, ["x"], ["t"])], "b", [], [info])


def scan(**attrs: Any) -> ModelProto:
    of = lambda *names: [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in names]
    nodes = [helper.make_node("Add", ["s", "i"], ["so"]), helper.make_node("Identity", ["so"], ["o"])]
    body = helper.make_graph(nodes, "b", of("s", "i"), of("so", "o"))
    feeds = {"s0": f(2), "xs": f(3, 2)}
    return model("Scan", feeds, outs=2, body=body, num_scan_inputs=1, **attrs)


X, W, R = f(5, 2, 3), f(1, 16, 3), f(1, 16, 4)
LSTM = {"x": X, "w": W, "r": R}
QKV = {"q": f(2, 5, 16), "k": f(2, 5, 16), "v": f(2, 5, 16)}
LINEAR: dict[str, Any] = {"domain": "com.microsoft", "q_num_heads": 2, "kv_num_heads": 2, "outs": 2}
NONE = np.zeros(0, np.float32)
MOE = {"x": f(3, 8), "p": f(3, 4), "a": f(4, 12, 8), "b": f(4, 12), "c": f(4, 8, 12), "d": f(4, 8)}
GQA = {"q": f(1, 2, 32), "k": f(1, 2, 16), "v": f(1, 2, 16), "pk": f(1, 2, 4, 8), "pv": f(1, 2, 4, 8),
       "lens": np.array([3], np.int32)}  # fmt: skip

SHARED = {**{k: f(2, 1, 16) for k in "qkv"}, "": f(0), " ": f(0), "  ": f(0), "pk": f(2, 2, 6, 8), "pv": f(2, 2, 6, 8),
          "l": np.array([3], np.int32)}  # fmt: skip
HEADS: dict[str, Any] = {"domain": "com.microsoft", "num_heads": 2}

# By what is said of it.
AT_BUILD: dict[str, ModelProto] = {
    "rows are split in blocks": model("SpaceToDepth", {"x": f(1, 1, 3, 4)}, blocksize=2),
    "the number of channels must be a multiple of the block": model("DepthToSpace", {"x": f(1, 6, 2, 2)}, blocksize=2),
    "`Split` in 3 parts has 2 results": model("Split", {"x": f(5, 3)}, outs=2, num_outputs=3),
    "`depth` must be a single number": model("OneHot", {"i": np.array([0, 1]), "d": np.array([3, 4]), "v": f(2)}),
    "`values` of `OneHot` has shape": model("OneHot", {"i": np.array([0, 1]), "d": np.array(3), "v": f(3)}),
    "the condition of `If` must have one element": model(
        "If", {"c": np.array([False, True])}, then_branch=branch("Neg"), else_branch=branch("Exp")
    ),
    "the length of `DFT` is 0": model("DFT", {"x": f(1, 9, 1), "_l": np.array(0)}),
    "frame_step of `STFT` is 0": model("STFT", {"x": f(1, 9, 1), "_s": np.array(0), "w": f(4)}),
    "frame_length of `STFT` is 0": model("STFT", {"x": f(1, 9, 1), "_s": np.array(1), "_w": f(0), "_l": np.array(0)}),
    "`clip` of `LSTM` is 0.0": model("LSTM", LSTM, hidden_size=4, clip=0.0),
    "`activations` has 1 names, of 3": model("LSTM", LSTM, hidden_size=4, activations=["Tanh"]),
    "the activation `Nothing` is unknown": model("LSTM", LSTM, hidden_size=4, activations=["Nothing", "Tanh", "Tanh"]),
    "`scan_input_directions` of `Scan`": scan(scan_input_directions=[2]),
    "`scan_output_directions` of `Scan`": scan(scan_output_directions=[7]),
    "`scan_input_axes` of `Scan` has 2 elements": scan(scan_input_axes=[0, 0]),
    "axis 3 of `Scan`": scan(scan_input_axes=[3]),
    "axis 4 of `Scan`": scan(scan_output_axes=[4]),
    "`QuantizeLinear` to u8 has a zero point of i8": model(
        "QuantizeLinear", {"x": f(3), "_s": np.float32(1), "_z": np.int8(3)}, output_dtype=TensorProto.UINT8
    ),
    "`Z` of `FusedConv` has shape": model(
        "FusedConv", {"x": f(2, 1, 3, 3), "w": f(1, 1, 1, 1), "b": f(1), "z": f(1, 1, 3, 3)}, domain="com.microsoft"
    ),
    "the bias and the keys of attention": model(
        "MultiHeadAttention",
        {**{k: f(1, 3, 8) for k in "qkv"}, "bb": f(24), "m": np.ones((1, 3), np.int32), "s": f(1, 2, 3, 4)},
        domain="com.microsoft",
        num_heads=2,
    ),
    "`QAttention`: w1 is not known to be a multiple of 3": model(  # whose results have another type than its operands
        "QAttention",
        {"x": np.zeros((1, 2, 4), np.uint8), "w": np.zeros((4, 12), np.uint8), "b": f(12), "xs": f(), "ws": f()},
        domain="com.microsoft",
        num_heads=2,
        symbolic=True,
    ),
    "heads of keys and of values": model(
        "Attention", {"q": f(1, 2, 3, 8), "k": f(1, 1, 3, 8), "v": f(1, 2, 3, 8)}, opset=23
    ),
    "channels and the positions of a block": model(
        "Col2Im", {"x": f(1, 5, 4), "_i": np.array([3, 3]), "_b": np.array([2, 2])}
    ),
    "a quantised product with its scales": model(
        "QLinearConv",
        {
            "x": np.zeros((1, 1, 3, 3), np.uint8),
            "xs": f(),
            "xz": np.uint8(0),
            "w": np.zeros((1, 1, 1, 1), np.uint8),
            "ws": f(2),
            "wz": np.uint8(0),
            "ys": f(),
            "yz": np.uint8(0),
        },
    ),
    "`depth` of `OneHot` has rank 2": model("OneHot", {"i": np.array([0, 1]), "d": np.array([[3]]), "v": f(2)}),
    "positions of `RotaryEmbedding` are": model(
        "RotaryEmbedding", {"x": f(2, 2, 3, 4), "c": f(5, 2), "s": f(5, 2), "p": np.array([0, 1, 2])}, opset=23
    ),
    "`kernel_shape` of `ConvTranspose` is [1,1]": model(
        "ConvTranspose", {"x": f(1, 1, 3, 3), "w": f(1, 1, 2, 2)}, kernel_shape=[1, 1]
    ),
    "`output_padding` of `ConvTranspose` has 3 entries": model(
        "ConvTranspose", {"x": f(1, 1, 3, 3), "w": f(1, 1, 2, 2)}, output_padding=[1, 1, 1], strides=[2, 2]
    ),
    "`pads` of `ConvTranspose` has 2 entries": model(
        "ConvTranspose", {"x": f(1, 1, 3, 3), "w": f(1, 1, 2, 2)}, pads=[1, 1]
    ),
    "`kernel_shape` of `DeformConv` is [1,1]": model(
        "DeformConv", {"x": f(1, 1, 3, 3), "w": f(1, 1, 2, 2), "o": f(1, 8, 2, 2)}, kernel_shape=[1, 1]
    ),
    "`hidden_size` and the columns of R": model("LSTM", LSTM, hidden_size=5),
    "`stash_type` of `LayerNormalization`": model("LayerNormalization", {"x": f(2, 3), "s": f(3)}, stash_type=2),
    "`output_dtype` of `DequantizeLinear`": model(
        "DequantizeLinear", {"x": np.int8([1, 2]), "s": np.float32(2)}, opset=23, output_dtype=TensorProto.INT8
    ),
    "`fmod` of `Mod` is -1": model("Mod", {"a": f(3), "b": f(3)}, fmod=-1),
    "`mode` of `Resize` is 'nonsense'": model(
        "Upsample", {"x": f(1, 1, 2, 2), "_s": np.float32([1, 1, 2, 2])}, opset=9, mode="nonsense"
    ),
    "`Range`: `start` is one number": model("Range", {"_a": np.array([1, 2]), "_b": np.array(5), "_c": np.array(1)}),
    "`allowzero` of `Reshape` is 2": model("Reshape", {"x": f(2, 3), "_s": np.array([6])}, allowzero=2),
    "`LabelEncoder` has keys_strings and keys_int64s, of which it takes one": model(
        "LabelEncoder",
        {"x": np.array([1, 2])},
        domain="ai.onnx.ml",
        keys_strings=["a"],
        keys_int64s=[1],
        values_floats=[1.0],
    ),
    "`LabelEncoder` has keys_strings for elements of type f32": model(
        "LabelEncoder", {"x": f(3)}, domain="ai.onnx.ml", keys_strings=["a"], values_floats=[1.0]
    ),
    "the shape of `ConstantOfShape` has rank 0": model("ConstantOfShape", {"s": np.array(3)}),
    "`StringNormalizer` takes a vector of texts": model(
        "StringNormalizer", {"x": np.array("a", object)}, stopwords=["b"]
    ),
    "`unidirectional` of `com.microsoft.MultiHeadAttention` is 2": model(
        "MultiHeadAttention", {k: f(1, 3, 8) for k in "qkv"}, domain="com.microsoft", num_heads=2, unidirectional=2
    ),
    "`Concat` of scalars": model("Concat", {"a": f(), "b": f()}, axis=0),
    "`Trilu` takes matrices": model("Trilu", {"x": f(3)}),
    "neither an operand nor the attribute `type`": model("Optional", {}, opset=18),
    "the rule 'gated_delta' and its operands": model("LinearAttention", QKV, **LINEAR),
    "`update_rule` of `LinearAttention` is 'nonsense'": model("LinearAttention", QKV, update_rule="nonsense", **LINEAR),
    "the past state has shape": model("LinearAttention", {**QKV, "p": f(2, 2, 8, 7)}, update_rule="linear", **LINEAR),
    "num_heads=4 and kv_num_heads=3": model(
        "GroupQueryAttention",
        {**GQA, "_t": np.array([4], np.int32)},
        domain="com.microsoft",
        num_heads=4,
        kv_num_heads=3,
    ),
    "`total_sequence_length` of `GroupQueryAttention` is -4": model(
        "GroupQueryAttention",
        {**GQA, "_t": np.array([-4], np.int32)},
        domain="com.microsoft",
        num_heads=4,
        kv_num_heads=2,
    ),
    "columns of router_probs": model("MoE", {**MOE, "a": f(3, 12, 8)}, domain="com.microsoft"),
    "the bias of experts has shape": model("MoE", {**MOE, "b": f(4, 11)}, domain="com.microsoft"),
    "`theta` of `AffineGrid` has shape": model("AffineGrid", {"t": f(2, 2, 2), "_s": np.array([2, 1, 3, 4])}),
    "`MaxRoiPool` reads position 4 of 4 along axis 1 of `rois`": model(
        "MaxRoiPool", {"x": f(2, 2, 6, 6), "r": f(4, 4)}, pooled_shape=[2, 2]
    ),
    "bias of `GroupNormalization`": model(
        "GroupNormalization", {"x": f(1, 8, 3), "s": f(2), "b": f(2)}, opset=18, num_groups=4
    ),
    "`Pad` takes a single number as `constant_value`": model("Pad", {"x": f(2), "_p": np.array([1, 1]), "v": NONE}),
    "`Trilu` takes a single number as `k`": model("Trilu", {"x": f(2, 2), "k": np.array([1, 2])}),
    "`Adagrad` takes a single number as `R`": model(
        "Adagrad",
        {"r": NONE, "t": np.array(1), "x": f(2), "g": f(2), "h": f(2)},
        outs=2,
        domain="ai.onnx.preview.training",
    ),
    "`shape` of `Expand` has rank 2": model("Expand", {"x": f(2), "_s": np.array([[2, 2]])}),
    "`condition` of `Compress` has rank 2": model("Compress", {"x": f(2), "c": np.array([[True, False]])}),
    "`CumSum` takes a single number as `axis`": model("CumSum", {"x": f(3), "_a": np.array([0, 0])}),
    "`CumProd` takes a single number as `axis`": model("CumProd", {"x": f(3), "_a": np.array([], np.int64)}, opset=26),
    "`K` of `TopK` has rank 0": model("TopK", {"x": f(3), "_k": np.array(2)}, outs=2),
    "`shape` of `Reshape` has rank 0": model("Reshape", {"x": f(3), "_s": np.array(3)}),
    "`axes` of `Squeeze` has rank 0": model("Squeeze", {"x": f(1, 3), "_a": np.array(0)}),
    "`split` of `Split` has rank 0": model("Split", {"x": f(3), "_s": np.array(3)}),
    "`window` of `STFT` has rank 0": model("STFT", {"x": f(1, 9, 1), "_s": np.array(1), "w": f()}),
    "`ConvInteger` takes a single number as `x_zero_point`": model(
        "ConvInteger",
        {"x": np.ones((1, 1, 3, 3), np.uint8), "w": np.ones((1, 1, 2, 2), np.uint8), "z": np.uint8([1, 1])},
    ),
    "`Dropout` takes a single number as `ratio`": model("Dropout", {"x": f(3), "r": f(2)}),
    "`case_change_action` of `StringNormalizer` is 'nonsense'": model(
        "StringNormalizer", {"x": np.array(["a"], object)}, case_change_action="nonsense"
    ),
    "`precision` of `QuantizeLinear` is i8": model(
        "QuantizeLinear", {"x": f(3), "_s": np.float32(1)}, opset=23, precision=TensorProto.INT8
    ),
    "`softmax_precision` of `FlexAttention` is not an element type": model(
        "FlexAttention", {k: f(1, 2, 3, 4) for k in "qkv"}, domain="ai.onnx.preview", softmax_precision=0
    ),
    "`output_padding` of `ConvTranspose` is [1,1]": model(
        "ConvTranspose", {"x": f(1, 1, 3, 3), "w": f(1, 1, 2, 2)}, output_padding=[1, 1]
    ),
    "`pads` of `MaxPool` are [2,0]": model("MaxPool", {"x": f(1, 1, 4)}, kernel_shape=[2], pads=[2, 0]),
    "`pads` of `AveragePool` are [0,3]": model("AveragePool", {"x": f(1, 1, 4)}, kernel_shape=[3], pads=[0, 3]),
    "`output_shape` of `MaxUnpool` is [1,1,4,0]": model(
        "MaxUnpool",
        {"x": f(1, 1, 2, 2), "i": np.zeros((1, 1, 2, 2), np.int64), "_s": np.array([1, 1, 4, 0])},
        kernel_shape=[2, 2],
        strides=[2, 2],
    ),
    "the heads of the state and of keys": model(
        "LinearAttention", QKV, update_rule="linear", **LINEAR | {"q_num_heads": 8}
    ),
    "heads of queries and of the state": model(
        "LinearAttention",
        {"q": f(1, 2, 24), "k": f(1, 2, 16), "v": f(1, 2, 16)},
        update_rule="linear",
        **LINEAR | {"q_num_heads": 3},
    ),
    "`GatedAdd`: Y has shape": model(
        "GatedAdd", {"x": f(2, 3, 4), "y": f(1, 3, 4), "g": f(2, 3, 1)}, domain="com.microsoft"
    ),
    "`GatedAdd`: the gate has shape": model(
        "GatedAdd", {"x": f(2, 3, 4), "y": f(2, 3, 4), "g": f(2, 3, 4)}, domain="com.microsoft"
    ),
    "`EngramGate`: a scale has shape [1,8]": model(
        "EngramGate",
        {"k": f(1, 3, 2, 8), "q": f(1, 3, 2, 8), "v": f(1, 3, 8), "ks": f(1, 8), "qs": f(2, 8)},
        domain="com.microsoft",
    ),
    "steps of keys and of values": model("MultiHeadAttention", SHARED | {"v": f(2, 2, 16)}, **HEADS),
    "needs causality and as many queries as new keys": model(
        "MultiHeadAttention", SHARED | {"q": f(2, 2, 16)}, unidirectional=1, **HEADS
    ),
    "`boxes` of `NonMaxSuppression` has shape": model("NonMaxSuppression", {"b": f(1, 5, 4), "s": f(1, 2, 6)}),
}
AT_BUILD["the condition of `If` must have one element"].graph.input.append(
    helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])
)

AT_RUN: dict[str, tuple[ModelProto, Arrays]] = {}


def at_run(name: str, op: str, feeds: Arrays, **attrs: Any) -> None:
    AT_RUN[name] = model(op, feeds, symbolic=True, **attrs), {k: v for k, v in feeds.items() if k[0] != "_"}


at_run("a number to pad with that is none", "Pad", {"x": f(2, 3), "_p": np.array([0, 1, 0, 1]), "v": NONE})
at_run("blocks", "SpaceToDepth", {"x": f(1, 1, 3, 4)}, blocksize=2)
at_run("channels", "DepthToSpace", {"x": f(1, 6, 2, 2)}, blocksize=2)
at_run(
    "a scale of another group", "GroupNormalization", {"x": f(1, 8, 3), "s": f(2), "b": f(2)}, opset=18, num_groups=4
)
STEPS = model("LinearAttention", QKV, update_rule="linear", **LINEAR)
for info in STEPS.graph.input:
    info.type.tensor_type.shape.dim[1].dim_param = f"steps of {info.name}"
AT_RUN["steps of the keys"] = (STEPS, {**QKV, "k": f(2, 4, 16)})
AT_RUN["expanded to another extent"] = (model("Expand", e := {"x": f(2, 3), "s": np.array([2, 4])}), e)
AT_RUN["reshaped to another count"] = (model("Reshape", r := {"x": f(2, 3), "s": np.array([7])}), r)
GROWING = helper.make_graph(
    [helper.make_node("Constant", [], ["one"], value_int=1), helper.make_node("Add", ["i", "one"], ["n"]),
     helper.make_node("Unsqueeze", ["n", "zero"], ["s"]), helper.make_node("ConstantOfShape", ["s"], ["v"]),
     helper.make_node("Identity", ["c"], ["d"])],
    "b", [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
    [helper.make_tensor_value_info("d", TensorProto.BOOL, []), helper.make_tensor_value_info("v", TensorProto.FLOAT, None)],
    [numpy_helper.from_array(np.array([0]), "zero")],
)  # fmt: skip
AT_RUN["iterations of unlike shapes"] = (model("Loop", t := {"t": np.array(3), "c": np.array(True)}, body=GROWING), t)
AT_RUN["reshaped with -1 beside 0"] = (
    model("Reshape", r := {"x": f(0, 3), "s": np.array([-1, 0])}, allowzero=1),
    r,
)
MASKED = {"x": f(2, 4, 12), "w": f(12, 24), "b": f(24), "m": np.array([-1, 2], np.int32)}
AT_RUN["a place in a mask below 0"] = (model("Attention", MASKED, **HEADS), MASKED)
AT_RUN["a size less than that of the elements"] = (
    model("MaxUnpool", u := {"x": f(1, 1, 2, 2), "i": np.zeros((1, 1, 2, 2), np.int64), "s": np.array([1, 1, 4, 0])},
          kernel_shape=[2, 2], strides=[2, 2]), u,
)  # fmt: skip
AT_RUN["a length of 0"] = (model("DFT", d := {"x": f(1, 9, 1), "l": np.array(0)}), d)


@pytest.mark.parametrize("text", AT_BUILD)
def test_refused_by_the_build(text: str) -> None:
    for target in TARGETS:
        with pytest.raises(occ.CompileError) as e:
            occ.compile(AT_BUILD[text], target=target)
        (first, *_) = e.value.diagnostics
        assert first.code in ("OCC0107", "OCC0201", "OCC0202")
        assert text in first.message
        assert "it" in first.where


@pytest.mark.parametrize("name", AT_RUN)
def test_refused_by_the_run(name: str) -> None:
    made, feeds = AT_RUN[name]
    for target in TARGETS:
        with pytest.raises(occ.RunError, match=r"OCC050[134](.|\n)*(node `it`|of the input)"):
            occ.compile(made, target=target).run(feeds)


def test_requests_that_can_be_met_still_are() -> None:
    for made, feeds, shape in (
        (model("SpaceToDepth", {"x": f(1, 1, 2, 4)}, blocksize=2, symbolic=True), {"x": f(1, 1, 2, 4)}, (1, 4, 1, 2)),
        (AT_RUN["expanded to another extent"][0], {"x": f(2, 3), "s": np.array([1, 3])}, (2, 3)),
        (AT_RUN["reshaped to another count"][0], {"x": f(2, 3), "s": np.array([6])}, (6,)),
        (AT_RUN["a length of 0"][0], {"x": f(1, 9, 1), "l": np.array(4)}, (1, 4, 2)),
    ):
        for target in TARGETS:
            assert occ.compile(made, target=target).run(feeds)["y0"].shape == shape
