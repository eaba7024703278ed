"""Valid models that were refused: forms that only old files have, extents that a run shows, labels that broadcast.

onnxruntime runs each of them, and is what results are compared with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import occ
from occ.compiler.ir.dtype import from_numpy

RNG = np.random.default_rng(0)
Arrays = Mapping[str, np.ndarray]


def f(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def model(
    op: str, feeds: Arrays, outs: Sequence[str] = ("y",), *, opset: int = 21, symbolic: bool = False, **attrs: Any
) -> ModelProto:
    """One node; operands whose names begin with `_` are constants; with `symbolic` no input has a constant extent."""
    domain = attrs.pop("domain", "")
    node = helper.make_node(op, list(feeds), list(outs), domain=domain, **attrs)
    dims = lambda k, v: [f"{k}{j}" for j in range(v.ndim)] if symbolic else v.shape
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info(k, from_numpy(v.dtype).onnx, dims(k, v)) for k, v in feeds.items() if k[0] != "_"],
        [helper.make_empty_tensor_value_info(o) for o in outs if o],
        [numpy_helper.from_array(v, k) for k, v in feeds.items() if k[0] == "_"],
    )  # fmt: skip
    sets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=10)


X, S, B, M, V = f(2, 3, 4, 5), f(3), f(3), f(3), abs(f(3))
NORM = {"x": X, "s": S, "b": B, "m": M, "v": V}
TRAINED = ("y", "mean", "var", "saved_mean", "saved_var")
MS = {"domain": "com.microsoft"}
GEMM = {"a": f(2, 3), "b": f(3, 4)}
QKV = {"q": f(1, 2, 3, 8), "k": f(1, 2, 3, 8), "v": f(1, 2, 3, 8)}
FLAT = {k: f(1, 3, 16) for k in "qkv"}
CASES: dict[str, tuple[ModelProto, Arrays]] = {
    **{
        f"five results of BatchNormalization-{opset}": (model("BatchNormalization", NORM, TRAINED, opset=opset, momentum=0.8), NORM)
        for opset in (7, 9, 13)
    },
    "an element of Einsum that broadcasts": (model("Einsum", e := {"a": f(3, 1), "b": f(2, 2)}, equation="ij,jk->ik"), e),
    "a batch of Einsum that broadcasts": (
        model("Einsum", e := {"a": f(1, 3, 2), "b": f(2, 2, 4)}, equation="bik,bkj->bij"), e,
    ),
    "three operands of Einsum": (
        model("Einsum", e := {"a": f(2, 1), "b": f(3, 1), "c": f(4, 2)}, equation="ij,jk,kl->il"), e,
    ),
    "ScaledTanh of FusedGemm": (
        model("FusedGemm", GEMM, activation="ScaledTanh", activation_alpha=0.5, activation_beta=1.5, **MS), GEMM,
    ),
    "ParametricSoftplus of FusedGemm": (
        model("FusedGemm", GEMM, activation="ParametricSoftplus", activation_alpha=0.5, activation_beta=1.5, **MS), GEMM,
    ),
    "Selu of FusedGemm": (
        model("FusedGemm", GEMM, activation="Selu", activation_alpha=1.5, activation_gamma=1.1, **MS), GEMM,
    ),
    "a grid of any extents": (
        model("GridSample", e := {"x": f(1, 2, 4, 4), "g": np.clip(f(1, 3, 3, 2), -1, 1)}, opset=20, symbolic=True), e,
    ),
    "indices of ScatterND of any extents": (
        model("ScatterND", e := {"x": f(3, 4), "i": np.array([[0], [2]]), "u": f(2, 4)}, symbolic=True), e,
    ),
    "indices of GatherND of any extents": (
        model("GatherND", e := {"x": f(3, 4), "i": np.array([[0], [2]])}, symbolic=True), e,
    ),
    "a kernel of any extents": (model("Conv", e := {"x": f(1, 2, 6, 6), "w": f(3, 2, 3, 3)}, symbolic=True), e),
    "heads of any size": (model("Attention", QKV, opset=23, symbolic=True), QKV),
    "heads of any size, and two of four results": (
        model("Attention", QKV, ("y", "", "", "scores"), opset=23, symbolic=True, qk_matmul_output_mode=3), QKV,
    ),
    "rows of heads of any size": (
        model("Attention", FLAT, opset=23, symbolic=True, q_num_heads=2, kv_num_heads=2), FLAT,
    ),
}  # fmt: skip


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
@pytest.mark.parametrize("name", CASES)
def test_they_run_as_elsewhere(name: str, target: str) -> None:
    made, feeds = CASES[name]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    expected = onnxruntime.InferenceSession(made.SerializeToString(), options).run(None, dict(feeds))
    found = occ.compile(made, target=target).run({k: v for k, v in feeds.items() if k[0] != "_"})
    for x, y in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_each_element_has_its_own_statistics(target: str) -> None:
    """BatchNormalization with `spatial` 0; onnxruntime has it, but asks for more than one result in no case."""
    shape = X.shape[1:]
    feeds = {"x": X, "s": f(*shape), "b": f(*shape), "m": f(*shape), "v": abs(f(*shape))}
    made = model("BatchNormalization", feeds, opset=7, spatial=0)
    expected = feeds["s"] * (X - feeds["m"]) / np.sqrt(feeds["v"] + 1e-5) + feeds["b"]
    np.testing.assert_allclose(occ.compile(made, target=target).run(feeds)["y"], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        onnxruntime.InferenceSession(made.SerializeToString()).run(None, feeds)[0], expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_codes_of_a_quotient_in_half_precision(target: str) -> None:
    feeds = {"x": (f(3, 4) * 30), "_s": np.float32(0.37)}
    made = model("QuantizeLinear", feeds, opset=23, precision=10, output_dtype=3)
    (expected,) = ReferenceEvaluator(made).run(None, {"x": feeds["x"]})
    np.testing.assert_array_equal(occ.compile(made, target=target).run({"x": feeds["x"]})["y"], expected)


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_distinct_rows_of_texts(target: str) -> None:
    x = np.array([["b", "a"], ["c", "a"], ["b", "a"], ["a", "z"]], object)
    made = model("Unique", {"x": x}, ("y", "first", "inverse", "counts"), axis=0)
    found = occ.compile(made, target=target).run({"x": x})
    numbers = np.unique(np.vectorize(ord)(x), return_index=True, return_inverse=True, return_counts=True, axis=0)
    assert found["y"].tolist() == [["a", "z"], ["b", "a"], ["c", "a"]]
    for name, expected in zip(("first", "inverse", "counts"), numbers[1:], strict=True):
        assert found[name].tolist() == expected.reshape(-1).tolist()


def test_a_label_that_one_operand_has_twice_does_not_broadcast() -> None:
    with pytest.raises(occ.CompileError, match="OCC0202"):
        occ.compile(model("Einsum", {"a": f(1, 3)}, equation="ii->i"), target="interp")


def test_groups_of_any_number_of_channels_on_cpu() -> None:
    """Halide did not find that a channel over the channels of a group is the number of a group."""
    made = model("GroupNormalization", {"x": f(1, 2, 3, 4), "s": f(2), "b": f(2)}, symbolic=True, num_groups=2)
    session = occ.compile(made, target="cpu")
    for shape in ((1, 2, 3, 4), (3, 6, 5, 7), (2, 34, 1, 1)):
        feeds = {"x": f(*shape), "s": f(shape[1]), "b": f(shape[1])}
        (wanted,) = ReferenceEvaluator(made).run(None, feeds)
        np.testing.assert_allclose(session.run(feeds)["y"], wanted, rtol=1e-4, atol=1e-5)
