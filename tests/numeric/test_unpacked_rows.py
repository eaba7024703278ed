"""Products of block-quantised weights by many rows in f32: every size, what stands around them, and each kind of x86."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from machines import TARGETS, opened
from onnx import TensorProto, helper
from test_contrib_blocks import error, onnxruntime_gives, packed, tensor

import occ

RNG = np.random.default_rng(6)


def model(
    k: int, n: int, rows: list[int | str], *, bits: int = 4, size: int = 32, zeros: bool = False, after: str = "",
    dtype: int = TensorProto.FLOAT,
) -> tuple[onnx.ModelProto, np.ndarray]:  # fmt: skip
    """A product of level 0, with an op `after` it, and the matrix `[K, N]` of its weights."""
    blocks = -(-k // size)
    codes, points = (RNG.integers(0, 1 << bits, s) for s in ((n, blocks, size), (n, blocks)))
    scales = RNG.uniform(0.01, 0.02, (n, blocks)).astype(np.float32)
    held = [tensor("b", packed(codes, bits)), tensor("s", scales.astype(helper.tensor_dtype_to_np_dtype(dtype)))]
    held += [tensor("z", packed(points, bits))] if zeros else []
    away = codes - (points[..., None] if zeros else 1 << (bits - 1))
    scales = scales.astype(helper.tensor_dtype_to_np_dtype(dtype)).astype(np.float64)
    w = (away * scales[..., None]).reshape(n, -1)[:, :k].T
    node = helper.make_node(
        "MatMulNBits", ["x", *(t.name for t in held)], ["p" if after else "y"], domain="com.microsoft", K=k, N=n, bits=bits,
        block_size=size,
    )  # fmt: skip
    more = [helper.make_node(after, ["p"], ["t"]), helper.make_node("Mul", ["t", "p"], ["y"])] if after else []
    ports = (helper.make_tensor_value_info(name, dtype, [*rows, m]) for name, m in (("x", k), ("y", n)))
    x, y = ports
    graph = helper.make_graph([node, *more], "product", [x], [y], held)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), w


def check(made: onnx.ModelProto, w: np.ndarray, session: occ.Session, *shapes: tuple[int, ...]) -> None:
    """Not less exact than onnxruntime."""
    for shape in shapes:
        x = RNG.normal(size=(*shape, len(w))).astype(np.float32)
        got, exact = session.run({"x": x})["y"], x.astype(np.float64) @ w
        assert got.shape == exact.shape
        if exact.size:
            assert error(got, exact) < 1.2 * max(error(onnxruntime_gives(made, {"x": x}), exact), 2e-7)


@pytest.mark.parametrize("zeros", [False, True])
def test_from_one_row_to_many(zeros: bool) -> None:
    """N fills no pair of panels, K has blocks enough for two groups of terms."""
    made, w = model(160, 72, ["batch", "rows"], zeros=zeros)
    shapes = [(1, 0), (0, 20), (1, 1), (1, 16), (1, 17), (3, 25), (1, 130)]
    check(made, w, occ.compile(made, "cpu"), *shapes)


@pytest.mark.parametrize(
    ("bits", "size", "k", "n"),
    [(4, 32, 150, 40), (8, 16, 80, 33), (2, 64, 192, 16), (4, 128, 100, 7), (4, 32, 32, 9), (4, 16, 16, 9)],
)
def test_any_block_and_number_of_bits(bits: int, size: int, k: int, n: int) -> None:
    """Also where the last block is not full, and where there is only one."""
    made, w = model(k, n, ["rows"], bits=bits, size=size, zeros=True)
    check(made, w, occ.compile(made, "cpu"), (4,), (19,), (64,))


@pytest.mark.parametrize("k", [16, 32])
def test_a_single_block_does_not_see_the_next_row(k: int) -> None:
    """Panels have two blocks at least, the second of zeros: times infinity they would be NaN."""
    made, w = model(k, 9, ["rows"], size=k)
    x = RNG.normal(size=(20, k)).astype(np.float32)
    x[1::2] = np.inf
    got = occ.compile(made, "cpu").run({"x": x})["y"]
    np.testing.assert_allclose(got[::2], x[::2] @ w, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [16, 17, 40])
def test_a_constant_number_of_rows_takes_one_form(rows: int) -> None:
    made, w = model(160, 72, [rows])
    session = occ.compile(made, "cpu")
    check(made, w, session, (rows,))
    coded = any("block_codes" in s.name for s in session.artifact.manifest.plan.steps)
    assert coded == (rows <= 16)


def test_what_follows_a_product_is_in_its_kernel() -> None:
    made, w = model(160, 72, ["rows"], after="Sigmoid")
    session = occ.compile(made, "cpu")
    for rows in (3, 50):
        x = RNG.normal(size=(rows, 160)).astype(np.float32)
        p = x.astype(np.float64) @ w
        assert error(session.run({"x": x})["y"], p / (1 + np.exp(-p))) < 1e-6
    assert sum(s.kind == "kernel" for s in session.artifact.manifest.plan.steps) == 3


def test_what_is_no_number_stays_in_its_row() -> None:
    made, w = model(160, 72, ["rows"])
    x = RNG.normal(size=(40, 160)).astype(np.float32)
    x[5, 7], x[9, 100] = np.nan, np.inf
    got = occ.compile(made, "cpu").run({"x": x})["y"]
    rest = np.delete(np.arange(40), [5, 9])
    assert np.isnan(got[5]).all()
    assert not np.isfinite(got[9]).any()
    assert error(got[rest], x[rest].astype(np.float64) @ w) < 1e-6


@pytest.mark.parametrize("machine", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_on_each_kind_of_x86(machine: str) -> None:
    made, w = model(160, 72, ["rows"], zeros=True)
    check(made, w, opened(occ.build(made, "cpu", options={"halide.target": TARGETS[machine]})), (2,), (41,))
