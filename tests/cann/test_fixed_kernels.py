"""Kernels that take fixed extents alone: others stand for them under ranges, gears serve, and the simulator rejects the rest."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from building import model_of
from simulating import built, simulated, worst
from test_kernel_tables import loaded

from occ.compiler.codegen_cann.graph.graph import Desc
from occ.compiler.diagnostics import CompileError
from occ.compiler.ge_simulator.reader import BadGraph

RNG = np.random.default_rng(41)
SIZES = ((2, 6), (5, 3))  # of n and h, two runs of one artifact


def f(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def i8(*shape: int) -> np.ndarray:
    return RNG.integers(-90, 90, shape).astype(np.int8)


STEPS = {"s": np.float32(0.05), "t": np.float32(0.5), "z": np.int8(0)}
# name -> graph over x [n, 4, h, 8], [n, 32] or such, weights, operators that it must not have
WRITTEN: dict[str, tuple[str, dict[str, np.ndarray], set[str]]] = {
    "rows normalised a picture": ("(float[n, 4, h, 8] x) => (float[n, 4, h, 8] y) { y = InstanceNormalization (x, s, b) }", {"s": f(4), "b": f(4)}, {"InstanceNorm"}),
    "rows normalised in groups": ("(float[n, 4, h, 8] x) => (float[n, 4, h, 8] y) { y = GroupNormalization <num_groups = 2> (x, s, b) }", {"s": f(4), "b": f(4)}, {"InstanceNorm"}),
    "a mean of each picture": ("(float[n, 4, h, 8] x) => (float[n, 4, 1, 1] y) { y = GlobalAveragePool (x) }", {}, {"GlobalAveragePool"}),
    "near channels": ("(float[n, 4, h, 8] x) => (float[n, 4, h, 8] y) { y = LRN <size = 3, alpha = 0.1, beta = 0.6, bias = 1.5> (x) }", {}, {"LRN"}),
    "a smooth unit": ("(float[n, h] x) => (float[n, h] y) { y = Celu <alpha = 0.7> (x) }", {}, {"Celu"}),
    "a slice": ("(float[n, h, 8] x) => (float[n, h, 3] y) { y = Slice (x, b, e, a, k) }", {"b": np.array([7]), "e": np.array([1]), "a": np.array([-1]), "k": np.array([-2])}, set()),
    "long rows of codes": ("(float[n, 2100] x) => (float[n, 6] y) { q, s, z = DynamicQuantizeLinear (x) p = MatMulInteger (q, w, z) c = Cast <to = 1> (p) y = Mul (c, s) }", {"w": i8(2100, 6)}, set()),
    "a product between codes": (
        "(float[n, 32] x) => (float[n, 16] y) { q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) v = DequantizeLinear (w, s, z) p = MatMul (d, v) e = QuantizeLinear (p, t, z) y = DequantizeLinear (e, t, z) }",
        {"w": i8(32, 16), **STEPS}, {"AscendDequant"},
    ),
}  # fmt: skip


def model(text: str, weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    return model_of(f"g {text}", weights, opset=21)


def inputs(m: onnx.ModelProto, n: int, h: int) -> dict[str, np.ndarray]:
    (port,) = m.graph.input
    sizes = {"n": n, "h": h}
    return {port.name: f(*(sizes.get(d.dim_param, d.dim_value) for d in port.type.tensor_type.shape.dim))}


@pytest.mark.parametrize("target", ["ascend310b", "ascend310p", "ascend910", "ascend910b"])
@pytest.mark.parametrize("name", WRITTEN)
def test_ranges_are_of_kernels_that_take_them(name: str, target: str):
    text, weights, without = WRITTEN[name]
    m = model(text, weights)
    names = {d.dim_param for d in m.graph.input[0].type.tensor_type.shape.dim if d.dim_param}
    made = built(m, target, dynamic_ranges=",".join(f"{s}=1..64" for s in sorted(names)), cpu_fallback="off")
    assert not without & set(made.manifest.summary["ge_operators"])
    assert "AI CPU" not in made.manifest.summary["units"]
    session = onnxruntime.InferenceSession(m.SerializeToString())
    for n, h in SIZES:
        x = inputs(m, n, h)
        most = (
            0.04 if name == "a product between codes" else 1e-5
        )  # a step, to which AscendQuant rounds in half precision
        assert worst(simulated(made, x), session.run(None, x)) < most


@pytest.mark.parametrize("name", ["rows normalised a picture", "near channels", "a smooth unit"])
def test_fixed_extents_and_gears_keep_the_kernel(name: str):
    text, weights, kernel = WRITTEN[name]
    m = model(text, weights)
    axes = [d.dim_param for d in m.graph.input[0].type.tensor_type.shape.dim if d.dim_param]
    gears = ";".join(",".join(str({"n": n, "h": h}[a]) for a in axes) for n, h in SIZES)
    for target in ("ascend310", "ascend310p"):
        made = built(m, target, dynamic_dims=gears, cpu_fallback="off")
        assert kernel <= set(made.manifest.summary["ge_operators"])
        x = inputs(m, *SIZES[0])
        want = onnxruntime.InferenceSession(m.SerializeToString()).run(None, x)
        assert worst(simulated(made, x), want) < 2e-2


def test_ranges_on_the_310_are_refused_with_gears_as_the_remedy():
    m = model("(float[n, 3, 8, 8] x) => (float[n, 4, 6, 6] y) { y = Conv (x, w) }", {"w": f(4, 3, 3, 3)})
    with pytest.raises(
        CompileError,
        match=r"(?s)no kernel of GE `Conv2D` for FLOAT with extents that are not fixed.*dynamic_batch_size",
    ):
        built(m, "ascend310", dynamic_ranges="n=1..8")
    assert built(m, "ascend310", dynamic_batch_size="1,4").manifest.summary["device_parts"] == 1


def test_batches_with_half_precision_results_are_said():
    """Batches of products with ranges have half-precision results on the 310P and 910: the simulator computes so, and the summary says so."""
    m = model("(float[n, h, 8] x) => (float[n, h, h] y) { t = Transpose <perm = [0, 2, 1]> (x) y = MatMul (x, t) }", {})
    made = built(m, "ascend310p", dynamic_ranges="n=1..8,h=1..8")
    assert any("half precision" in r and "BatchMatMulV2" in r for r in made.manifest.summary["remarks"])
    x = {"x": np.full((1, 2, 8), 300, np.float32)}
    assert np.array_equal(simulated(made, x)[0], np.full((1, 2, 2), 65504, np.float32))  # saturated
    fixed = built(m, "ascend310p", dynamic_dims="1,2;2,2")
    assert simulated(fixed, x)[0].max() > 65504
    for other in (fixed, built(m, "ascend910b", dynamic_ranges="n=1..8,h=1..8")):
        assert not any("BatchMatMulV2" in r for r in other.manifest.summary["remarks"])


def _node(kind: str, *, give: str = "", shape: tuple[int, ...] = (), **attrs):
    """A node on all Data nodes."""
    return lambda e, *xs: e.op(kind, *xs, out=Desc(give or xs[0].dtype, shape or xs[0].shape), **attrs)


def _norm(e, x, *_):
    scale = e.constant(np.ones(4, np.float32))
    stats = Desc("FLOAT", (2, 4, 1, 1), "NCHW")
    made = e.op("InstanceNorm", x, scale, scale, out=[x.desc, stats, stats], data_format="NCHW", epsilon=1e-5)
    made[0].node.formats = {"x": "NCHW"}
    return made[0]


# what is planted -> the node, chip, mode, element type, shapes, what is said
PLANTED = {
    "a maximum of bytes": (_node("Maximum"), "Ascend910B1", "origin", "UINT8", [(3,), (3,)], "no kernel of Maximum for UINT8"),
    "a minimum of bytes": (_node("Minimum"), "Ascend310P3", "fp16", "UINT8", [(3,), (3,)], "no kernel of Minimum for UINT8"),
    "a kernel that the 310 lacks": (_node("Shrink", lambd=0.5, bias=0.0), "Ascend310", "fp16", "FLOAT", [(3,)], "no kernel of Shrink for FLOAT16 or FLOAT"),
    "a row scatter on the 310": (lambda e, x: e.op("Scatter", x, e.constant(np.zeros(2, np.int32)), x, out=x.desc, reduce="update", axis=-2), "Ascend310", "fp16", "FLOAT", [(2, 3, 4, 5)], "no kernel of Scatter"),
    "BF16 that is turned": (lambda e, x: e.op("ReverseSequence", x, e.constant(np.array([1, 2])), out=x.desc, seq_dim=1, batch_dim=0), "Ascend910B1", "origin", "BF16", [(2, 3)], "no kernel of ReverseSequence for BF16"),
    "unknown extents on the 310": (_node("Relu"), "Ascend310", "fp16", "FLOAT", [(-1, 3)], "no kernel of Relu for FLOAT16 or FLOAT and unknown extents"),
    "unknown extents of a norm": (_norm, "Ascend910B1", "origin", "FLOAT", [(2, 4, -1, 8)], "no kernel of InstanceNorm for FLOAT and unknown extents"),
    "unknown rows of codes": (_node("MatMulV2", give="INT32", shape=(-1, 5)), "Ascend310P3", "fp16", "INT8", [(-1, 4), (4, 5)], "no kernel of MatMulV2 for INT8, INT32 and unknown extents"),
    "unknown batches with FLOAT results": (_node("BatchMatMulV2", give="FLOAT", shape=(-1, 3, 5)), "Ascend310P3", "origin", "FLOAT16", [(-1, 3, 4), (-1, 4, 5)], "no kernel of BatchMatMulV2 for FLOAT16, FLOAT and unknown extents"),
    "an operator that no table has": (_node("HardMax", axis=-1), "Ascend910B1", "fp16", "FLOAT", [(2, 3)], "it is in none of the tables"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "soc", "mode", "dtype", "shapes", "said"), PLANTED.values(), ids=PLANTED)
def test_a_planted_node_without_a_kernel_is_refused(make, soc: str, mode: str, dtype: str, shapes, said: str):
    with pytest.raises(BadGraph, match=said):
        loaded(make, soc, mode, dtype, *shapes)
