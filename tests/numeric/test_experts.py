"""Mixtures of experts: agreement with onnxruntime on the same node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import occ
from occ.compiler.diagnostics import CompileError

RNG = np.random.default_rng(21)
EXPERTS, HIDDEN, INNER = 6, 64, 32


def expert_model(op: str, x: tuple[Any, ...], held: Mapping[str, np.ndarray | None], **attrs: Any) -> ModelProto:
    """A node of com.microsoft over `x`, of the shape given, the scores of its rows, and weights; None is left out."""
    names = ["x", "router", *(k if v is not None else "" for k, v in held.items())]
    node = helper.make_node(op, names, ["y"], domain="com.microsoft", **attrs)
    rows = "rows" if isinstance(x[0], str) else int(np.prod(x[:-1]))
    infos = [helper.make_tensor_value_info(k, TensorProto.FLOAT, s) for k, s in (("x", x), ("router", (rows, EXPERTS)))]
    weights = [numpy_helper.from_array(v, k) for k, v in held.items() if v is not None]
    if "router_weights" in held:
        weights.pop()
        infos.append(helper.make_tensor_value_info("router_weights", TensorProto.FLOAT, (rows, EXPERTS)))
    graph = helper.make_graph([node], op, infos, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def onnxruntime_gives(model: ModelProto, feed: Mapping[str, np.ndarray]) -> np.ndarray:
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, dict(feed))[0]


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def floats(fused: int = 1, bias: bool = True) -> dict[str, np.ndarray | None]:
    return {
        "w1": normal(EXPERTS, fused * INNER, HIDDEN) / 8,
        "b1": normal(EXPERTS, fused * INNER) if bias else None,
        "w2": normal(EXPERTS, HIDDEN, INNER) / 6,
        "b2": normal(EXPERTS, HIDDEN) if bias else None,
    }


SWIGLU = {"activation_type": "swiglu", "swiglu_fusion": 1}
# shape of x, weights of the first product for each row of the second, biases, attributes
MIXTURES: dict[str, tuple[tuple[int, ...], int, bool, dict[str, Any]]] = {
    "relu of one expert": ((5, HIDDEN), 1, True, {"k": 1}),
    "gelu, shares of all": ((2, 3, HIDDEN), 1, True, {"k": 2, "activation_type": "gelu"}),
    "silu, shares of the chosen": (
        (7, HIDDEN), 1, False, {"k": 3, "activation_type": "silu", "normalize_routing_weights": 1},
    ),
    "identity": ((1, HIDDEN), 1, True, {"k": 2, "activation_type": "identity"}),
    "swiglu": ((1, 4, HIDDEN), 2, True, {"k": 2, "normalize_routing_weights": 1, **SWIGLU}),
    "swiglu within limits": (
        (9, HIDDEN), 2, True, {"k": 4, "activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 0.7, **SWIGLU},
    ),
    "every expert": ((3, HIDDEN), 1, True, {"k": EXPERTS}),
}  # fmt: skip


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["interp", "cpu-jit", "cpu"])
@pytest.mark.parametrize("case", MIXTURES)
def test_mixture_gives_what_onnxruntime_gives(case: str, target: str) -> None:
    shape, fused, bias, attrs = MIXTURES[case]
    model = expert_model("MoE", shape, floats(fused, bias), **attrs)
    feed = {"x": normal(*shape), "router": normal(int(np.prod(shape[:-1])), EXPERTS)}
    got = occ.compile(model, target).run(feed)["y"]
    np.testing.assert_allclose(got, onnxruntime_gives(model, feed), rtol=1e-5, atol=2e-6)  # sums in another order


@pytest.mark.parametrize("target", ["interp", "cpu-jit", "cpu"])
@pytest.mark.parametrize(("fused", "width"), [(1, HIDDEN), (2, HIDDEN), (2, INNER)])
def test_weights_that_declare_the_shapes_of_older_files(fused: int, width: int, target: str) -> None:
    """`[experts, columns, rows]` with elements in the order of `[experts, rows, columns]`."""
    held = {"w1": normal(EXPERTS, width, fused * INNER) / 8, "b1": None, "w2": normal(EXPERTS, INNER, width) / 6}
    model = expert_model("MoE", (5, width), held, k=2, **(SWIGLU if fused > 1 else {}))
    feed = {"x": normal(5, width), "router": normal(5, EXPERTS)}
    got = occ.compile(model, target).run(feed)["y"]
    np.testing.assert_allclose(got, onnxruntime_gives(model, feed), rtol=1e-5, atol=2e-6)  # sums in another order


# bits, elements of a block (0: a row has one scale), zero points, shape of x, weights of the first product, attributes
QUANTISED: dict[str, tuple[int, int, bool, tuple[int, ...], int, dict[str, Any]]] = {
    "4 bits, rows": (4, 0, False, (5, HIDDEN), 1, {"k": 2}),
    "4 bits, rows, zero points": (4, 0, True, (5, HIDDEN), 1, {"k": 2, "activation_type": "gelu"}),
    "4 bits, blocks": (4, 32, False, (2, 3, HIDDEN), 2, {"k": 2, **SWIGLU}),
    "4 bits, blocks, zero points": (4, 16, True, (4, HIDDEN), 2, {"k": 3, **SWIGLU}),
    "8 bits, rows": (8, 0, False, (3, HIDDEN), 1, {"k": 1, "activation_type": "silu"}),
    "8 bits, blocks of 16": (8, 16, True, (3, HIDDEN), 2, {"k": 2, **SWIGLU}),
    "2 bits, blocks": (2, 16, True, (3, HIDDEN), 1, {"k": 2, "activation_type": "identity"}),
}


def codes(rows: int, k: int, bits: int, block: int, zeros: bool) -> list[np.ndarray | None]:
    """Packed codes, scales and zero points of experts."""
    scales = (EXPERTS, rows, k // block) if block else (EXPERTS, rows)
    points = (*scales[:-1], -(-scales[-1] * bits // 8))
    held = RNG.integers(0, 256, (EXPERTS, rows, k * bits // 8), np.uint8)
    steps = RNG.uniform(0.01, 0.02, scales).astype(np.float32) * (16 >> bits // 2)
    return [held, steps, RNG.integers(0, 256, points, np.uint8) if zeros else None]


def quantised(bits: int, block: int, zeros: bool, fused: int) -> dict[str, np.ndarray | None]:
    w1, s1, z1 = codes(fused * INNER, HIDDEN, bits, block, zeros)
    w2, s2, z2 = codes(HIDDEN, INNER, bits, block, zeros)
    first = {"w1": w1, "s1": s1, "b1": normal(EXPERTS, fused * INNER)}
    second = {"w2": w2, "s2": s2, "b2": normal(EXPERTS, HIDDEN), "w3": None, "s3": None, "b3": None}
    return first | second | {"z1": z1, "z2": z2, "z3": None}


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["interp", "cpu-jit", "cpu"])
@pytest.mark.parametrize("case", QUANTISED)
def test_quantised_mixture_gives_what_onnxruntime_gives(case: str, target: str) -> None:
    bits, block, zeros, shape, fused, attrs = QUANTISED[case]
    size = {"block_size": block} if block else {}
    model = expert_model("QMoE", shape, quantised(bits, block, zeros, fused), expert_weight_bits=bits, **size, **attrs)
    feed = {"x": normal(*shape), "router": normal(int(np.prod(shape[:-1])), EXPERTS)}
    got, wanted = occ.compile(model, target).run(feed)["y"], onnxruntime_gives(model, feed)
    # onnxruntime rounds activations to 8 bits where codes of blocks have 8
    most = 2e-2 if bits == 8 and block else 1e-5
    assert np.abs(got - wanted).max() <= most * np.abs(wanted).max()


@pytest.mark.thinned
@pytest.mark.parametrize("normalize", [0, 1])
@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_shares_of_their_own_mix_what_the_scores_choose(target: str, normalize: int) -> None:
    held = quantised(4, 16, False, 1) | {"router_weights": np.zeros(1)}
    model = expert_model(
        "QMoE", (5, HIDDEN), held, k=3, expert_weight_bits=4, block_size=16, normalize_routing_weights=normalize
    )
    feed = {"x": normal(5, HIDDEN), "router": normal(5, EXPERTS), "router_weights": np.abs(normal(5, EXPERTS))}
    feed["router_weights"][2] = 0
    got, wanted = occ.compile(model, target).run(feed)["y"], onnxruntime_gives(model, feed)
    assert np.abs(got - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["cpu-jit", "cpu"])
def test_mixture_of_a_number_of_rows_that_a_run_decides(target: str) -> None:
    model = expert_model("QMoE", ("rows", HIDDEN), quantised(4, 32, False, 2), k=2, block_size=32, **SWIGLU)
    compiled = occ.compile(model, target)
    for rows in (0, 1, 17):
        feed = {"x": normal(rows, HIDDEN), "router": normal(rows, EXPERTS)}
        got = compiled.run(feed)["y"]
        assert got.shape == (rows, HIDDEN)
        if rows:
            wanted = onnxruntime_gives(model, feed)
            assert np.abs(got - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_third_weight_gates_as_a_fused_one_does() -> None:
    """onnxruntime has this for GPUs alone; the same weights fused are what its CPU computes."""
    held = floats(2)
    fused = expert_model("MoE", (4, HIDDEN), held, k=2, **SWIGLU)
    w1, b1 = held["w1"], held["b1"]
    assert w1 is not None
    assert b1 is not None
    feed = {"x": normal(4, HIDDEN), "router": normal(4, EXPERTS)}
    apart = {**held, "w1": w1[:, ::2], "b1": b1[:, ::2], "w3": w1[:, 1::2], "b3": b1[:, 1::2]}
    halves = {**held, **{k: np.concatenate([v[:, ::2], v[:, 1::2]], 1) for k, v in (("w1", w1), ("b1", b1))}}
    wanted = onnxruntime_gives(fused, feed)
    for other, fusion in ((apart, 0), (halves, 2)):
        model = expert_model("MoE", (4, HIDDEN), other, k=2, activation_type="swiglu", swiglu_fusion=fusion)
        got = occ.compile(model, "interp").run(feed)["y"]
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=2e-6)


# Scores and shares of experts by `sparsemixer` of transformers 5 (models/phimoe/modeling_phimoe.py), which is not in training.
# onnxruntime's CPU provider ignores use_sparse_mixer, and there is no other runtime here that knows it.
SCORES = np.array(
    [
        [3.0, 1.0, 2.0, -1.0, 0.5, 0.0],  # nobody is near
        [3.0, 2.96, 2.95, 2.93, -3.0, 1.0],  # the second is near to the first, and two to the second
        [-5.0, -2.0, -2.02, -2.03, -2.05, -9.0],  # all below zero
        [1.5, 1.5, 1.5, 0.2, 1.49, -4.0],  # alike
        [40.0, 39.5, 39.0, 38.9, 0.0, 40.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    ],
    np.float32,
)
SHARES = np.array(
    [
        [1.0, 0.0, 1.0, 0.0, 0.0, 0.0],
        [0.343404382, 0.33778131, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.33890903, 0.33778131, 0.0, 0.0, 0.0],
        [0.250623435, 0.334442586, 0.0, 0.0, 0.0, 0.0],
        [0.383651733, 0.0, 0.0, 0.0, 0.0, 0.622459352],
        [0.166666672, 0.200000003, 0.0, 0.0, 0.0, 0.0],
    ],
    np.float32,
)


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["interp", "cpu-jit", "cpu"])
@pytest.mark.parametrize("op", ["MoE", "QMoE"])
def test_sparse_mixer_weighs_experts_as_transformers_does(op: str, target: str) -> None:
    held = floats() if op == "MoE" else quantised(4, 16, False, 1)
    weights = ("w2",) if op == "MoE" else ("s2",)
    held |= {k: np.zeros_like(held[k]) for k in weights} | {"b2": np.eye(EXPERTS, HIDDEN, dtype=np.float32)}
    more = {} if op == "MoE" else {"block_size": 16}
    model = expert_model(op, (6, HIDDEN), held, k=2, use_sparse_mixer=1, normalize_routing_weights=1, **more)
    got = occ.compile(model, target).run({"x": normal(6, HIDDEN), "router": SCORES})["y"]
    np.testing.assert_allclose(got[:, :EXPERTS], SHARES, rtol=1e-5, atol=1e-7)
    assert not got[:, EXPERTS:].any()


def test_sparse_mixer_and_shares_of_their_own_exclude_each_other() -> None:
    held = quantised(4, 16, False, 1) | {"router_weights": np.zeros(1)}
    model = expert_model("QMoE", (5, HIDDEN), held, k=2, use_sparse_mixer=1, block_size=16)
    with pytest.raises(CompileError, match="router_weights"):
        occ.compile(model, "interp")


@pytest.mark.parametrize(
    ("attrs", "says"),
    [
        ({"activation_type": "swiglu"}, "swiglu_fusion=0"),
        ({"activation_type": "tanh"}, "activation_type='tanh'"),
        ({"quant_type": "nvfp4"}, "quant_type='nvfp4'"),
        ({"weights_prepacked": 1}, "CUDA"),
        ({"block_size": 24}, "blocks of 24"),
        ({"k": 3, "use_sparse_mixer": 1}, "k=3"),
        ({"expert_weight_bits": 8}, "inner extents"),
    ],
)
def test_mixture_that_is_not_supported_is_an_error_that_names_it(attrs: dict[str, Any], says: str) -> None:
    model = expert_model("QMoE", (2, HIDDEN), quantised(4, 16, False, 1), **{"k": 2, "block_size": 16, **attrs})
    with pytest.raises(CompileError, match=says):
        occ.compile(model, "interp")
