"""Layers with a state instead of a cache: agreement with onnxruntime on the same node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from building import on_threads
from onnx import ModelProto, TensorProto, helper

import occ
from occ.compiler.diagnostics import CompileError
from occ.compiler.native_entry.read_routines import host_steps

RNG = np.random.default_rng(31)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def node_of(op: str, given: Mapping[str, np.ndarray | None], results: Sequence[str], **attrs: Any) -> ModelProto:
    """A node of com.microsoft whose operands are all inputs; None is left out."""
    node = helper.make_node(
        op, [k if v is not None else "" for k, v in given.items()], results, domain="com.microsoft", **attrs
    )
    infos = [helper.make_tensor_value_info(k, TensorProto.FLOAT, v.shape) for k, v in given.items() if v is not None]
    outs = [helper.make_tensor_value_info(k, TensorProto.FLOAT, None) for k in results]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph([node], op, infos, outs), opset_imports=opsets, ir_version=10)


N, LENGTH, CHANNELS = 2, 5, 6
CONVOLUTIONS: dict[str, tuple[dict[str, np.ndarray | None], dict[str, Any]]] = {
    "with a state": (
        {"x": normal(N, CHANNELS, LENGTH), "w": normal(CHANNELS, 1, 3), "b": None, "past": normal(N, CHANNELS, 2)}, {},
    ),
    "from the start, silu": (
        {"x": normal(N, CHANNELS, 1), "w": normal(CHANNELS, 1, 4), "b": normal(CHANNELS), "past": None},
        {"activation": "silu"},
    ),
    "dilated": (
        {"x": normal(N, CHANNELS, LENGTH), "w": normal(CHANNELS, 1, 3), "b": None, "past": normal(N, CHANNELS, 6)},
        {"dilation": 3},
    ),
    "channels last": (
        {"x": normal(N, LENGTH, 2, 3), "w": normal(6, 1, 3), "b": normal(6), "past": normal(N, 2, 2, 3)},
        {"channels_last": 1, "activation": "swish"},
    ),
}  # fmt: skip

H = 2  # heads of queries
ATTENTIONS: dict[str, tuple[dict[str, np.ndarray | None], dict[str, Any]]] = {
    "a state for each head of queries": (
        {"q": normal(1, 3, 2 * 4), "k": normal(1, 3, 2 * 4), "v": normal(1, 3, 2 * 6), "past": normal(1, 2, 4, 6),
         "decay": -np.abs(normal(1, 3, 2)), "beta": np.abs(normal(1, 3, 2)) / 4},
        {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "gated_delta"},
    ),
    "queries that share a state": (
        {"q": normal(2, 3, 4 * 4), "k": normal(2, 3, 2 * 4), "v": normal(2, 3, 2 * 6), "past": None},
        {"q_num_heads": 4, "kv_num_heads": 2, "update_rule": "linear", "scale": 0.3},
    ),
    "states that share queries and keys": (
        {"q": normal(2, 3, 2 * 4), "k": normal(2, 3, 2 * 4), "v": normal(2, 3, 4 * 6), "past": normal(2, 4, 4, 6),
         "decay": -np.abs(normal(2, 3, 4)), "beta": np.abs(normal(2, 3, 4)) / 4},
        {"q_num_heads": 2, "kv_num_heads": 4, "update_rule": "gated_delta"},
    ),
}  # fmt: skip

OTHERS: dict[str, tuple[str, dict[str, np.ndarray | None], list[str], dict[str, Any]]] = {
    "gate": (
        "LinearAttentionGate",
        {"a": normal(2, 3, 4), "bias": normal(4), "factor": -np.abs(normal(4)), "b": normal(2, 3, 4)},
        ["decay", "beta"], {},
    ),
    "decay alone": (
        "LinearAttentionGate", {"a": normal(2, 3, 4), "bias": normal(4), "factor": normal(4)}, ["decay"], {},
    ),
    "norm of heads": ("GatedRMSNorm", {"x": normal(2, 3, 8), "scale": normal(4), "gate": normal(2, 3, 8)}, ["y"], {}),
    "norm, sigmoid": (
        "GatedRMSNorm", {"x": normal(2, 8), "scale": normal(8), "gate": normal(2, 8)}, ["y"],
        {"activation": "sigmoid", "epsilon": 0.1},
    ),
}  # fmt: skip

CASES = {
    **{k: ("CausalConvWithState", v, ["y", "state"], a) for k, (v, a) in CONVOLUTIONS.items()},
    **{k: ("LinearAttention", v, ["y", "state"], a) for k, (v, a) in ATTENTIONS.items()},
    **OTHERS,
}


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["interp", "cpu-jit", "cpu"])
@pytest.mark.parametrize("case", CASES)
def test_layer_gives_what_onnxruntime_gives(case: str, target: str) -> None:
    op, given, results, attrs = CASES[case]
    model = node_of(op, given, results, **attrs)
    feed = {k: v for k, v in given.items() if v is not None}
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    got = occ.compile(model, target).run(feed)
    for name, value in zip(results, wanted, strict=True):
        np.testing.assert_allclose(got[name], value, rtol=2e-5, atol=2e-6, err_msg=name)  # f32 in another order


@pytest.mark.parametrize("case", CASES)
def test_in_native_code(case: str) -> None:
    """Steps of LinearAttention lay along the second axis, which kept the whole model from being compiled."""
    op, given, results, attrs = CASES[case]
    model = node_of(op, given, results, **attrs)
    artifact = occ.build(model, "cpu-jit")
    assert not host_steps(artifact.manifest)
    feed = {k: v for k, v in given.items() if v is not None}
    wanted = occ.compile(model, "interp").run(feed).values()
    for session in on_threads(artifact):
        for a, b in zip(session.run(feed).values(), wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("op", ["CausalConvWithState", "LinearAttention"])
def test_window_of_states_is_an_error_that_names_it(op: str) -> None:
    given, attrs = CONVOLUTIONS["with a state"] if op[0] == "C" else ATTENTIONS["queries that share a state"]
    with pytest.raises(CompileError, match="state_window=2"):
        occ.compile(node_of(op, given, ["y", "state"], **attrs, state_window=2), "interp")
