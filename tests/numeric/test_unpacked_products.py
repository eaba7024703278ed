"""Products of block-quantised weights with many rows: weights unpacked to f32, in chunks of the sum and blocks of rows."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from machines import TARGETS, opened
from onnx import TensorProto, helper
from test_contrib_blocks import error, onnxruntime_gives, packed, tensor

import occ

RNG = np.random.default_rng(8)
SIZE = 32


def product(k: int, n: int, zeros: str, bits: int = 4) -> tuple[onnx.ModelProto, np.ndarray]:
    """A model of any number of rows, and the matrix f64 `[K, N]` that its operands stand for."""
    blocks, centre = -(-k // SIZE), 1 << (bits - 1)
    codes = RNG.integers(0, 2 * centre, (n, blocks, SIZE))
    scales = RNG.uniform(0.01, 0.02, (n, blocks)).astype(np.float32)
    held = [tensor("b", packed(codes, bits)), tensor("s", scales)]
    points = np.full((n, blocks), float(centre))
    if zeros == "codes":
        points = RNG.integers(0, 2 * centre, (n, blocks))
        held.append(tensor("z", packed(points, bits)))
    elif zeros == "floats":
        points = RNG.uniform(0, 2 * centre, (n, blocks)).astype(np.float32)
        held.append(tensor("z", points))
    node = helper.make_node(
        "MatMulNBits",
        ["x", *(t.name for t in held)],
        ["y"],
        domain="com.microsoft",
        K=k,
        N=n,
        bits=bits,
        block_size=SIZE,
    )
    values = [
        helper.make_tensor_value_info(v, TensorProto.FLOAT, ["batch", "rows", e]) for v, e in (("x", k), ("y", n))
    ]
    graph = helper.make_graph([node], "products", values[:1], values[1:], held)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    w = (codes - points[..., None].astype(np.float64)) * scales[..., None]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), w.reshape(n, -1)[:, :k].T


@pytest.mark.parametrize("machine", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(
    ("k", "n", "zeros", "bits"),
    [(2048, 200, "", 4), (416, 24, "codes", 4), (1000, 40, "floats", 4), (2080, 8, "", 8), (640, 72, "codes", 2)],
    ids=["chunks", "a prime number of blocks", "a last block", "one panel", "two bits"],
)
def test_chunks_and_blocks_of_any_extents(machine: str, k: int, n: int, zeros: str, bits: int) -> None:
    """Against float64: several blocks of rows, and ones that fill no tile."""
    made, w = product(k, n, zeros, bits)
    session = opened(occ.build(made, "cpu", options={"halide.target": TARGETS[machine]}), threads=1)
    for rows in ((1, 17), (3, 97), (1, 523), (2, 0)):
        x = RNG.normal(size=(*rows, k)).astype(np.float32)
        got = session.run({"x": x})["y"]
        assert got.shape == (*rows, n)
        exact = x.astype(np.float64) @ w
        if exact.size:
            # sums in another order than onnxruntime: in chunks
            assert error(got, exact) < 3 * max(error(onnxruntime_gives(made, {"x": x}), exact), 2e-7)


@pytest.mark.parametrize("rows", [1, 40])
def test_zero_points_between_codes(rows: int) -> None:
    """Floats that are no whole numbers; on `cpu-jit` and `interp` as on `cpu`."""
    made, w = product(96, 40, "floats")
    x = RNG.normal(size=(1, rows, 96)).astype(np.float32)
    for target in ("cpu", "cpu-jit", "interp"):
        assert error(occ.compile(made, target).run({"x": x})["y"], x.astype(np.float64) @ w) < 3e-7, target
