"""`-O1` to `-O3` against onnx.reference and each other: kernels of a first result, and those that layers share."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from building import model_of, reference

import occ

_RNG = np.random.default_rng(36)


def _weights(*shapes):
    return {
        f"w{k}": (_RNG.standard_normal(s) / np.sqrt(np.prod(s[1:]))).astype(np.float32) for k, s in enumerate(shapes)
    }


NETS = {
    # name: graph, weights, kernels that layers share
    "products": (
        "g (float[64,64] x) => (float[64,64] y) { h = MatMul(x, w0) y = MatMul(h, w1) }",
        _weights((64, 96), (96, 64)),
        1,
    ),
    "rows that no tile divides": (
        "g (float[23,40] x) => (float[23,33] y) { h = MatMul(x, w0) r = Relu(h) y = MatMul(r, w1) }",
        _weights((40, 70), (70, 33)),
        None,
    ),
    "scales that training found": (
        """g (float[16,32] x) => (float[16,32] y) {
            a = Mul(x, s0) b = Sigmoid(a) c = Mul(b, s1) d = Sigmoid(c) y = Neg(d)
        }""",
        {"s0": np.float32(0.63296586), "s1": np.float32(-1.2345678)},
        None,
    ),
    "a product of scales": (
        "g (float s, float[4,32] x) => (float[4,32] y) { t = Mul(s, s0) y = Mul(x, t) }",
        {"s0": np.float32(0.63296586)},
        None,
    ),
    "strided windows": (
        """g (float[1,8,32,32] x) => (float[1,32,8,8] y) {
            h = Conv <pads=[1,1,1,1], strides=[2,2]> (x, w0) y = Conv <pads=[1,1,1,1], strides=[2,2]> (h, w1)
        }""",
        _weights((16, 8, 3, 3), (32, 16, 3, 3)),
        None,
    ),
    "planes of Winograd": (
        """g (float[1,32,20,24] x) => (float[1,32,20,24] y) {
            h = Conv <pads=[1,1,1,1]> (x, w0) r = Relu(h) y = Conv <pads=[1,1,1,1]> (r, w1)
        }""",
        _weights((48, 32, 3, 3), (32, 48, 3, 3)),
        None,
    ),
    "channels by themselves": (
        """g (float[1,24,19,17] x) => (float[1,24,7,6] y) {
            h = Conv <group=24, pads=[2,2,2,2]> (x, w0) p = MaxPool <kernel_shape=[3,3], strides=[3,3], ceil_mode=1> (h)
            y = Clip(p, lo, hi)
        }""",
        _weights((24, 1, 5, 5)) | {"lo": np.float32(-1), "hi": np.float32(1)},
        None,
    ),
    "movement": (
        """g (float[12,30] x, float[12,50] z) => (float[12,80] y, float[40,12] t, float[12,40] a) {
            y = Concat <axis=1> (x, z) a, b = Split <axis=1, num_outputs=2> (y) t = Transpose <perm=[1,0]> (b)
        }""",
        {},
        None,
    ),
    "pictures of any batch": (
        """g (float[n,16,28,28] x) => (float[n,32,14,14] y) {
            h = Conv (x, w0) p = MaxPool <kernel_shape=[2,2], strides=[2,2]> (h) y = Conv (p, w1)
        }""",
        _weights((32, 16, 1, 1), (32, 32, 1, 1)),
        None,
    ),
    "a size that a run decides": (
        "g (float[n,40] x) => (float[n,33] y) { h = MatMul(x, w0) r = Relu(h) g1 = MatMul(r, w1) y = Softmax(g1) }",
        _weights((40, 96), (96, 33)),
        None,
    ),
}


@pytest.mark.parametrize("level", ["1", "2"])
@pytest.mark.parametrize("name", NETS)
def test_results_are_those_of_the_reference(name, level):
    text, weights, shared = NETS[name]
    model = model_of(text, weights)
    inputs = {
        i.name: _RNG.standard_normal([d.dim_value or 5 for d in i.type.tensor_type.shape.dim]).astype(np.float32)
        for i in model.graph.input
    }
    session = occ.compile(model, target="cpu", options={"optimize": level}, threads=2)
    kernels = {s.name for s in session.artifact.manifest.plan.steps if s.kind == "kernel"}
    assert shared is None or level == "1" or len(kernels) == shared
    for got, wanted in zip(session.run(inputs).values(), reference(model, inputs), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["products", "rows that no tile divides", "strided windows"])
def test_sums_in_one_order_have_the_same_bits(name):
    text, weights, _ = NETS[name]
    model = model_of(text, weights)
    (info,) = model.graph.input
    inputs = {"x": _RNG.standard_normal([d.dim_value for d in info.type.tensor_type.shape.dim]).astype(np.float32)}
    any_size, fixed = (
        occ.compile(model, target="cpu", options={"optimize": level}, threads=1).run(inputs) for level in "23"
    )
    for made, wanted in zip(any_size.values(), fixed.values(), strict=True):
        np.testing.assert_array_equal(made, wanted)


def test_kernels_are_for_any_sizes_by_default():
    text, weights, shared = NETS["products"]
    plan = occ.compile(model_of(text, weights), target="cpu").artifact.manifest.plan
    assert len({s.name for s in plan.steps if s.kind == "kernel"}) == shared


def test_layers_that_differ_in_a_learned_scale_share_a_kernel():
    text = """g (float[24,32] x) => (float[24,32] y) {
        h = MatMul(x, w0) a = Mul(h, s0) r = Relu(a) i = MatMul(r, w1) b = Mul(i, s1) y = Relu(b)
    }"""
    weights = _weights((32, 32), (32, 32))

    def kernels(*scales):
        given = {f"s{k}": np.float32(s) for k, s in enumerate(scales)}
        session = occ.compile(model_of(text, weights | given), target="cpu", threads=1)
        inputs = {"x": _RNG.standard_normal((24, 32)).astype(np.float32)}
        wanted = reference(model_of(text, weights | given), inputs)
        np.testing.assert_allclose(session.run(inputs)["y"], wanted[0], rtol=1e-4, atol=1e-5)
        return len({s.name for s in session.artifact.manifest.plan.steps if s.kind == "kernel"})

    assert kernels(0.63296586, 1.2345678) == 1
    assert kernels(0.5, 6.0) == 2  # short numbers are part of formulas, and literals


@pytest.mark.parametrize("processor", ["x86-64-v2", "x86-64-v3", "x86-64-v4", "cortex-a76", "wasm32"])
def test_every_kind_of_machine_has_code(processor, occ_cli, tmp_path):
    text, weights, _ = NETS["strided windows"]
    onnx.save(model_of(text, weights), tmp_path / "m.onnx")
    out = tmp_path / "objects"
    made = occ_cli("build", tmp_path / "m.onnx", "-O2", "--target-cpu", processor, "--emit", "object", "-o", out)
    assert made.code == 0, made.err
    assert list(out.glob("*.o"))
