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


IN_8_BITS = ("ascend310p", "ascend910b", "ascend910_93")


@pytest.mark.parametrize("target", [*CHIPS, "ascend310b", "ascend910_93"])
@pytest.mark.parametrize("extra", ["", "zero bias"])
def test_columns_with_one_scale_are_codes_of_8_bits_where_the_chip_has_the_kernel(target: str, extra: str):
    model = product(size=128, bits=8, extra=extra, accuracy_level=2)
    x = {"A": RNG.standard_normal((2, 3, 128), dtype=np.float32)}
    made = built(model, target)
    assert ("WeightQuantBatchMatmulV2" in kinds(made)) == (target in IN_8_BITS)
    assert worst(simulated(made, x), in_onnxruntime(model, x)) < 2e-3


COLUMNS = {
    "a scale for each column": ("f = DequantizeLinear <axis = 1> (w, s) y = MatMul (x, f)", (40, 24), 24, np.int8),
    "one scale": ("f = DequantizeLinear (w, s) y = MatMul (x, f)", (40, 24), 0, np.int8),
    "turned, with zero points": ("f = DequantizeLinear <axis = 0> (w, s, z) y = Gemm <transB = 1> (x, f, b)", (24, 40), 24, np.uint8),
    "transposed": ("f = DequantizeLinear <axis = 0> (w, s) t = Transpose (f) y = MatMul (x, t)", (24, 40), 24, np.int8),
}  # fmt: skip


@pytest.mark.parametrize("target", [*CHIPS, "ascend310b", "ascend910_93"])
@pytest.mark.parametrize(("body", "shape", "scales", "kind"), COLUMNS.values(), ids=COLUMNS)
def test_columns_that_dequantize_linear_reads_stay_codes(target: str, body: str, shape, scales: int, kind: type):
    info = np.iinfo(kind)
    weights = {
        "w": RNG.integers(info.min, info.max, shape).astype(kind), "b": RNG.standard_normal(24, dtype=np.float32),
        "s": RNG.uniform(0.01, 0.02, (scales,) if scales else ()).astype(np.float32),
        "z": RNG.integers(100, 150, 24).astype(np.uint8),
    }  # fmt: skip
    model = model_of(f"g (float[3, 40] x) => (float[3, 24] y) {{ {body} }}", weights)
    x = {"x": RNG.standard_normal((3, 40), dtype=np.float32)}
    halves = built(model, target, precision_mode_v2="mixed_float16")
    assert ("WeightQuantBatchMatmulV2" in kinds(halves)) == (target in IN_8_BITS)
    assert worst(simulated(halves, x), reference(model, x)) < 2e-3
    assert "WeightQuantBatchMatmulV2" not in kinds(built(model, target))  # which keeps results in FLOAT


def test_scales_that_half_precision_cuts_short_stay_out_of_the_kernel():
    model = model_of(
        "g (float[3, 40] x) => (float[3, 24] y) { f = DequantizeLinear (w, s) y = MatMul (x, f) }",
        {"w": RNG.integers(-99, 99, (40, 24)).astype(np.int8), "s": np.array(3e-5, np.float32)},
    )
    made = built(model, "ascend310p", precision_mode_v2="mixed_float16")
    assert "WeightQuantBatchMatmulV2" not in kinds(made)


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
