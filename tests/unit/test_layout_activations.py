"""Orders of axes in memory: which reshapes leave bytes in place, and what the pass makes of small models."""

import itertools

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

import occ
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.passes.layout.absorb_views import reshaped_order


@st.composite
def reshapes(draw) -> tuple[list[int], tuple[int, ...], list[int]]:
    """A shape, an order of its axes, and another shape of as many elements."""
    factors = draw(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=5))

    def cut() -> list[int]:
        marks = sorted(draw(st.lists(st.integers(0, len(factors)), max_size=3)))
        parts = itertools.pairwise([0, *marks, len(factors)])
        return [int(np.prod(factors[a:b])) for a, b in parts]

    source, target = cut(), cut()
    return source, tuple(draw(st.permutations(range(len(source))))), target


@given(reshapes())
def test_reshaped_order_leaves_the_bytes_in_place(case: tuple[list[int], tuple[int, ...], list[int]]) -> None:
    source, order, target = case
    found = reshaped_order(source, order, target)
    if found is None:
        return
    assert sorted(found) == list(range(len(target)))
    logical = np.arange(np.prod(source)).reshape(source)
    in_memory = logical.transpose(order).reshape(-1)
    assert np.array_equal(logical.reshape(target).transpose(found).reshape(-1), in_memory)


def test_pictures_merge_their_rows_and_columns() -> None:
    assert reshaped_order((1, 64, 7, 7), (0, 2, 3, 1), (1, 64, 49)) == (0, 2, 1)
    assert reshaped_order((1, 64, 7, 7), (0, 2, 3, 1), (1, 8, 8, 7, 7)) == (0, 3, 4, 1, 2)
    assert reshaped_order((2, 64, 7, 7), (0, 2, 3, 1), (2, 64 * 49)) is None
    assert reshaped_order((2, 64, 1, 1), (0, 2, 3, 1), (2, 64)) == (0, 1)


MODELS = {
    "heads": """
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[2, 6, 4, 8] q, float[2, 6, 4, 8] k) => (float[2, 6, 32] y) <int64[3] shape = {2, 6, 32}> {
          a = Transpose<perm = [0, 2, 1, 3]>(q)
          b = Transpose<perm = [0, 2, 3, 1]>(k)
          s = MatMul(a, b)
          p = Softmax<axis = -1>(s)
          v = Transpose<perm = [0, 2, 1, 3]>(k)
          o = MatMul(p, v)
          t = Transpose<perm = [0, 2, 1, 3]>(o)
          y = Reshape(t, shape)
        }""",
    "pictures": """
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[n, 9, 6, 5] x) => (float[n, 16, 2, 2] y, float[n, 16] z) {
          a = Conv(x, w)
          b = Relu(a)
          c = Concat<axis = 1>(b, x)
          d = Slice(c, s, e, ax)
          f = Conv<pads = [1, 1, 1, 1]>(d, w2)
          m = MaxPool<kernel_shape = [3, 3], strides = [3, 3], pads = [0, 0, 0, 1]>(f)
          y = Tanh(m)
          g1 = GlobalAveragePool(m)
          z = Flatten(g1)
        }""",
    "rows": """
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[2, 12, 3, 5] x) => (float[2, 15, 12] y) <int64[3] shape = {2, 12, 15}> {
          a = Conv<group = 12, pads = [1, 1, 1, 1]>(x, w)
          b = Reshape(a, shape)
          c = Transpose<perm = [0, 2, 1]>(b)
          y = LayerNormalization(c, one)
        }""",
}  # fmt: skip


def parsed(name: str) -> onnx.ModelProto:
    m = onnx.parser.parse_model(MODELS[name])
    rng = np.random.default_rng(3)
    listed = {
        "w": rng.standard_normal((12, 1, 3, 3) if name == "rows" else (16, 9, 1, 1)),
        "w2": rng.standard_normal((16, 16, 3, 3)),
        "one": rng.standard_normal(12),
    }
    m.graph.initializer.extend(
        onnx.numpy_helper.from_array(data.astype(np.float32), key)
        for key, data in listed.items()
        if any(key in n.input for n in m.graph.node)
    )
    if name == "pictures":
        for key, data in (("s", [0]), ("e", [16]), ("ax", [1])):
            m.graph.initializer.append(onnx.numpy_helper.from_array(np.array(data, np.int64), key))
    return m


@pytest.mark.thinned
@pytest.mark.toolchain
@pytest.mark.parametrize("name", MODELS)
def test_results_are_those_of_onnxruntime(name: str) -> None:
    m = parsed(name)
    rng = np.random.default_rng(4)
    shapes = {i.name: [d.dim_value or 2 for d in i.type.tensor_type.shape.dim] for i in m.graph.input}
    x = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    got = occ.compile(m, "cpu").run(x)
    want = onnxruntime.InferenceSession(m.SerializeToString()).run(list(got), x)
    for a, b in zip(got.values(), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_transpositions_become_views_and_no_copy_is_left() -> None:
    module = Compilation(parsed("heads"), Settings("cpu", verify=True)).advance("layout")
    names = [op.name for op in module.main.body]
    assert "Transpose" not in names
    assert "pack" not in names  # attention reads its keys in place, and transposes them itself
