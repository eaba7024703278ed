"""Rows that come from several places, part by part: Concat along the last axis, Tile and Pad, at extents that no vector has."""

import numpy as np
import onnx
import pytest
from machines import opened
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import occ

TYPES = (np.float32, np.float16, np.uint8, np.int64, np.bool_, np.float64)
OPTIONS = {
    "this": {},
    "avx2": {"halide.target": "x86-64-linux-avx2-fma"},
    "sse": {"halide.target": "x86-64-linux-sse41"},
}


def model(dtype: type, rows: int | str, widths: tuple[int | str, ...]) -> onnx.ModelProto:
    """Concat of all inputs, and of one with itself on one axis alone; what is repeated and mirrored of the first."""
    elem = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    names = [f"x{k}" for k in range(len(widths))]
    constants = {
        "times": np.array([1, 2, 3]),
        "pads": np.array([0, 1, 2, 0, 0, 3]),
        "around": np.array([0, 0, 1, 0, 1, 2]),
        "flat": np.array([-1]),
    }
    nodes = [
        helper.make_node("Concat", names, ["joined"], axis=-1),
        helper.make_node("Concat", [names[0], names[0]], ["twice"], axis=2),
        helper.make_node("Reshape", [names[0], "flat"], ["line"]),
        helper.make_node("Reshape", [names[1], "flat"], ["other"]),
        helper.make_node("Concat", ["line", "other"], ["lines"], axis=0),
        helper.make_node("Tile", [names[0], "times"], ["tiled"]),
        helper.make_node("Pad", [names[0], "pads"], ["mirrored"], mode="reflect"),
        helper.make_node("Pad", [names[0], "around"], ["wrapped"], mode="wrap"),
    ]
    ports = [helper.make_tensor_value_info(n, elem, [2, rows, w]) for n, w in zip(names, widths, strict=True)]
    results = [
        helper.make_tensor_value_info(n, elem, None)
        for n in ("joined", "twice", "lines", "tiled", "mirrored", "wrapped")
    ]
    weights = [numpy_helper.from_array(v, n) for n, v in constants.items()]
    graph = helper.make_graph(nodes, "g", ports, results, weights)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def inputs(dtype: type, rows: int, widths: tuple[int, ...]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {
        f"x{k}": rng.integers(0, 2 if dtype is np.bool_ else 100, (2, rows, w)).astype(dtype)
        for k, w in enumerate(widths)
    }


def check(session, m: onnx.ModelProto, given: dict[str, np.ndarray]) -> None:
    want = ReferenceEvaluator(m).run(None, given)
    for (name, got), expected in zip(session.run(given).items(), want, strict=True):
        np.testing.assert_array_equal(got, expected, err_msg=name, strict=True)


@pytest.mark.thinned
@pytest.mark.toolchain
@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.__name__)
def test_parts_of_constant_extents(dtype: type) -> None:
    m = model(dtype, 5, (33, 7, 100))
    for target in ("cpu", "cpu-jit"):
        check(occ.compile(m, target, threads=2), m, inputs(dtype, 5, (33, 7, 100)))


@pytest.mark.thinned
@pytest.mark.toolchain
@pytest.mark.parametrize("options", list(OPTIONS.values()), ids=list(OPTIONS))
@pytest.mark.parametrize("dtype", [np.float32, np.uint8], ids=lambda t: t.__name__)
def test_parts_of_any_extent(dtype: type, options: dict[str, str]) -> None:
    m = model(dtype, "n", ("a", "b", "c"))
    session = opened(occ.build(m, "cpu", options=options), 2)
    for rows, widths in ((3, (17, 33, 5)), (1, (4, 1, 64)), (2, (5, 0, 3)), (70, (63, 65, 0)), (300, (129, 64, 40))):
        check(session, m, inputs(dtype, rows, widths))


@pytest.mark.toolchain
def test_each_part_has_vectors_of_its_own() -> None:
    from occ.compiler.driver.compilation import Compilation, Settings

    functions = Compilation(model(np.float32, "n", ("a", "b", "c")), Settings("cpu")).advance("scheduled").te
    (joined,) = (f for name, f in functions.items() if name.startswith("concat") and len(f.params) == 3)
    assert [d.update for d in joined.schedule if d.call == "vectorize"] == [1, 2, 3]


def rows_of_three(dtype: type) -> onnx.ModelProto:
    """Rows of three tensors, joined along the axis before the last; `w` is the length of a row."""
    elem = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    ports = [helper.make_tensor_value_info(f"x{k}", elem, ["n", c, "w"]) for k, c in enumerate((5, 1, 9))]
    nodes = [helper.make_node("Concat", [p.name for p in ports], ["y"], axis=1)]
    graph = helper.make_graph(nodes, "g", ports, [helper.make_tensor_value_info("y", elem, None)])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


@pytest.mark.toolchain
@pytest.mark.parametrize("options", list(OPTIONS.values()), ids=list(OPTIONS))
@pytest.mark.parametrize("dtype", [np.float32, np.uint8], ids=lambda t: t.__name__)
def test_joined_rows_are_read_one_tensor_after_another(dtype: type, options: dict[str, str]) -> None:
    from occ.compiler.driver.compilation import Compilation, Settings

    m = rows_of_three(dtype)
    (f,) = Compilation(m, Settings("cpu")).advance("scheduled").te.values()
    assert [d.update for d in f.schedule if d.call == "vectorize"] == [1, 2, 3]
    session = opened(occ.build(m, "cpu", options=options), 2)
    for n, w in ((1, 1), (2, 17), (3, 5000), (0, 64), (16, 130)):
        rng = np.random.default_rng(w)
        given = {f"x{k}": rng.integers(0, 100, (n, c, w)).astype(dtype) for k, c in enumerate((5, 1, 9))}
        check(session, m, given)


@pytest.mark.toolchain
def test_borders_are_written_out() -> None:
    from occ.compiler.driver.compilation import Compilation, Settings

    functions = Compilation(model(np.float32, "n", ("a", "b", "c")), Settings("cpu")).advance("scheduled").te
    padded = [f for name, f in functions.items() if name.startswith("pad")]
    assert [{d.update for d in f.schedule if d.call == "unroll"} for f in padded] == [{1, 3}, {1, 3}]


@pytest.mark.toolchain
@pytest.mark.parametrize("options", list(OPTIONS.values()), ids=list(OPTIONS))
@pytest.mark.parametrize("times", [(1, 2, 3), (4, 1, 2), (2, 3, 1)], ids=str)
def test_repeated_rows_go_to_all_their_places_at_once(times: tuple[int, ...], options: dict[str, str]) -> None:
    from occ.compiler.driver.compilation import Compilation, Settings

    ports = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3, 9, 45])]
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    weights = [numpy_helper.from_array(np.array(times), "times")]
    graph = helper.make_graph([helper.make_node("Tile", ["x", "times"], ["y"])], "g", ports, [result], weights)
    m = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    (f,) = Compilation(m, Settings("cpu")).advance("scheduled").te.values()
    assert not any(d.call == "in_parts" for d in f.schedule)
    check(
        opened(occ.build(m, "cpu", options=options), 2),
        m,
        {"x": np.random.default_rng(3).random((3, 9, 45), np.float32)},
    )


@pytest.mark.parametrize("axis", [0, 1])
def test_joined_rows_whose_number_is_the_least_of_two_sizes(axis: int) -> None:
    """A slice of what a padding of the run has made: Halide does not prove that the two parts are apart."""
    x, pads = np.arange(18 * 16, dtype=np.float32).reshape(18, 16), np.array([1, 0, 2, 3])
    ends = {"start": [-2], "end": [-(2**31)], "axes": [axis], "steps": [-1]}
    nodes = [
        helper.make_node("Pad", ["x", "pads"], ["padded"]),
        helper.make_node("Slice", ["padded", *ends], ["part"]),
        helper.make_node("Concat", ["part", "part"], ["y"], axis=axis),
    ]
    ports = [
        helper.make_tensor_value_info(n, k, s) for n, k, s in (("x", 1, [18, 16]), ("pads", 7, [4]), ("y", 1, None))
    ]
    constants = [numpy_helper.from_array(np.array(v), n) for n, v in ends.items()]
    graph = helper.make_graph(nodes, "g", ports[:2], ports[2:], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    (want,) = ReferenceEvaluator(made).run(None, {"x": x, "pads": pads})
    np.testing.assert_array_equal(opened(occ.build(made, "cpu"), 1).run({"x": x, "pads": pads})["y"], want)
