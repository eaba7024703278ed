"""What the fuzzers found, each in its smallest form."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.sessions import open_session
from occ.compiler.driver.settings import Settings
from occ.compiler.driver.source import parsed
from tools.fuzz.oracle import SUMMED, Reject, model_of, run_node, run_onnxruntime, run_other


def model(
    nodes, feeds: dict[str, np.ndarray], weights: dict[str, np.ndarray] | None = None, opset: int = 17
) -> ModelProto:
    """A model of nodes whose last result is the output `y`."""
    ends = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feeds.items()
    ]
    data = [numpy_helper.from_array(x, n) for n, x in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", ends, [helper.make_empty_tensor_value_info("y")], data)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_view_of_a_view_with_axes_that_are_an_input(target: str) -> None:
    """The rule that joins views took for known what only the axes decide."""
    feeds = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "axes": np.array([1])}
    nodes = [
        helper.make_node("Unsqueeze", ["x", "first"], ["a"]),
        helper.make_node("Unsqueeze", ["a", "axes"], ["b"]),
        helper.make_node("Flatten", ["b"], ["y"], axis=2),
    ]
    made = model(nodes, feeds, {"first": np.array([0])})
    session = open_session(Compilation(made, Settings(target, cache=False)).artifact(), 1)
    np.testing.assert_array_equal(session.run(feeds)["y"], run_onnxruntime(made, feeds)["y"])


def test_reduction_in_memory_to_rows_of_nothing() -> None:
    """Lanes for an extent of 0 were none, by which an extent was divided."""
    feeds = {"x": np.zeros((3, 0), np.float32)}
    made = model([helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)], feeds, {"axes": np.array([0])})
    compilation = Compilation(made, Settings("cpu", cache=False))
    compilation.advance(compilation.last_stage)
    assert compilation.options.machine.lanes(32, 0) == 1


def test_transposed_convolution_of_nothing() -> None:
    """A convolution has no window over nothing, but a transposed one has a result."""
    feeds = {"x": np.ones((1, 1, 2, 0), np.float32)}
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 1])
    made = model([node], feeds, {"w": np.ones((1, 1, 2, 1), np.float32)})
    compilation = Compilation(made, Settings("cpu-jit", cache=False))
    assert compilation.advance(compilation.last_stage).main.results[0].tensor.dims == (1, 1, 4, 0)


def reference(m: ModelProto) -> None:
    a = m.graph.node[0].attribute.add(name="value_ints", type=7)
    a.ref_attr_name = "given"


def untyped(m: ModelProto) -> None:
    """A tensor of a type that there is not."""
    m.graph.node[0].attribute.add(name="value_ints", type=4).t.CopyFrom(TensorProto(dims=[2], data_type=2**31 - 1))


def misspelt(m: ModelProto) -> None:
    """It was taken for a tensor of strings, and ended in a KeyError where the type of its elements was unknown."""
    m.graph.node[0].attribute.append(helper.make_attribute("vale", numpy_helper.from_array(np.ones(2, np.float32))))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (reference, "the model itself has no attribute of that name"),
        (untyped, "has no such value"),
        (misspelt, "`Constant` has no attribute `vale`"),
    ],
)
def test_constant_without_a_value(change, why: str) -> None:
    made = model([helper.make_node("Constant", [], ["c"]), helper.make_node("Neg", ["c"], ["y"])], {})
    change(made)
    with pytest.raises(CompileError, match=why):
        Compilation(made, Settings("interp", cache=False))


@pytest.mark.parametrize(("dtype", "scale", "known"), [(np.float32, 1.5, True), (np.float32, 1.4, False)])
def test_resize_on_which_runtimes_disagree_is_not_taken(dtype: type, scale: float, known: bool) -> None:
    feeds = {"x": np.ones((1, 1, 2, 2), dtype), "s": np.array([1, 1, 1, scale], np.float32)}
    node = helper.make_node(
        "Resize", ["x", "", "s"], ["y"], mode="linear", coordinate_transformation_mode="align_corners"
    )
    if known:
        assert run_node(node, feeds, 13)[0].shape == (1, 1, 2, 3)
    else:
        with pytest.raises(Reject, match="disagree"):
            run_node(node, feeds, 13)


def test_reference_is_not_asked_for_the_bias_of_groups() -> None:
    """onnxruntime has no transposed convolution of f64, and onnx.reference adds the bias of the first group to every group."""
    feeds = {"x": np.ones((1, 2, 3)), "w": np.ones((2, 1, 1)), "b": np.array([1.0, 2.0])}
    with pytest.raises(Reject):
        run_node(helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], group=2), feeds, 22)


HEAD = '@m {stage="inferred"} {\n'
SCAN = """module @m {{stage="inferred"}} {{
  weight @w : f32[4] = dense<1.0, 2.0, 3.0, 4.0>
  func @scan.body(%s: f32[4], %e: f32[4]) -> (f32[4], f32[4]) {{
    %v = Add(%s, %e) : f32[4]
    return %v, %e
  }}
  func @main(%x: {x}) -> (f32[4], f32[3,4]) as "y", "z" {{
    %y, %z = Scan(@w, %x) {{body=@scan.body, captures={captures}, num_scan_inputs=1}} : (f32[4], f32[3,4])
    return %y, %z
  }}
}}
"""
TEXTS = {
    "no function @main": f"module {HEAD}}}\n",
    "extents are not constants": f'module {HEAD}  dim n "n"\n  weight @w : f32[n] = dense<1.0>\n'
    '  func @main() -> f32[n] as "y" {\n    return @w\n  }\n}\n',
    "takes rank 4, not 3": f'module {HEAD}  func @main(%x: f32[1,4,2]) -> f32[1,1,4] as "y" {{\n'
    "    %y = DepthToSpace(%x) {blocksize=2} : f32[1,1,4]\n    return %y\n  }\n}\n",
    "has 0 regions, not one": f'module {HEAD}  func @main(%x: f32[4]) -> f32[4] as "y" {{\n'
    '    %y = fuse(%x) {kind="pointwise"} : f32[4]\n    return %y\n  }\n}\n',
    "names 2 results, and returns 1": f'module {HEAD}  func @main(%x: f32[4]) -> (f32[4], f32[4]) as "y", "z" {{\n'
    "    return %x\n  }\n}\n",
    "two inputs with the name `x`": f'module {HEAD}  func @main(%x: f32[4], %x: f32[2]) -> f32[4] as "y" {{\n'
    "    return %x\n  }\n}\n",
    "has the size n, which is not declared": f'module {HEAD}  func @main(%x: f32[4]) -> f32[4] as "y" {{\n'
    "    %y = Relu(%x) : f32[n]\n    return %y\n  }\n}\n",
    "in 1 parts has 2 results": f'module {HEAD}  func @main(%x: f32[4]) -> (f32[4], f32[4]) as "y", "z" {{\n'
    "    %y, %z = Split(%x) {axis=0, num_outputs=1} : (f32[4], f32[4])\n    return %y, %z\n  }\n}\n",
    "reads %x, which is not defined before it": f'module {HEAD}  func @main(%x: f32[4]) -> f32[4] as "y" {{\n'
    '    %y = fuse(%x) {kind="relu"} : f32[4] do (%a: f32[4]) {\n      %b = Relu(%x) : f32[4]\n      yield %b\n    }\n'
    "    return %y\n  }\n}\n",
    "which contradict its attributes": SCAN.format(captures=2, x="f32[3,4]"),
    r"passes %x : f32\[4\] to %e : f32\[4\]": SCAN.format(captures=0, x="f32[4]"),
    "has 3 axes, and the tensor 1": f'module {HEAD}  weight @w : f32[4]@Abc4a = dense<1.0>\n  func @main(%x: f32[4]) -> f32[4] as "y" {{\n'
    "    return %x\n  }\n}\n",
}


@pytest.mark.parametrize("why", TEXTS)
def test_text_that_is_no_module(why: str) -> None:
    with pytest.raises(CompileError, match=why) as found:
        parsed(TEXTS[why])
    assert found.value.diagnostics[0].code == "OCC0601"


def test_the_other_oracle_is_not_the_reference_where_that_is_wrong() -> None:
    x = np.array([[-1, 2]], np.float32)
    info = [helper.make_tensor_value_info(n, 1, x.shape) for n in "xy"]
    node = helper.make_node("LpNormalization", ["x"], ["y"], p=1)
    found = run_other(model_of(helper.make_graph([node], "g", info[:1], info[1:]), 22), {"x": x})
    assert np.allclose(found["y"], [[-1 / 3, 2 / 3]])


def test_the_scale_of_zeros_is_disputed() -> None:
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"])
    with pytest.raises(Reject):
        run_node(node, {"x": np.zeros(3, np.float32)}, 13)
    assert run_node(node, {"x": np.ones(3, np.float32)}, 13)[0].tolist() == [255] * 3


@pytest.mark.parametrize("op", sorted(SUMMED))
def test_sums_that_the_reference_keeps_in_bf16_are_disputed(op: str) -> None:
    """And those of other types are not: LayerNormalization has a mean of squares to 8 bits there, and to 24 here."""
    node = helper.make_node(op, ["x", "s"] if "Normalization" in op else ["x"], ["y"])
    opset = 23 if "RMS" in op else 17
    for dtype in (np.float32, ml_dtypes.bfloat16):
        feeds = {n: np.ones((2, 3) if n == "x" else 3, dtype) for n in node.input}
        if dtype is np.float32:
            assert np.isfinite(run_node(node, feeds, opset)[0]).all()
        else:
            with pytest.raises(Reject, match="disagree"):
                run_node(node, feeds, opset)


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_sizes_of_dead_code_are_not_asked_for(target: str) -> None:
    """A branch had an assumption about sizes of a Scan that nothing reads any more, and no entry could be made: OCC0403."""
    made = parser.parse_model("""<ir_version: 9, opset_import: ["" : 17]>
        g (float[a, b] x, float[1, 2, 8] y, bool c, int64 n) => (float u, float[k] all)
          <float one = {1}, float two = {2}, bool[1] on = {1}> {
            state, rows = Scan <num_scan_inputs = 1, body = step (float[2, 8] s, float[2, 8] e) => (float[2, 8] o, float[2, 8] r) {
                o = Max(s, e)
                r = Tanh(e)
            }> (x, y)
            u = If <then_branch = yes () => (float p) {
                sum = Add(state, y)
                chosen = Where(on, sum, rows)
                p = Identity(one)
            }, else_branch = no () => (float q) { q = Identity(two) }> (c)
            last, all = Loop <body = b (int64 i, bool go, float h) => (bool still, float t, float z) {
                still = Identity(go)
                t = Neg(h)
                z = Identity(h)
            }> (n, "", u)
        }""")
    feeds = {
        "x": np.ones((2, 8), np.float32),
        "y": np.ones((1, 2, 8), np.float32),
        "c": np.array(True),
        "n": np.array(3),
    }
    session = open_session(Compilation(made, Settings(target, cache=False)).artifact(), 1)
    for name, x in run_onnxruntime(made, feeds).items():
        np.testing.assert_array_equal(session.run(feeds)[name], x)


def test_shrink_of_doubles_is_what_the_reference_says() -> None:
    node = helper.make_node("Shrink", ["x"], ["y"], bias=0.1)
    (y,) = run_node(node, {"x": np.array([1.0])}, 13)
    assert abs(y[0] - (1 - float(np.float32(0.1)))) < 1e-15


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_sizes_that_bound_themselves(target: str) -> None:
    """Two sizes of a run turned out to be one, whose bound then named it: KeyError as OCC0901."""
    made = parser.parse_model("""<ir_version: 8, opset_import: ["" : 14]>
        g (float[8, 3, 3, 1] w, int64[4] to, float[1, 0, 1, 1] x) => (float[a, b, c, d] y, float[e, f, h, i] z)
          <int64[4] from = {0, 0, 0, 0}> {
            part = Slice(w, from, to)
            shape = Shape(part)
            y = Expand(x, shape)
            z = Reshape(x, shape)
        }""")
    session = open_session(Compilation(made, Settings(target, cache=False)).artifact(), 1)
    for to in ([4, 0, 3, 1], [8, 0, 1, 1], [99, 0, 99, 1]):
        feeds = {"w": np.ones((8, 3, 3, 1), np.float32), "to": np.array(to), "x": np.zeros((1, 0, 1, 1), np.float32)}
        for name, x in run_onnxruntime(made, feeds).items():
            assert session.run(feeds)[name].shape == x.shape


def test_sizes_that_positions_cannot_count_are_no_reads_outside() -> None:
    """The check of reads computes in f64, where 65535 * 1000**4 - 1 is 65535 * 1000**4."""
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["a", "b", 65535, "c", "d"]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "g", info[:1], info[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    compilation = Compilation(made, Settings("cpu-jit", cache=False, verify=True))
    assert compilation.advance("lowered").stage == "lowered"
