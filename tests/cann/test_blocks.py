"""Block-quantised weights on the device, against onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from building import model_of, reference
from onnx import TensorProto, helper, numpy_helper
from simulating import built, simulated, worst

from occ.compiler.ge_simulator.reader import read
from occ.runtime.artifact import Artifact

RNG = np.random.default_rng(5)
CHIPS = ("ascend310", "ascend310p", "ascend910", "ascend910b")


def of_node(
    kind: str, weights: Mapping[str, np.ndarray], x: tuple[int, str, list[int]], rank: int, **attrs: Any
) -> onnx.ModelProto:
    dtype, name, shape = x
    inputs = [name, *weights] if kind == "MatMulNBits" else [*list(weights)[:1], name, *list(weights)[1:]]
    names = ["A", "B", "scales", "zero_points", "g_idx", "bias"] if kind == "MatMulNBits" else inputs
    given = [n if n in inputs else "" for n in names]
    while not given[-1]:
        given.pop()
    node = helper.make_node(kind, given, ["y"], domain="com.microsoft", **attrs)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info(name, dtype, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)],
        [numpy_helper.from_array(v, k) for k, v in weights.items()],
    )  # fmt: skip
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)], ir_version=10
    )


def product(n: int = 24, k: int = 128, size: int = 32, bits: int = 4, extra: str = "", **attrs: Any) -> onnx.ModelProto:
    blocks = -(-k // size)
    weights = {
        "B": RNG.integers(0, 256, (n, blocks, size * bits // 8)).astype(np.uint8),
        "scales": RNG.uniform(0.01, 0.02, (n, blocks)).astype(np.float32),
    }
    if "zero" in extra:
        weights["zero_points"] = RNG.integers(0, 256, (n, -(-blocks * bits // 8))).astype(np.uint8)
    if "group" in extra:
        weights["g_idx"] = (RNG.permutation(k) // size).astype(np.int32)
    if "bias" in extra:
        weights["bias"] = RNG.standard_normal(n, dtype=np.float32)
    return of_node(
        "MatMulNBits", weights, (TensorProto.FLOAT, "A", [2, 3, k]), 3, K=k, N=n, bits=bits, block_size=size, **attrs
    )


def table(bits: int = 4, extra: str = "") -> onnx.ModelProto:
    weights = {
        "data": RNG.integers(0, 256, (50, 64 * bits // 8)).astype(np.uint8),
        "scales": RNG.uniform(0.01, 0.02, (50, 4)).astype(np.float32),
    }
    if extra:
        weights["zero_points"] = RNG.integers(0, 256, (50, 4 * bits // 8)).astype(np.uint8)
    attrs = {"bits": bits, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}
    return of_node("GatherBlockQuantized", weights, (TensorProto.INT64, "indices", [2, 5]), 3, **attrs)


def in_onnxruntime(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, dict(inputs)
    )


def kinds(artifact: Artifact) -> set[str]:
    assert artifact.manifest.cpu_subgraphs == []
    (part,) = artifact.manifest.parts
    return {n.type for n in next(iter(read(artifact.files[part.air]).values())).nodes}


@pytest.mark.parametrize("target", CHIPS)
@pytest.mark.parametrize(
    ("bits", "size", "extra"), [(4, 32, ""), (4, 16, "zero bias"), (8, 32, "zero"), (4, 32, "group"), (2, 64, "zero")]
)
def test_products_are_on_the_device(target: str, bits: int, size: int, extra: str):
    model = product(size=size, bits=bits, extra=extra)
    x = {"A": RNG.standard_normal((2, 3, 128), dtype=np.float32)}
    made = built(model, target)
    assert "WeightQuantBatchMatmulV2" not in kinds(made)
    assert worst(simulated(made, x), in_onnxruntime(model, x)) < (2e-6 if target == "ascend910b" else 2e-3)


@pytest.mark.parametrize("extra", ["", "zero", "zero bias"])
def test_the_910b_multiplies_by_four_bits_where_the_model_allows_half_precision(extra: str):
    model = product(extra=extra, accuracy_level=4)
    x = {"A": RNG.standard_normal((2, 3, 128), dtype=np.float32)}
    made = built(model)
    assert "WeightQuantBatchMatmulV2" in kinds(made)
    exact = product(extra=extra)
    del exact.graph.initializer[:]
    exact.graph.initializer.extend(model.graph.initializer)
    assert worst(simulated(made, x), in_onnxruntime(exact, x)) < 2e-3
    assert "WeightQuantBatchMatmulV2" in kinds(built(product(extra=extra), precision_mode_v2="fp16"))


def test_weights_of_the_kernel_take_half_a_byte_each():
    small = built(product(n=256, accuracy_level=4), "ascend910b").manifest.parts[0].weights
    halves = built(product(n=256), "ascend310p").manifest.parts[0].weights
    assert small < 256 * 128 // 2 + 2 * 256 * 4 * 2 + 64
    assert halves < 256 * 128 * 2 + 64


@pytest.mark.parametrize("target", CHIPS)
@pytest.mark.parametrize(("bits", "extra"), [(4, ""), (4, "zero"), (8, "zero"), (2, "")])
def test_rows_of_tables_are_gathered_as_codes(target: str, bits: int, extra: str):
    model = table(bits, extra)
    x = {"indices": RNG.integers(-50, 50, (2, 5))}
    made = built(model, target)
    assert worst(simulated(made, x), in_onnxruntime(model, x)) < 1e-6
    assert made.manifest.parts[0].weights < 50 * 64 * (2 if bits == 8 else 1) + 50 * 4 * 4 + 100


@pytest.mark.parametrize("target", CHIPS)
def test_blocks_that_dequantize_linear_reads_stay_codes_where_the_chip_has_the_kernel(target: str):
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[3, 64] x) => (float[3, 32] y) {
        f = DequantizeLinear <axis = 0, block_size = 32> (w, s)
        y = MatMul (x, f)
    }"""
    model = model_of(text, {"s": RNG.uniform(0.01, 0.03, (2, 32)).astype(np.float32)})
    codes = RNG.integers(-8, 8, 64 * 32).tolist()
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.INT4, [64, 32], codes))
    x = {"x": RNG.standard_normal((3, 64)).astype(np.float32)}
    want = reference(model, x)  # onnxruntime takes activations in 8 bits here
    made = built(model, target, cpu_fallback="off")
    assert worst(simulated(made, x), want) < (1e-6 if target == "ascend910b" else 2e-3)
    if target == "ascend910b":
        halves = built(model, target, cpu_fallback="off", precision_mode_v2="mixed_float16")
        assert "WeightQuantBatchMatmulV2" in kinds(halves)
        assert worst(simulated(halves, x), want) < 2e-3
    else:
        assert made.manifest.summary["device_weights"] == 64 * 32 * 2  # in half precision
