"""Transpositions in squares of registers: extents that are not multiples of a square, all types, fused consumers."""

import numpy as np
import onnx
import pytest
from machines import opened
from onnx import helper
from onnx.reference import ReferenceEvaluator

import occ

TYPES = (np.float32, np.float16, np.uint8, np.int64, np.bool_, np.float64)
SHAPES = {
    "hw": ((2, 3, 17, 19), (0, 1, 3, 2)),
    "last": ((2, 21, 5, 33), (0, 2, 3, 1)),
    "first": ((1, 33, 16, 22), (0, 3, 1, 2)),
    "blocks": ((131, 70), (1, 0)),
}
OPTIONS = {"avx2": {"halide.target": "x86-64-linux-avx2-fma"}, "sse": {"halide.target": "x86-64-linux-sse41"}}


def model(dtype: type, *, with_sum: bool = False) -> onnx.ModelProto:
    """A transposition of each shape, of all of them the sum with itself the other way round if wanted."""
    elem = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes, ports = [], []
    for name, (shape, perm) in SHAPES.items():
        ports.append(helper.make_tensor_value_info(name, elem, shape))
        nodes.append(helper.make_node("Transpose", [name], [f"{name}_t"], perm=perm))
        if with_sum:
            turned = tuple(shape[k] for k in perm)
            ports.append(helper.make_tensor_value_info(f"{name}_b", elem, turned))
            nodes.append(helper.make_node("Sub", [f"{name}_t", f"{name}_b"], [f"{name}_d"]))
            nodes.append(helper.make_node("Abs", [f"{name}_d"], [f"{name}_y"]))
    results = [helper.make_tensor_value_info(f"{n}_{'y' if with_sum else 't'}", elem, None) for n in SHAPES]
    graph = helper.make_graph(nodes, "g", ports, results)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def check(m: onnx.ModelProto, dtype: type, target: str, options: dict[str, str]) -> None:
    rng = np.random.default_rng(7)
    given = {
        v.name: rng.integers(
            0, 2 if dtype is np.bool_ else 100, [d.dim_value for d in v.type.tensor_type.shape.dim]
        ).astype(dtype)
        for v in m.graph.input
    }
    want = ReferenceEvaluator(m).run(None, given)
    session = opened(occ.build(m, target, options=options), 2)
    for (name, got), expected in zip(session.run(given).items(), want, strict=True):
        np.testing.assert_array_equal(got, expected, err_msg=name, strict=True)


@pytest.mark.thinned
@pytest.mark.toolchain
@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.__name__)
def test_transpositions(dtype: type, target: str) -> None:
    check(model(dtype), dtype, target, {})


@pytest.mark.thinned
@pytest.mark.toolchain
@pytest.mark.parametrize("options", [{}, *OPTIONS.values()], ids=["cpu", *OPTIONS])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8], ids=lambda t: t.__name__)
def test_transpositions_with_what_follows(dtype: type, options: dict[str, str]) -> None:
    check(model(dtype, with_sum=True), dtype, "cpu", options)


@pytest.mark.toolchain
def test_squares_are_read_along_rows() -> None:
    from occ.compiler.driver.compilation import Compilation, Settings

    functions = Compilation(model(np.float32), Settings("cpu")).advance("scheduled").te.values()
    assert all({"squares", "turned"} <= {getattr(s, "role", "") for s in f.stages} for f in functions)


@pytest.mark.toolchain
def test_a_kernel_without_axes() -> None:
    ports = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, []) for n in ("a", "b", "y")]
    graph = helper.make_graph([helper.make_node("Sub", ["a", "b"], ["y"])], "g", ports[:2], ports[2:])
    m = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    assert occ.compile(m, "cpu").run({"a": np.float32(3), "b": np.float32(1)})["y"] == 2


@pytest.mark.thinned
@pytest.mark.toolchain
@pytest.mark.parametrize("dtype", [np.float32, np.uint8], ids=lambda t: t.__name__)
def test_transpositions_of_any_size(dtype: type) -> None:
    elem = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    ports = [helper.make_tensor_value_info(n, elem, s) for n, s in (("x", ["n", 21, "w"]), ("v", ["h", "w"]))]
    nodes = [
        helper.make_node("Transpose", ["x"], ["y"], perm=[0, 2, 1]),
        helper.make_node("Transpose", ["v"], ["t"]),
        helper.make_node("Abs", ["t"], ["u"]),
    ]
    results = [helper.make_tensor_value_info(n, elem, None) for n in ("y", "u")]
    graph = helper.make_graph(nodes, "g", ports, results)
    m = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    session = occ.compile(m, "cpu", threads=2)
    rng = np.random.default_rng(5)
    for n, h, w in ((1, 16, 16), (2, 15, 33), (1, 1, 64), (3, 70, 65), (0, 5, 17), (1, 0, 9), (2, 130, 1)):
        given = {"x": rng.integers(0, 100, (n, 21, w)).astype(dtype), "v": rng.integers(0, 100, (h, w)).astype(dtype)}
        for name, want in zip(("y", "u"), ReferenceEvaluator(m).run(None, given), strict=True):
            np.testing.assert_array_equal(session.run(given)[name], want, err_msg=f"{name} of {n}, {h}, {w}")
