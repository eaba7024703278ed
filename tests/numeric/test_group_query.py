"""GroupQueryAttention over caches of codes, with norms and with its scores as output: agreement with onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, NodeProto, helper, numpy_helper

import occ
from occ.compiler.diagnostics import CompileError
from occ.compiler.ir.dtype import F32, from_numpy
from occ.runtime.errors import RunError

RNG = np.random.default_rng(41)
HEADS, GROUPS, SIZE = 4, 2, 16
OPERANDS = ["q", "k", "v", "pk", "pv", "lens", "total", "cos", "sin", "ids", "bias", "sink", "ks", "vs", "qn", "kn"]
PRESENT = ["y", "nk", "nv"]  # onnxruntime omits the past if it does not return the present
TARGETS = ["interp", "cpu-jit", "cpu"]


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def attention(given: Mapping[str, Any], results: Sequence[str], **attrs: Any) -> NodeProto:
    return helper.make_node(
        "GroupQueryAttention", [k if k in given else "" for k in OPERANDS], results, domain="com.microsoft",
        num_heads=HEADS, kv_num_heads=GROUPS, **attrs,
    )  # fmt: skip


def model_of(nodes: Sequence[NodeProto], feed: Mapping[str, np.ndarray], results: Mapping[str, int]) -> ModelProto:
    infos = [
        helper.make_tensor_value_info(k, from_numpy(v.dtype).onnx, v.shape) for k, v in feed.items() if k != "total"
    ]
    outs = [helper.make_tensor_value_info(k, kind, None) for k, kind in results.items()]
    graph = helper.make_graph(nodes, "attention", infos, outs, [numpy_helper.from_array(feed["total"], "total")])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def projected(n: int, length: int, past: int, lens: Sequence[int] | None = None) -> dict[str, np.ndarray]:
    """Queries, keys, values and lengths of `n` rows, `past` keys after which there are `length` new ones."""
    found = {
        "q": normal(n, length, HEADS * SIZE),
        "k": normal(n, length, GROUPS * SIZE),
        "v": normal(n, length, GROUPS * SIZE),
    }
    ends = np.full(n, past + length - 1) if lens is None else np.array(lens)
    return found | {"lens": ends.astype(np.int32), "total": np.array(past + length, np.int32)}


def compared(model: ModelProto, feed: Mapping[str, np.ndarray], target: str) -> dict[str, np.ndarray]:
    """What occ computes, after its comparison with onnxruntime."""
    given = {k: v for k, v in feed.items() if k != "total"}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # the schema takes the present to be as long as the past
    wanted = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, given)
    got = occ.compile(model, target).run(given)
    for x, y in zip(got.values(), wanted, strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        if x.dtype == np.float32:
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=2e-6)
        else:
            np.testing.assert_array_equal(x, y)
    return got


# bits, kind of the scales, rows, new keys, keys before them, ends of the rows
CACHES: dict[str, tuple[int, str, int, int, int, Sequence[int] | None]] = {
    "8 bits, a step": (8, "PER_TENSOR", 1, 1, 5, None),
    "8 bits, a channel each": (8, "PER_CHANNEL", 1, 3, 4, None),
    "8 bits, rows of their own length": (8, "PER_CHANNEL", 2, 1, 6, [6, 3]),
    "8 bits, channels in a row": (8, "PER_CHANNEL, flat", 1, 2, 3, None),
    "4 bits, a step": (4, "PER_TENSOR", 1, 1, 5, None),
    "4 bits, a channel each": (4, "PER_CHANNEL", 2, 1, 4, None),
}


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CACHES)
def test_cache_of_codes(case: str, target: str) -> None:
    bits, kind, n, length, past, lens = CACHES[case]
    shape, scales = (n, GROUPS, past, SIZE * bits // 8), (1,) if kind == "PER_TENSOR" else (1, GROUPS, 1, SIZE)
    codes = [RNG.integers(0, 256, shape).astype(np.uint8) for _ in range(2)]
    held = {k: v if bits == 4 else v.view(np.int8) for k, v in zip(("pk", "pv"), codes, strict=True)}
    if kind.endswith("flat"):  # as the builder of onnxruntime-genai writes them
        kind, scales = "PER_CHANNEL", (GROUPS * SIZE,)
    by = 0.02 if bits == 8 else 0.3  # some values are beyond the largest code
    steps = {k: (RNG.uniform(0.5, 1, scales) * by).astype(np.float32) for k in ("ks", "vs")}
    feed = projected(n, length, past, lens) | held | steps
    angles = {"cos": normal(32, SIZE // 2), "sin": normal(32, SIZE // 2)}
    feed |= angles
    node = attention(
        feed, ["y", "nk", "nv"], do_rotary=1, k_quant_type=kind, v_quant_type=kind, kv_cache_bit_width=bits
    )
    code = from_numpy(held["pk"].dtype).onnx
    compared(model_of([node], feed, {"y": F32.onnx, "nk": code, "nv": code}), feed, target)


LOOKS: dict[str, dict[str, Any]] = {
    "scores": {"qk_output": 1},
    "weights": {"qk_output": 2},
    "scores within a cap and a window": {"qk_output": 1, "softcap": 1.5, "local_window_size": 3},
    "weights next to a sink": {"qk_output": 2, "smooth_softmax": 1},
}


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
@pytest.mark.parametrize("case", LOOKS)
def test_look_at_the_scores(case: str, target: str) -> None:
    feed = projected(1, 3, 4) | {"pk": normal(1, GROUPS, 4, SIZE), "pv": normal(1, GROUPS, 4, SIZE)}
    node = attention(feed, ["y", "nk", "nv", "qk"], **LOOKS[case])
    got = compared(model_of([node], feed, {"y": F32.onnx, "qk": F32.onnx}), feed, target)
    assert got["qk"].shape == (1, HEADS, 3, 7)


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_norms_of_queries_and_keys_are_those_of_nodes_before_it(target: str) -> None:
    """onnxruntime's CPU takes them as nodes alone, which its optimiser makes operands for GPUs."""
    feed = projected(1, 3, 4) | {"pk": normal(1, GROUPS, 4, SIZE), "pv": normal(1, GROUPS, 4, SIZE)}
    feed |= {"cos": normal(32, SIZE // 2), "sin": normal(32, SIZE // 2), "qn": normal(SIZE), "kn": normal(SIZE)}
    inside = attention(feed, PRESENT, do_rotary=1, qk_norm_epsilon=0.01)
    nodes, held = [], []
    for name, heads in (("q", HEADS), ("k", GROUPS)):
        for k, shape in enumerate(((1, 3, heads, SIZE), (1, 3, heads * SIZE))):
            held.append(numpy_helper.from_array(np.array(shape), f"{name}_shape{k}"))
        nodes += [
            helper.make_node("Reshape", [name, f"{name}_shape0"], [f"{name}0"]),
            helper.make_node(
                "SimplifiedLayerNormalization", [f"{name}0", f"{name}n"], [f"{name}1"], axis=-1, epsilon=0.01
            ),
            helper.make_node("Reshape", [f"{name}1", f"{name}_shape1"], [f"{name}2"]),
        ]
    outside = attention({k: v for k, v in feed.items() if k not in ("qn", "kn")}, PRESENT, do_rotary=1)
    outside.input[:2] = ["q2", "k2"]
    wanted = model_of([*nodes, outside], feed, {"y": F32.onnx})
    wanted.graph.initializer.extend(held)
    given = {k: v for k, v in feed.items() if k != "total"}
    exact = onnxruntime.InferenceSession(wanted.SerializeToString()).run(None, given)[0]
    got = occ.compile(model_of([inside], feed, {"y": F32.onnx}), target).run(given)["y"]
    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("without", "attrs", "says"),
    [
        ("ks", {"k_quant_type": "PER_TENSOR"}, "no k_scale"),
        ("", {"k_quant_type": "PER_ROW"}, "PER_ROW"),
        ("", {"kv_cache_bit_width": 2}, "2 bits"),
        ("cos", {"do_rotary": 1}, "no angles"),
    ],
)
def test_operands_that_do_not_fit_are_an_error_that_names_them(without: str, attrs: dict[str, Any], says: str) -> None:
    feed = projected(1, 1, 4) | {k: np.zeros((1, GROUPS, 4, SIZE), np.int8) for k in ("pk", "pv")}
    feed |= {k: np.ones(1, np.float32) for k in ("ks", "vs")} | {k: normal(32, SIZE // 2) for k in ("cos", "sin")}
    feed.pop(without, None)
    if without == "cos":
        feed.pop("sin")
    kinds = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}
    model = model_of([attention(feed, ["y"], **{**kinds, **attrs})], feed, {"y": F32.onnx})
    with pytest.raises(CompileError, match=says):
        occ.compile(model, "interp")


@pytest.mark.parametrize("target", ["interp", "cpu-jit", "ascend910b"])
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("k", (1, 1, GROUPS * SIZE // 2)),
        ("pk", (1, GROUPS, 4, 1)),
        ("pv", (1, GROUPS, 3, SIZE)),
        ("pv", (1, GROUPS, 4)),
        ("pk", (2, GROUPS, 4, SIZE)),
    ],
)
def test_keys_and_caches_of_other_extents_are_one_error(target: str, name: str, shape: tuple[int, ...]) -> None:
    feed = projected(1, 1, 4) | {k: normal(1, GROUPS, 4, SIZE) for k in ("pk", "pv")} | {name: normal(*shape)}
    what = {"k": "key", "pk": "past_key", "pv": "past_value"}[name]
    with pytest.raises(CompileError, match=f"`GroupQueryAttention`: `{what}` is of shape") as caught:
        occ.build(model_of([attention(feed, ["y"])], feed, {"y": F32.onnx}), target)
    assert len(caught.value.diagnostics) == 1


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_more_keys_than_the_cache_has_room_for_are_an_error(target: str) -> None:
    """As in a model whose caches are windows, where a caller that does not know of them gives a small one."""
    feed = projected(1, 1, 9) | {"pk": normal(1, GROUPS, 4, SIZE), "pv": normal(1, GROUPS, 4, SIZE)}
    model = model_of([attention(feed, ["y"])], feed, {"y": F32.onnx})
    compiled = occ.compile(model, target)
    with pytest.raises(RunError, match="more keys before these than its cache holds"):
        compiled.run({k: v for k, v in feed.items() if k != "total"})
