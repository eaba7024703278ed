"""Products of block-quantised weights as codes: every number of rows, fused neighbours, and NaN."""

from __future__ import annotations

import platform

import numpy as np
import onnx
import onnxruntime
import pytest
from machines import TARGETS, opened
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from test_contrib_blocks import error, onnxruntime_gives, packed, tensor

import occ
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings
from occ.compiler.ir.dtype import BY_NAME
from occ.compiler.ir.ops.own.block_products import sums_fit
from occ.compiler.ir.printer import module_text
from occ.compiler.objects.processors import PROCESSORS

RNG = np.random.default_rng(4)
K, N, SIZE = 160, 72, 32
BLOCKS = K // SIZE


def weights(prefix: str, *, zeros: bool) -> tuple[list[TensorProto], np.ndarray]:
    """Operands of a product of 4 bits, and the matrix `[K, N]` that they stand for."""
    codes, points = RNG.integers(0, 16, (N, BLOCKS, SIZE)), RNG.integers(0, 16, (N, BLOCKS))
    scales = RNG.uniform(0.01, 0.02, (N, BLOCKS)).astype(np.float32)
    held = [tensor(f"{prefix}b", packed(codes, 4)), tensor(f"{prefix}s", scales)]
    held += [tensor(f"{prefix}z", packed(points, 4))] if zeros else []
    away = codes - (points[..., None] if zeros else 8)
    return held, (away * scales[..., None].astype(np.float64)).reshape(N, K).T


def product(prefix: str, held: list[TensorProto], out: str, level: int) -> onnx.NodeProto:
    return helper.make_node(
        "MatMulNBits", ["x", *(t.name for t in held)], [out], domain="com.microsoft", K=K, N=N, bits=4, block_size=SIZE,
        accuracy_level=level, name=prefix,
    )  # fmt: skip


def model(nodes: list[onnx.NodeProto], rows: list[int | str], held: list[TensorProto]) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [*rows, K])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [*rows, N])
    graph = helper.make_graph(nodes, "products", [x], [y], held)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("level", [0, 4])
def test_any_number_of_rows_runs_in_tiles(level: int, zeros: bool) -> None:
    held, w = weights("", zeros=zeros)
    made = model([product("p", held, "y", level)], ["batch", "rows"], held)
    session = occ.compile(made, "cpu")
    for rows in ((1, 1), (1, 2), (3, 1), (1, 5), (2, 4), (1, 16), (5, 9), (1, 0)):
        x = RNG.normal(size=(*rows, K)).astype(np.float32)
        got = session.run({"x": x})["y"]
        assert got.shape == (*rows, N)
        if rows[1]:
            assert error(got, x.astype(np.float64) @ w) < (2e-7 if level == 0 else 1e-2)


@pytest.mark.parametrize("machine", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(("bits", "size"), [(2, 16), (4, 16), (4, 32), (4, 128), (8, 32)])
def test_sums_in_16_bits_are_exact_for_the_largest_codes(machine: str, bits: int, size: int) -> None:
    """Without VNNI products are added up in 16 bits: all codes and activations at their largest, in either sign."""
    k, n = 2 * size, 40
    most = (1 << bits) - 1
    codes = np.full((n, k // size, size), most)
    codes[1::2] = RNG.integers(0, 2, codes[1::2].shape) * most
    scales = np.ones((n, k // size), np.float32)
    held = [tensor("b", packed(codes, bits)), tensor("s", scales)]
    node = product("p", held, "y", 4)
    del node.attribute[:]
    node.attribute.extend(
        helper.make_attribute(a, v)
        for a, v in {"K": k, "N": n, "bits": bits, "block_size": size, "accuracy_level": 4}.items()
    )
    made = model([node], ["batch", "rows"], held)
    for v, axis in ((made.graph.input[0], k), (made.graph.output[0], n)):
        v.type.tensor_type.shape.dim[2].dim_value = axis
    session = opened(occ.build(made, "cpu", options={"halide.target": TARGETS[machine]}))
    w = (codes - (1 << (bits - 1))).reshape(n, k).T
    for rows in (1, 2, 5):
        x = np.where(RNG.random((1, rows, k)) < 0.9, -1.0, 1.0).astype(np.float32)  # in steps of 1/127: exact
        x[..., ::size] = 1
        np.testing.assert_allclose(session.run({"x": x})["y"], x.astype(np.float64) @ w, rtol=2e-6, atol=1e-4)


def test_what_fits_into_16_bits() -> None:
    assert sums_fit(4, 32)
    assert not sums_fit(4, 64)
    assert sums_fit(2, 128)
    assert not sums_fit(8, 16)


@pytest.mark.parametrize("rows", [3, 6])
def test_rows_that_come_in_groups_leave_out_tiles_that_they_never_fill(rows: int) -> None:
    """As those of an encoder of a constant length: 3*batch rows are never 1 or 2."""
    held, w = weights("", zeros=False)
    session = occ.compile(model([product("p", held, "y", 0)], ["batch", rows], held), "cpu")
    for batch in (0, 1, 2, 3):
        x = RNG.normal(size=(batch, rows, K)).astype(np.float32)
        got = session.run({"x": x})["y"]
        assert got.shape == (batch, rows, N)
        assert not batch or error(got, x.astype(np.float64) @ w) < 2e-7


def test_the_last_rows_of_each_text_of_a_batch() -> None:
    """How many there are is a formula of two sizes, `B*N - B*max(N - 2, 0)`."""
    held, w = weights("", zeros=False)
    ends = [tensor(name, np.array([v], np.int64)) for name, v in (("first", -2), ("last", 2**63 - 1), ("axis", 1))]
    nodes = [helper.make_node("Slice", ["all", "first", "last", "axis"], ["x"]), product("p", held, "y", 0)]
    made = model(nodes, ["batch", "rows"], [*held, *ends])
    made.graph.input[0].name = "all"
    made.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "some"
    session = occ.compile(made, "cpu")
    for rows in ((1, 1), (1, 2), (3, 1), (1, 5), (2, 4), (7, 16)):
        x = RNG.normal(size=(*rows, K)).astype(np.float32)
        got = session.run({"all": x})["y"]
        assert error(got, x[:, -2:].astype(np.float64) @ w) < 2e-7


def test_products_of_the_same_activations_share_their_codes() -> None:
    """Gate and up of a gated unit, with what is done with their results in the same kernels."""
    (held, w), (more, v) = weights("g", zeros=False), weights("u", zeros=True)
    bias = RNG.normal(size=N).astype(np.float32)
    nodes = [
        product("gate", held, "g", 4),
        product("up", more, "u", 4),
        helper.make_node("Sigmoid", ["g"], ["s"]),
        helper.make_node("Mul", ["g", "s"], ["silu"]),
        helper.make_node("Mul", ["silu", "u"], ["gated"]),
        helper.make_node("Add", ["gated", "bias"], ["y"]),
    ]
    made = model(nodes, [1, "rows"], [*held, *more, tensor("bias", bias)])
    session = occ.compile(made, "cpu")
    names = [s.name for s in session.artifact.manifest.plan.steps if s.kind == "kernel"]
    assert sum("steps" in n for n in names) == sum("codes" in n for n in names) == 1
    for rows in (1, 6, 33):
        x = RNG.normal(size=(1, rows, K)).astype(np.float32)
        g, u = x.astype(np.float64) @ w, x.astype(np.float64) @ v
        exact = g / (1 + np.exp(-g)) * u + bias
        got = session.run({"x": x})["y"]
        assert error(got, exact) < 1.2 * error(onnxruntime_gives(made, {"x": x}), exact)


@pytest.mark.parametrize("level", [0, 4])
def test_what_is_no_number_stays_in_its_row(level: int) -> None:
    held, w = weights("", zeros=False)
    session = occ.compile(model([product("p", held, "y", level)], ["rows"], held), "cpu")
    x = RNG.normal(size=(4, K)).astype(np.float32)
    x[0, 7], x[1, 40], x[2, 41] = np.nan, np.inf, -np.inf
    got = session.run({"x": x})["y"]
    assert np.isnan(got[0]).all()
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(got[1:3], x[1:3].astype(np.float64) @ w)
    assert error(got[3], x[3].astype(np.float64) @ w) < 1e-2


def test_small_and_large_activations_keep_their_digits() -> None:
    """Blocks have steps of their own: one of tiny elements loses nothing next to one of huge ones."""
    held, w = weights("", zeros=True)
    session = occ.compile(model([product("p", held, "y", 0)], ["rows"], held), "cpu")
    for factor in (0.0, 1e-28, 1e-6, 1e30):
        x = (RNG.normal(size=(3, K)) * factor).astype(np.float32)
        exact = x.astype(np.float64) @ w
        got = session.run({"x": x})["y"]
        assert np.sqrt(np.mean((got - exact) ** 2)) <= 2e-7 * np.sqrt(np.mean(exact**2))
    x = RNG.normal(size=(1, K)).astype(np.float32)
    x[:, :SIZE] *= 1e12
    x[:, SIZE:] = 0
    assert error(session.run({"x": x})["y"], x.astype(np.float64) @ w) < 2e-7


# element type, axis of the blocks (1 with the constant turned), zero points, whether a Gemm reads it
DEQUANTISED = {
    "i4": ("i4", 0, False, False),
    "i4, zero points": ("i4", 0, True, False),
    "u4": ("u4", 0, False, False),
    "u4, turned, zero points": ("u4", 1, True, False),
    "i8, Gemm": ("i8", 1, False, True),
    "u8, zero points": ("u8", 0, True, False),
}


@pytest.mark.parametrize("case", DEQUANTISED)
def test_dequantised_blocks_of_a_constant_stay_codes(case: str) -> None:
    """DequantizeLinear-21 with blocks, as quantisers write it: agreement with the reference, and no matrix of floats."""
    name, axis, zeros, gemm = DEQUANTISED[case]
    dtype = BY_NAME[name]
    codes = RNG.integers(int(dtype.lowest), int(dtype.highest) + 1, (K, N) if axis == 0 else (N, K))
    shape = tuple(n // SIZE if k == axis else n for k, n in enumerate(codes.shape))
    scales = RNG.uniform(0.01, 0.02, shape).astype(np.float32)
    points = RNG.integers(int(dtype.lowest), int(dtype.highest) + 1, shape)
    held = [
        tensor("q", codes.astype(dtype.numpy)),
        tensor("s", scales),
        tensor("c", RNG.normal(size=N).astype(np.float32)),
    ]
    held += [tensor("z", points.astype(dtype.numpy))] if zeros else []
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", *(["z"] if zeros else [])], ["w"], axis=axis, block_size=SIZE)
    ]
    if gemm:
        nodes.append(helper.make_node("Gemm", ["x", "w", "c"], ["y"], transB=axis))
    else:
        nodes += [helper.make_node("Transpose", ["w"], ["v"])] if axis else []
        nodes.append(helper.make_node("MatMul", ["x", "v" if axis else "w"], ["y"]))
    made = model(nodes, ["rows"], held)
    x = RNG.normal(size=(3, K)).astype(np.float32)
    session = occ.compile(made, "cpu")
    (expected,) = ReferenceEvaluator(made).run(None, {"x": x})
    np.testing.assert_allclose(session.run({"x": x})["y"], expected, rtol=0, atol=3e-6 * np.abs(expected).max())
    assert any("block_matmul" in s.name for s in session.artifact.manifest.plan.steps)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the kernels are for x86")
@pytest.mark.parametrize("features", ["avx2-fma-f16c", "sse41"])
def test_processors_without_byte_products_compute_the_same(features: str) -> None:
    held, w = weights("", zeros=True)
    options = {"halide.target": f"x86-64-linux-{features}"}
    session = opened(occ.build(model([product("p", held, "y", 0)], [5], held), "cpu", options=options))
    x = RNG.normal(size=(5, K)).astype(np.float32)
    assert error(session.run({"x": x})["y"], x.astype(np.float64) @ w) < 2e-7


@pytest.mark.parametrize(
    ("processor", "bits", "fetches"), [("x86-64-v3", 4, 3), ("x86-64-v3", 8, 3), ("x86-64-v2", 4, 0), ("znver4", 4, 0)]
)
def test_a_weight_is_read_ahead_where_the_hardware_does_not(processor: str, bits: int, fetches: int) -> None:
    """Codes, scales and zero points, in each variant by the number of rows: tiles of 1, 2 and 4."""
    held = [tensor("b", packed(RNG.integers(0, 1 << bits, (N, BLOCKS, SIZE)), bits))]
    held += [tensor("s", np.full((N, BLOCKS), 0.1, np.float32))]
    held += [tensor("z", packed(RNG.integers(0, 1 << bits, (N, BLOCKS)), bits))]
    node = product("p", held, "y", 4)
    next(a for a in node.attribute if a.name == "bits").i = bits
    settings = Settings("cpu", options={"halide.target": PROCESSORS[processor]})
    for rows, variants in ((1, 1), (5, 1), ("rows", 3)):
        text = module_text(Compilation(model([node], [rows], held), settings).advance("scheduled"))
        assert text.count(".fetch_beyond(") == fetches * variants


@pytest.mark.parametrize(("bits", "zeros", "size"), [(4, False, 32), (4, True, 16), (8, True, 32), (2, False, 32)])
def test_an_embedding_that_has_the_bytes_of_the_head_reads_its_panels(bits: int, zeros: bool, size: int) -> None:
    """Rows at both ends, from the end, and none; the matrix is there once."""
    codes, points = RNG.integers(0, 1 << bits, (N, K // size, size)), RNG.integers(0, 1 << bits, (N, K // size))
    scales = RNG.uniform(0.01, 0.02, points.shape).astype(np.float32)
    held = [
        tensor("b", packed(codes, bits)),
        tensor("s", scales),
        *([tensor("z", packed(points, bits))] if zeros else []),
    ]
    w = ((codes - (points[..., None] if zeros else 1 << (bits - 1))) * scales[..., None]).reshape(N, K)
    flat = tensor("flat", np.array([N, K * bits // 8]))
    how = {"domain": "com.microsoft", "bits": bits, "block_size": size}
    nodes = [
        helper.make_node("Reshape", ["b", "flat"], ["rows"]),
        helper.make_node(
            "GatherBlockQuantized",
            ["rows", "i", *(t.name for t in held[1:])],
            ["x"],
            gather_axis=0,
            quantize_axis=1,
            **how,
        ),
        helper.make_node("MatMulNBits", ["x", *(t.name for t in held)], ["y"], K=K, N=N, accuracy_level=0, **how),
    ]
    i = helper.make_tensor_value_info("i", TensorProto.INT64, ["n"])
    outs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size]) for name, size in (("x", K), ("y", N))]
    graph = helper.make_graph(nodes, "tied", [i], outs, [*held, flat])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = occ.compile(made, "cpu")
    rows = np.array([0, 17, N - 1, -1, -N, 5])
    got = session.run({"i": rows})
    np.testing.assert_allclose(got["x"], w[rows], rtol=1e-6)
    np.testing.assert_array_equal(got["x"], onnxruntime_gives(made, {"i": rows}))
    assert error(got["y"], w[rows] @ w.T) < 1e-6
    assert not session.run({"i": np.array([N, -N - 1, 10**12])})["x"].any()
    assert len(session.artifact.manifest.weights) == len(held)


def test_option_allows_codes_of_8_bits_everywhere() -> None:
    held, w = weights("", zeros=False)
    made = model([product("p", held, "y", 0)], ["rows"], held)
    x = RNG.normal(size=(4, K)).astype(np.float32)
    got = occ.compile(made, "cpu", options={"precision": "int8"}).run({"x": x})["y"]
    assert 1e-3 < error(got, x.astype(np.float64) @ w) < 1e-2


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("k", "block"), [(130, 128), (70, 64), (40, 128), (161, 32), (33, 16)])
def test_rows_that_blocks_do_not_divide(k: int, block: int, zeros: bool) -> None:
    """Chunks of the last block took the scale of the one before."""
    count, n = -(-k // block), 9
    held = [tensor("b", RNG.integers(0, 256, (n, count, block // 2)).astype(np.uint8)),
            tensor("s", RNG.uniform(0.01, 0.1, (n, count)).astype(np.float32))]  # fmt: skip
    held += [tensor("z", RNG.integers(0, 256, (n, -(-count // 2))).astype(np.uint8))] if zeros else []
    node = helper.make_node("MatMulNBits", ["x", *(t.name for t in held)], ["y"], domain="com.microsoft", K=k, N=n, bits=4, block_size=block)  # fmt: skip
    made = model([node], ["rows"], held)
    made.graph.input[0].type.tensor_type.shape.dim[1].dim_value = k
    made.graph.output[0].type.tensor_type.shape.dim[1].dim_value = n
    session = occ.compile(made, "cpu")
    for rows in (1, 3, 9):
        x = RNG.normal(size=(rows, k)).astype(np.float32)
        want = onnxruntime_gives(made, {"x": x})
        assert error(session.run({"x": x})["y"], want) < 1e-6


def test_one_column_of_any_number_of_rows() -> None:
    """Its extent of 1 is not an axis of the kernel, whose panels and tiles are along two."""
    rng = np.random.default_rng(0)
    codes, scales = rng.integers(0, 256, (1, 2, 16), dtype=np.uint8), rng.random((1, 2), dtype=np.float32)
    held = [tensor("w", codes), tensor("s", scales.reshape(-1))]
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=64, N=1, bits=4, block_size=32
    )
    infos = [helper.make_tensor_value_info("x", 1, ["n", 64])]
    graph = helper.make_graph([node], "g", infos, [helper.make_empty_tensor_value_info("y")], held)
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=sets, ir_version=8)
    session = occ.compile(made, "cpu")
    for n in (1, 7, 40):
        x = rng.standard_normal((n, 64), dtype=np.float32)
        assert error(session.run({"x": x})["y"], onnxruntime_gives(made, {"x": x})) < 1e-6


@pytest.mark.parametrize("order", [(1, 40), (40, 1)])
def test_a_column_and_a_matrix_of_the_same_activations(order: tuple[int, int]) -> None:
    """One takes codes of all rows, the other of the first ones alone."""
    rng = np.random.default_rng(0)
    held, nodes, outputs = [], [], []
    for n in order:
        codes, scales = rng.integers(0, 256, (n, 2, 16), dtype=np.uint8), rng.random(n * 2, dtype=np.float32)
        held += [tensor(f"w{n}", codes), tensor(f"s{n}", scales)]
        nodes.append(
            helper.make_node(
                "MatMulNBits",
                ["x", f"w{n}", f"s{n}"],
                [f"y{n}"],
                domain="com.microsoft",
                K=64,
                N=n,
                bits=4,
                block_size=32,
            )
        )
        outputs.append(helper.make_tensor_value_info(f"y{n}", 1, ["n", n]))
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, ["n", 64])], outputs, held)
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=sets, ir_version=8)
    session = occ.compile(made, "cpu")
    for rows in (3, 40):
        x = rng.standard_normal((rows, 64), dtype=np.float32)
        want = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
        for got, exact in zip(session.run({"x": x}).values(), want, strict=True):
            assert got.shape == exact.shape
            assert error(got, exact) < 1e-6
