"""What kernels take for their sizes: the least that they have to know, so that layers of a net share them."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import onnx
import onnxruntime
import pytest
from machines import TARGETS
from onnx import helper, numpy_helper

import occ
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.ir.dim import floordiv, maximum, put_atoms, symbol, terms_of
from occ.compiler.ir.te.function import TeFunc
from occ.compiler.passes.lower.lower_te import kernel_name
from occ.compiler.passes.te.canonical import _functions, _is_all


def chain(layers: int) -> onnx.ModelProto:
    """Convolutions of stride 2, each on the extents of the one before halved."""
    rng = np.random.default_rng(0)
    w = [
        numpy_helper.from_array(rng.standard_normal((8, 8, 3, 3)).astype(np.float32) / 8, f"w{k}")
        for k in range(layers)
    ]
    nodes = [
        helper.make_node("Conv", [f"x{k}", f"w{k}"], [f"x{k + 1}"], strides=[2, 2], pads=[1, 1, 1, 1]) for k in range(layers)
    ]  # fmt: skip
    x = helper.make_tensor_value_info("x0", 1, ["n", 8, "h", "w"])
    y = helper.make_tensor_value_info(f"x{layers}", 1, None)
    graph = helper.make_graph(nodes, "g", [x], [y], w)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])


def test_layers_at_other_depths_share_a_kernel() -> None:
    """A convolution of stride 2 has to know the extents of its operand, not those of the input that they come from."""
    m = Compilation(chain(5), Settings("cpu")).advance("scheduled")
    calls = [op for op in m.walk() if op.name == "call" and op.attrs["te"].startswith("conv")]
    assert len(calls) == 5
    assert len({op.attrs["te"] for op in calls[:-1]}) == 1, "but for the last one, whose result is row-major"


@pytest.mark.toolchain
@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
def test_shared_kernels_compute_every_size(target: str) -> None:
    model = chain(4)
    session, right = occ.compile(model, target), onnxruntime.InferenceSession(model.SerializeToString())
    for n, h, w in ((1, 1, 1), (2, 2, 9), (1, 33, 17), (3, 64, 40)):
        x = np.random.default_rng(h).standard_normal((n, 8, h, w)).astype(np.float32)
        (want,) = right.run(None, {"x0": x})
        np.testing.assert_allclose(session.run({"x0": x})["x4"], want, rtol=1e-4, atol=1e-5)


def joined(channels: int, batch: int | str = "n") -> onnx.ModelProto:
    """Convolutions that read and write parts of a Concat, and whole tensors."""
    rng = np.random.default_rng(0)
    w = [
        numpy_helper.from_array(
            (rng.standard_normal((channels, channels, 3, 3)) / channels).astype(np.float32), f"w{k}"
        )
        for k in range(4)
    ]
    nodes = [
        helper.make_node("Conv", [given, f"w{k}"], [made], pads=[1, 1, 1, 1])
        for k, (given, made) in enumerate(zip(("x", "a", "b", "c"), ("a", "b", "c", "d"), strict=True))
    ]
    nodes.append(helper.make_node("Concat", ["b", "c"], ["both"], axis=1))
    nodes.append(helper.make_node("Conv", ["both", "v"], ["e"]))
    nodes.append(helper.make_node("Add", ["d", "e"], ["y"]))
    v = rng.standard_normal((channels, 2 * channels, 1, 1)) / channels
    w.append(numpy_helper.from_array(v.astype(np.float32), "v"))
    x = helper.make_tensor_value_info("x", 1, [batch, channels, "h", "w"])
    graph = helper.make_graph(nodes, "g", [x], [helper.make_tensor_value_info("y", 1, None)], w)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])


@pytest.mark.parametrize("batch", [1, "n"])
def test_parts_of_a_join_and_whole_tensors_share_a_kernel(batch: int | str) -> None:
    """How far apart rows are is a value of the call; channels, blocks and shares of threads are too."""
    found: set[str] = set()
    for channels in (32, 64, 256):
        model = joined(channels, batch)
        # kernels of slices have no axis for the batch
        options = {"optimize": "2", "batch-slices": "off"}
        m = Compilation(model, Settings("cpu", options=options)).advance("scheduled")
        calls = [op for op in m.walk() if op.name == "call" and op.attrs["te"].startswith("winograd_")]
        assert len(calls) == 4
        assert any(op.result.tensor.layout.within for op in calls)
        assert any(not op.result.tensor.layout.within for op in calls)
        found |= {op.attrs["te"] for op in calls[:3]}
    assert len(found) == 1


@pytest.mark.toolchain
@pytest.mark.parametrize("level", ["2", "3"])
def test_parts_of_a_join_of_any_size(level: str) -> None:
    model = joined(32)
    session = occ.compile(model, "cpu", options={"optimize": level})
    right = onnxruntime.InferenceSession(model.SerializeToString())
    for n, h, w in ((1, 1, 1), (2, 3, 9), (1, 33, 17), (1, 64, 130)):
        x = np.random.default_rng(h).standard_normal((n, 32, h, w)).astype(np.float32)
        (want,) = right.run(None, {"x": x})
        np.testing.assert_allclose(session.run({"x": x})["y"], want, rtol=1e-3, atol=1e-4)


def products(*shapes: tuple[int | str, int, int]) -> onnx.ModelProto:
    """Products of rows, terms and columns, beside each other, each rectified."""
    rng = np.random.default_rng(0)
    w = [
        numpy_helper.from_array((rng.standard_normal((k, n)) / k).astype(np.float32), f"w{i}")
        for i, (_, k, n) in enumerate(shapes)
    ]
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"h{i}"]) for i in range(len(shapes))]
    nodes += [helper.make_node("Relu", [f"h{i}"], [f"y{i}"]) for i in range(len(shapes))]
    given = [helper.make_tensor_value_info(f"x{i}", 1, [m, k]) for i, (m, k, _) in enumerate(shapes)]
    made = [helper.make_tensor_value_info(f"y{i}", 1, None) for i in range(len(shapes))]
    graph = helper.make_graph(nodes, "g", given, made, w)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])


# few and many rows, terms and columns: blocks of rows or of columns, for threads or for the cache
SHAPES = (3136, 64, 64), (3136, 64, 256), (784, 512, 128), (784, 512, 256), (192, 256, 512), (64, 64, 512), (64, 64, 32)


@pytest.mark.parametrize("machine", ["x86-64-v3", "x86-64-v4", "arm-64"])
def test_products_share_a_kernel_whatever_their_blocks(machine: str) -> None:
    """Lengths of blocks, their order and what threads share are values of the call."""
    options = {"optimize": "2", "halide.target": TARGETS[machine]}
    m = Compilation(products(*SHAPES), Settings("cpu", options=options)).advance("scheduled")
    calls = [op for op in m.walk() if op.name == "call"]
    assert len(calls) == len(SHAPES)
    kinds = {(f.schedule[2].args[3:], any(d.call == "fetch_ahead" for d in f.schedule)) for f in m.te.values()}
    found = {op.attrs["te"] for op in calls}
    assert len(found) == len(kinds), "one for each number of rows of a tile, and its tail, with and without prefetches"


@pytest.mark.toolchain
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [None, "n"])
def test_shared_products_compute_any_sizes(threads: int, rows: str | None) -> None:
    model = products(*((rows or m, k, n) for m, k, n in SHAPES))
    session = occ.compile(model, "cpu", options={"optimize": "2"}, threads=threads)
    right = onnxruntime.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(1)
    for n in (0, 1, 9, 64, 3001) if rows else (0,):
        given = {
            f"x{i}": rng.standard_normal((n if rows else m, k), dtype=np.float32) for i, (m, k, _) in enumerate(SHAPES)
        }
        made = session.run(given)
        for name, want in zip(made, right.run(None, given), strict=True):
            np.testing.assert_allclose(made[name], want, rtol=1e-4, atol=1e-5)


def over_a_plane(size: int, *channels: int) -> onnx.ModelProto:
    """Convolutions of 3x3 over a plane of known size, each to the next number of channels."""
    rng = np.random.default_rng(0)
    pairs = list(pairwise(channels))
    w = [
        numpy_helper.from_array((rng.standard_normal((o, c, 3, 3)) / c).astype(np.float32), f"w{k}")
        for k, (c, o) in enumerate(pairs)
    ]
    nodes = [helper.make_node("Conv", [f"x{k}", f"w{k}"], [f"x{k + 1}"], pads=[1, 1, 1, 1]) for k in range(len(pairs))]
    x = helper.make_tensor_value_info("x0", 1, [1, channels[0], size, size])
    y = helper.make_tensor_value_info(f"x{len(pairs)}", 1, None)
    graph = helper.make_graph(nodes, "g", [x], [y], w)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])


@pytest.mark.parametrize("size", [20, 40, 56])
def test_convolutions_over_a_plane_share_a_kernel_whatever_their_channels(size: int) -> None:
    """Channels near the plane's size, few weights, and one panel of filters make no other kernel."""
    channels = (64, 64, 32, 32, 96, 128, 64)
    for machine in ("x86-64-v3", "x86-64-v4"):
        options = {"optimize": "2", "halide.target": TARGETS[machine]}
        m = Compilation(over_a_plane(size, *channels), Settings("cpu", options=options)).advance("scheduled")
        calls = [op for op in m.walk() if op.name == "call" and op.attrs["te"].startswith("winograd_")]
        assert len(calls) == len(channels) - 1
        assert len({op.attrs["te"] for op in calls[:-1]}) == 1, "but for the last one, whose result is row-major"


@pytest.mark.toolchain
@pytest.mark.parametrize("threads", [1, 2])
def test_a_shared_kernel_over_a_plane_computes_any_channels(threads: int) -> None:
    model = over_a_plane(20, 64, 32, 96, 128, 64)
    session = occ.compile(model, "cpu", options={"optimize": "2"}, threads=threads)
    x = np.random.default_rng(0).standard_normal((1, 64, 20, 20)).astype(np.float32)
    (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x0": x})
    np.testing.assert_allclose(session.run({"x0": x})["x4"], want, rtol=1e-4, atol=1e-5)


def test_the_order_of_the_operands_of_a_sum_is_no_other_kernel() -> None:
    """Exporters write a residual before what is added to it, and after it."""
    w = numpy_helper.from_array(np.random.default_rng(0).standard_normal((16, 16, 1, 1)).astype(np.float32), "w")
    x, z, y = (helper.make_tensor_value_info(n, 1, [1, 16, 8, 8]) for n in "xzy")
    found = []
    for given in (["c", "z"], ["z", "c"]):
        nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Add", given, ["y"])]
        graph = helper.make_graph(nodes, "g", [x, z], [y], [w])
        model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])
        found.append(list(Compilation(model, Settings("cpu")).advance("scheduled").te))
    assert found[0] == found[1]


def test_the_largest_function_outside_of_which_a_size_does_not_occur() -> None:
    h, w = symbol("h", 1), symbol("w", 1)
    half = floordiv(h + 1, 2)
    quarter = floordiv(half + 1, 2)
    assert list(_functions(maximum(half, w), "h")) == [maximum(half, w), half]
    assert not _is_all(quarter, {"h": [half, quarter]})
    assert _is_all(half, {"h": [half, quarter]})
    assert not _is_all(half, {"h": [half, h]})
    mixed = maximum(h, w)
    assert _is_all(mixed, {"h": [mixed, floordiv(mixed, 2)], "w": [mixed, floordiv(mixed, 2)]})
    assert not _is_all(mixed, {"h": [mixed], "w": [mixed, w]}), "w is needed for itself"


def test_put_atoms_replaces_the_outermost_first() -> None:
    h, n = symbol("h"), symbol("n")
    half = floordiv(h + 1, 2)
    ((((atom, _),), _),) = terms_of(half)
    assert put_atoms(3 * n * floordiv(half + 1, 2) + half + 7, {atom: n}) == 3 * n * floordiv(n + 1, 2) + n + 7
    assert put_atoms(5, {atom: n}) == 5


def halved_and_joined(levels: int) -> onnx.ModelProto:
    """Maps halved level by level, and joined again: each is padded with zeros to the extents of the one that it is added to."""
    nodes, w = [], []
    for k in range(levels):
        nodes.append(
            helper.make_node("MaxPool", [f"x{k}"], [f"x{k + 1}"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
        )
    below = f"x{levels}"
    for k in reversed(range(levels)):
        nodes += [
            helper.make_node("ConvTranspose", [below, "up"], [f"u{k}"], strides=[2, 2], group=8),
            helper.make_node("Shape", [f"x{k}"], [f"s{k}"]),
            helper.make_node("Shape", [f"u{k}"], [f"t{k}"]),
            helper.make_node("Sub", [f"s{k}", f"t{k}"], [f"less{k}"]),
            helper.make_node("Concat", ["none", f"less{k}"], [f"pads{k}"], axis=0),
            helper.make_node("Pad", [f"u{k}", f"pads{k}"], [f"p{k}"]),
            helper.make_node("Add", [f"p{k}", f"x{k}"], [f"a{k}"]),
            helper.make_node("Conv", [f"a{k}", "w"], [f"b{k}"], pads=[1, 1, 1, 1]),
        ]
        below = f"b{k}"
    rng = np.random.default_rng(1)
    w = [
        numpy_helper.from_array(rng.standard_normal((8, 1, 2, 2)).astype(np.float32) / 2, "up"),
        numpy_helper.from_array(rng.standard_normal((8, 8, 3, 3)).astype(np.float32) / 8, "w"),
        numpy_helper.from_array(np.zeros(4, np.int64), "none"),
    ]
    x = helper.make_tensor_value_info("x0", 1, ["n", 8, "h", "w"])
    y = helper.make_tensor_value_info(below, 1, None)
    graph = helper.make_graph(nodes, "g", [x], [y], w)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])


@pytest.mark.toolchain
def test_a_kernel_has_one_size_for_each_extent() -> None:
    """The height of a map that is cropped is a sum of quotients; a kernel that works on it has that for its size."""
    text = """
      <ir_version: 10, opset_import: ["" : 18]>
      g (float[n, 8, h, w] x) => (float[n, 8, p, q] cut, float[n, 8, p, q] y) {
        shape = Shape <start = 2> (x)
        three = Constant <value_ints = [3, 3]> ()
        third = Div(shape, three)
        axes = Constant <value_ints = [2, 3]> ()
        cut = Slice(x, third, shape, axes)
        y = Softmax <axis = 3> (cut)
      }"""
    model = onnx.parser.parse_model(text)
    m = Compilation(model, Settings("cpu")).advance("scheduled")
    functions = [f for f in m.te.values() if "softmax" in f.name]
    assert functions
    assert all(len(terms_of(d)) <= 1 for f in functions for p in (*f.params, *f.results) for d in p.type.dims), (
        functions
    )
    session, right = occ.compile(model, "cpu"), onnxruntime.InferenceSession(model.SerializeToString())
    for n, h, w in ((1, 1, 1), (2, 5, 9), (1, 3, 40)):
        x = np.random.default_rng(h).standard_normal((n, 8, h, w)).astype(np.float32)
        _, want = right.run(None, {"x": x})
        np.testing.assert_allclose(session.run({"x": x})["y"], want, rtol=1e-5, atol=1e-6)


@pytest.mark.toolchain
def test_layers_at_other_depths_of_a_decoder_share_a_kernel() -> None:
    model = halved_and_joined(4)
    m = Compilation(model, Settings("cpu")).advance("scheduled")
    calls = [op for op in m.walk() if op.name == "call" and "conv" in op.attrs["te"]]
    assert max(len(str(d)) for op in calls for f in [m.te[op.attrs["te"]]] for p in f.params for d in p.type.dims) < 20
    session, right = occ.compile(model, "cpu"), onnxruntime.InferenceSession(model.SerializeToString())
    for n, h, w in ((1, 16, 16), (2, 17, 33), (1, 31, 19)):
        x = np.random.default_rng(h).standard_normal((n, 8, h, w)).astype(np.float32)
        (want,) = right.run(None, {"x0": x})
        np.testing.assert_allclose(session.run({"x0": x})["b0"], want, rtol=1e-3, atol=1e-4)


def convolution(channels: int, filters: int, plane: int, group: int = 1) -> onnx.ModelProto:
    """A 3 x 3 convolution of a square plane, after one that makes its operand channels-last."""
    rng = np.random.default_rng(0)
    shapes = {"u": (channels, 8, 3, 3), "w": (filters, channels // group, 3, 3)}
    w = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["x", "u"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "w"], ["y"], pads=[1, 1, 1, 1], group=group),
    ]
    x = helper.make_tensor_value_info("x", 1, [1, 8, plane, plane])
    graph = helper.make_graph(nodes, "g", [x], [helper.make_tensor_value_info("y", 1, None)], w)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])


def last_kernel(model: onnx.ModelProto) -> TeFunc:
    """The kernel of a model's last convolution at -O2."""
    m = Compilation(model, Settings("cpu", options={"optimize": "2"})).advance("scheduled")
    names = [op.attrs["te"] for op in m.walk() if op.name == "call" and "te" in op.attrs]
    return m.te[[n for n in names if n.startswith(("conv", "winograd"))][-1]]


def operand(f: TeFunc) -> set[str]:
    """The extents of the first operand of a kernel."""
    return {str(d) for d in f.params[0].type.dims}


def test_a_plane_that_stays_a_number_is_not_written_in_terms_of_channels() -> None:
    """The width of 27 is near twice 16 channels by chance."""
    f = last_kernel(convolution(32, 128, 27))
    assert f.name.startswith("winograd")
    assert operand(f) == {"27", "16*K"}
    _, text = kernel_name("f", f)
    assert not re.search(r"K [+-] \d", text), "no position is computed from the number of channels"


def test_channels_of_small_planes_stay_numbers_where_windows_slide() -> None:
    assert operand(last_kernel(convolution(48, 48, 28, group=48))) == {"28", "48"}
    assert not operand(last_kernel(convolution(48, 48, 160, group=48))) & {"160", "48"}


def test_products_of_few_terms_know_how_many() -> None:
    def terms(k: int) -> str:
        w = numpy_helper.from_array(np.ones((k, 96), np.float32), "w")
        x = helper.make_tensor_value_info("x", 1, [3136, k])
        nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
        graph = helper.make_graph(nodes, "g", [x], [helper.make_tensor_value_info("y", 1, None)], [w])
        model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])
        m = Compilation(model, Settings("cpu", options={"optimize": "2"})).advance("scheduled")
        (f,) = m.te.values()
        return str(f.params[0].type.dims[1])

    assert terms(24) == "24"
    assert "K" in terms(96)
