"""Files that onnxruntime optimised for one processor, whose channels are in blocks: agreement with onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from building import TARGETS, model_of
from onnx import helper, numpy_helper

import occ
from occ.compiler.diagnostics import CompileError

RNG = np.random.default_rng(3)

NET = """g (float[n,3,h,w] x) => (float[n,m,o,p] y, float[n,q] z) {
  a0 = Conv<kernel_shape=[3,3], pads=[1,1,1,1], strides=[2,2]>(x, w0, b0)
  a = HardSwish(a0)
  d0 = Conv<kernel_shape=[3,3], pads=[1,1,1,1], group=24>(a, w1)
  d = Relu(d0)
  e0 = Conv<kernel_shape=[1,1]>(d, w2, b2)
  pooled = GlobalAveragePool(e0)
  gate0 = Conv<kernel_shape=[1,1]>(pooled, w3)
  gate = Sigmoid(gate0)
  e = Mul(e0, gate)
  f0 = Conv<kernel_shape=[1,1]>(a, w4)
  f = Add(e, f0)
  g0 = Conv<kernel_shape=[3,3], dilations=[2,2], pads=[2,2,2,2], group=2>(f, w5)
  half = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(g0)
  mean = AveragePool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(f)
  both = Concat<axis=1>(half, mean)
  large = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(both, "", scales)
  y0 = Conv<kernel_shape=[1,1]>(large, w6)
  y = LeakyRelu<alpha=0.2>(y0)
  z0 = GlobalMaxPool(both)
  z = Flatten(z0)
}"""


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


WEIGHTS = {
    "w0": normal(24, 3, 3, 3), "b0": normal(24), "w1": normal(24, 1, 3, 3), "w2": normal(32, 24, 1, 1) * 0.2, "b2": normal(32),
    "w3": normal(32, 32, 1, 1) * 0.2, "w4": normal(32, 24, 1, 1) * 0.2, "w5": normal(32, 16, 3, 3) * 0.1,
    "w6": normal(10, 64, 1, 1) * 0.2, "scales": np.array([1, 1, 2, 3], np.float32),
}  # fmt: skip


def optimised(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """The model as onnxruntime stores it after all of its optimisations, those for this processor too."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(model.SerializeToString(), options)
    return onnx.load(options.optimized_model_filepath)


def run(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    return list(onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed))


@pytest.mark.parametrize("target", TARGETS)
def test_files_with_channels_in_blocks(target: str, tmp_path: Path) -> None:
    model = model_of(NET, WEIGHTS, opset=17)
    stored = optimised(model, tmp_path)
    kinds = {n.op_type for n in stored.graph.node if n.domain == "com.microsoft.nchwc"}
    assert {"Conv", "ReorderOutput", "MaxPool", "AveragePool", "Upsample"} <= kinds
    made = occ.compile(stored, target)
    for n, h, w in ((1, 17, 9), (2, 8, 12)):
        feed = {"x": normal(n, 3, h, w)}
        for got, expected in zip(made.run(feed).values(), run(model, feed), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def stored_weights(w: np.ndarray, block: int, *, both: bool) -> np.ndarray:
    """Weights `[O, I, H, W]` in the order of blocks, by the definition: element by element."""
    made = np.zeros(w.size, np.float32)
    o, i, high, wide = w.shape
    for at, value in np.ndenumerate(w):
        k, c, y, x = at
        inner = (((k // block * (i // block) + c // block) * high + y) * wide + x) * block + c % block
        outer = ((k // block * i + c) * high + y) * wide + x
        made[(inner if both else outer) * block + k % block] = value
    return made.reshape(w.shape)


@pytest.mark.parametrize("block", [8, 16])
def test_blocks_of_other_processors(block: int) -> None:
    """A file in which one size of blocks alone is possible is read by that, wherever it is read."""
    room = 24 if block == 8 else 32
    first, second = normal(room, 3, 3, 3), normal(2 * room, room, 1, 1)
    domain = "com.microsoft.nchwc"
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], domain=domain, kernel_shape=[3, 3], activation="Relu"),
        helper.make_node("Conv", ["a", "v"], ["b"], domain=domain, kernel_shape=[1, 1]),
        helper.make_node("ReorderOutput", ["b"], ["y0"], domain=domain, channels=2 * room),
        helper.make_node("ReorderOutput", ["a"], ["y1"], domain=domain, channels=room - 11, channels_last=1),
    ]
    infos = [helper.make_tensor_value_info("x", 1, [1, 3, 6, 5])]
    weights = {"w": stored_weights(first, block, both=False), "v": stored_weights(second, block, both=True)}
    graph = helper.make_graph(
        nodes, "g", infos, [helper.make_empty_tensor_value_info(o) for o in ("y0", "y1")],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    plain = model_of(
        """g (float[1,3,6,5] x) => (float[n,c,h,w] b, float[n,c,h,w] a) {
          a0 = Conv<kernel_shape=[3,3]>(x, w)
          a = Relu(a0)
          b = Conv<kernel_shape=[1,1]>(a, v)
        }""",
        {"w": first, "v": second},
    )
    feed = {"x": normal(1, 3, 6, 5)}
    whole, early = run(plain, feed)
    got = list(occ.compile(helper.make_model(graph, opset_imports=opsets), "interp").run(feed).values())
    np.testing.assert_allclose(got[0], whole, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got[1], early.transpose(0, 2, 3, 1)[..., : room - 11], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("Softmax", None), ("Reshape", [1, 16, 4, 1]), ("Reshape", [0, 2, 0, 0, 8]), ("Reshape", [0, 4, 4])],
)
def test_channels_in_blocks_that_something_else_reads(name: str, shape: list[int] | None) -> None:
    """Only a Reshape that makes blocks of this size an axis says nothing; another one would be left out, and cause wrong numbers."""
    domain = "com.microsoft.nchwc"
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], domain=domain, kernel_shape=[1, 1]),
        helper.make_node("ReorderOutput", ["a"], ["seven"], domain=domain, channels=7),  # in blocks of 16 alone
        helper.make_node(name, ["a"] if shape is None else ["a", "shape"], ["y"]),
    ]
    weights = [numpy_helper.from_array(normal(16, 3, 1, 1), "w")]
    weights += [] if shape is None else [numpy_helper.from_array(np.array(shape), "shape")]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, [1, 3, 2, 2])],
        [helper.make_empty_tensor_value_info(o) for o in ("y", "seven")], weights,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)])
    with pytest.raises(
        CompileError, match=f"`{name}` reads channels in onnxruntime|channels are in blocks of 8 and of 16"
    ):
        occ.compile(model, "interp")
