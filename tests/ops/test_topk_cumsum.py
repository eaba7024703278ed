"""TopK and running sums along axes that are longer than a block, of known and of symbolic extent, against onnx.reference."""

import re

import numpy as np
import onnx
import onnxruntime
import pytest
from building import model_of
from machines import TARGETS as TARGET_OF
from machines import is_here
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import occ
from occ.compiler.codegen_halide.emit import generator
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings

TYPES = ("float32", "float64", "float16", "int8", "uint8", "int32", "int64", "uint64")
MACHINES = [
    pytest.param(n, marks=pytest.mark.skipif(not is_here(n), reason="this machine has not its instructions"))
    for n in ("x86-64-v2", "x86-64-v3")
]
TARGETS = ("interp", "cpu-jit", pytest.param("cpu", marks=pytest.mark.toolchain))


def model(op: str, dtype: str, shape: tuple[object, ...], constant: object, **attributes: int) -> onnx.ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    outputs = ["y", "i"] if op == "TopK" else ["y"]
    node = helper.make_node(op, ["x", "c"], outputs, **attributes)
    kinds = (kind, onnx.TensorProto.INT64)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info(o, t, None) for o, t in zip(outputs, kinds, strict=False)],
        [numpy_helper.from_array(np.array(constant, np.int64), "c")],
    )  # fmt: skip
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def values(dtype: str, *shape: int) -> np.ndarray:
    """With many equal elements, and what is special about a type."""
    rng = np.random.default_rng(sum(shape))
    kind = np.dtype(dtype)
    if kind.kind == "f":
        x = rng.integers(-40, 40, shape).astype(kind) / kind.type(8)
        special = np.array([-0.0, np.inf, -np.inf, np.finfo(kind).tiny], kind)
        x.reshape(-1)[rng.choice(x.size, 8, replace=False)] = np.tile(special, 2)
        return x
    limits = np.iinfo(kind)
    x = rng.integers(max(limits.min, -30), 30, shape).astype(kind)
    x.reshape(-1)[rng.choice(x.size, 4, replace=False)] = [limits.max, limits.min] * 2
    return x


def expected_top(x: np.ndarray, k: int, axis: int, *, largest: int) -> np.ndarray:
    """Positions by a stable sort of numpy, which has NaN last."""
    order = np.argsort(x, axis=axis, kind="stable")
    if largest:
        turned = np.flip(x, axis)
        order = x.shape[axis] - 1 - np.flip(np.argsort(turned, axis=axis, kind="stable"), axis)
    return np.take(order, range(k), axis=axis)


def check_top(session: object, x: np.ndarray, k: int, axis: int, *, largest: int) -> None:
    got = session.run({"x": x})
    want = expected_top(x, k, axis, largest=largest)
    np.testing.assert_array_equal(got["i"], want)
    np.testing.assert_array_equal(got["y"], np.take_along_axis(x, want, axis))


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", TYPES)
def test_top_of_an_axis_of_any_length(target: str, dtype: str) -> None:
    largest = int(dtype not in ("int32", "float64"))
    session = occ.compile(model("TopK", dtype, ("a", "n"), [7], largest=largest), target, threads=2)
    for shape in ((2, 7), (1, 40), (3, 300)):
        check_top(session, values(dtype, *shape), 7, 1, largest=largest)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("dtype", "largest"), [("float32", 1), ("float16", 0), ("int8", 1), ("uint64", 0)])
@pytest.mark.parametrize(
    ("shape", "k", "axis"),
    [((2, 1001), 5, 1), ((1, 6000), 40, 1), ((2, 500, 3), 2, 1), ((4099,), 1, 0), ((2, 301), 301, 1)],
)
def test_a_few_of_many_by_blocks(
    target: str, dtype: str, largest: int, shape: tuple[int, ...], k: int, axis: int
) -> None:
    session = occ.compile(model("TopK", dtype, shape, [k], axis=axis, largest=largest), target)
    check_top(session, values(dtype, *shape), k, axis, largest=largest)
    # All alike: the first ones are taken, though what is past the end is equal.
    for fill in np.array([-40, 0, 7]).astype(dtype):
        check_top(session, np.full(shape, fill, dtype), k, axis, largest=largest)
    least = np.full(shape, np.iinfo(dtype).min if np.dtype(dtype).kind in "iu" else -np.inf, dtype)
    check_top(session, least, k, axis, largest=largest)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("k", [4, 8, 9, 60])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_few_of_an_unknown_number(target: str, k: int, axis: int) -> None:
    """Fewer elements than blocks, as many, and many more; ties, the least of a type, and NaN."""
    session = occ.compile(model("TopK", "float32", ("n", "m"), [k], axis=axis), target)
    for n in (60, 255, 1025, 5000):
        shape = (n, 2) if axis == 0 else (2, n)
        x = values("float32", *shape)
        check_top(session, x, k, axis, largest=1)
        check_top(session, np.full(shape, -np.inf, np.float32), k, axis, largest=1)
        x.reshape(-1)[::7] = np.nan
        check_top(session, x, k, axis, largest=1)


@pytest.mark.parametrize("target", TARGETS)
def test_top_of_a_long_axis_in_the_middle(target: str) -> None:
    session = occ.compile(model("TopK", "float32", (2, 700, 3), [300], axis=1, largest=0), target)
    x = values("float32", 2, 700, 3)
    check_top(session, x, 300, 1, largest=0)
    x[0, 5:400, 1] = np.nan
    check_top(session, x, 300, 1, largest=0)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("dtype", "largest"), [("float32", 1), ("float64", 0), ("int8", 0), ("uint64", 1)])
@pytest.mark.parametrize(
    ("shape", "k", "axis"),
    [((2, 513), 513, 1), ((1025,), 1025, 0), ((1, 5000), 5000, 1), ((2, 1500, 3), 900, 1), ((2, 1024), 1024, 1)],
)
def test_sorted_in_runs(target: str, dtype: str, largest: int, shape: tuple[int, ...], k: int, axis: int) -> None:
    """More than are compared with each other: one run, two, an odd number, and a last one that is not whole."""
    session = occ.compile(model("TopK", dtype, shape, [k], axis=axis, largest=largest), target, threads=2)
    x = values(dtype, *shape)
    check_top(session, x, k, axis, largest=largest)
    check_top(session, np.sort(x, axis), k, axis, largest=largest)
    check_top(session, np.zeros_like(x), k, axis, largest=largest)


@pytest.mark.parametrize("target", TARGETS)
def test_all_of_an_axis_of_any_length(target: str) -> None:
    """As many as there are, known when it runs: fewer than a block, several rounds of four runs, and none."""
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[a, n] x) => (float[a, n] y, int64[a, n] i) {
        k = Shape <start = 1> (x)
        y, i = TopK (x, k)
    }"""
    session = occ.compile(onnx.parser.parse_model(text), target)
    for n in (0, 1, 255, 257, 1024, 1030, 5000):
        x = values("float32", 2, max(n, 8))[:, :n]
        x[:, ::91] = np.nan
        check_top(session, x, n, 1, largest=1)


def test_rows_that_may_be_short_are_not_sorted_in_blocks() -> None:
    """A block has 256 elements: rows of eight would take two hundred times as long."""
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[a, n] x) => (float[a, n] y, int64[a, n] i) {
        k = Shape <start = 1> (x)
        y, i = TopK (x, k)
    }"""
    made = Compilation(onnx.parser.parse_model(text), Settings("cpu-jit", cache=False)).advance("lowered")
    assert not [s.name for f in made.te.values() for s in f.stages if 256 in s.shape]


def test_runs_of_a_known_length_are_merged_by_windows() -> None:
    """A window begins at a computed position, which alone is clamped: its elements are loaded as one vector."""
    made = Compilation(model("TopK", "float32", (1024,), [1024], axis=0), Settings("cpu", cache=False))
    (f,) = made.advance("scheduled").te.values()
    merged = re.findall(r"clamp\(begin\w*\(\w+\), 0, 1024\) \+ ", generator(f))
    assert len(merged) == 2 * 4, "a load of each of two runs in each of the rounds from 64 elements to 1,024"


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("k", [0, 1, 300])
def test_top_of_nan_none_and_all(target: str, k: int) -> None:
    session = occ.compile(model("TopK", "float32", ("n",), [k], axis=0), target)
    x = values("float32", 300)
    x[[3, 200]] = np.nan
    check_top(session, x, k, 0, largest=1)
    check_top(session, np.full(300, np.nan, np.float32), k, 0, largest=1)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("op", "exclusive", "reverse"),
    [
        *(("CumSum", e, r) for e in (0, 1) for r in (0, 1)),
        ("CumProd", 0, 0),
        ("CumProd", 1, 1),
    ],  # which share their code
)
@pytest.mark.parametrize("width", [1, 3, "w"])
def test_running(target: str, op: str, exclusive: int, reverse: int, width: int | str) -> None:
    """Rows in blocks of blocks, and columns, fewer than a vector has lanes and more."""
    opset = 21 if op == "CumSum" else 26
    m = model(op, "float32", ("a", "n", width), 1, exclusive=exclusive, reverse=reverse)
    m.opset_import[0].version = opset
    session = occ.compile(m, target, threads=2)
    for n in (0, 1, 15, 17, 256, 600, 5000):
        shape = (2, n, width if isinstance(width, int) else 37)
        x = np.random.default_rng(n).choice(np.array([-1, 1, 1.001], np.float32), shape)
        combined = np.cumsum if op == "CumSum" else np.cumprod
        y = np.flip(x, 1) if reverse else x
        want = combined(y.astype(np.float64), axis=1)
        if exclusive:
            first = np.full_like(want[:, :1], op == "CumProd")
            want = np.concatenate([first, want[:, :-1]], axis=1)
        want = np.flip(want, 1) if reverse else want
        np.testing.assert_allclose(session.run({"x": x})["y"], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("shape", "axis"), [("a,b,1,c,d", 1), ("2,5,1,3,40", 1), ("a,1,b,d", 2), ("1,b,1,d", 1), ("a,1,b,1,d", 2)]
)
def test_running_past_axes_of_one(target: str, shape: str, axis: int) -> None:
    """Halide does not fuse a loop of one step, whose position is a constant, with the others."""
    text = f"""g (float[{shape}] x) => (float[{shape}] y, float[{shape}] z) {{
        y = CumSum(x, k)
        z = CumSum <reverse = 1, exclusive = 1> (x, k)
    }}"""
    model = model_of(text, {"k": np.int64(axis)})
    extents = dict(zip("abcd", (2, 5, 3, 40), strict=True))
    x = (
        np.random.default_rng(0)
        .standard_normal([extents.get(n) or int(n) for n in shape.split(",")])
        .astype(np.float32)
    )
    found, wanted = occ.compile(model, target).run({"x": x}), onnxruntime.InferenceSession(model.SerializeToString())
    for name, want in zip(("y", "z"), wanted.run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(found[name], want, rtol=1e-4, atol=1e-5)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_running_sum_of_a_known_long_axis(target: str) -> None:
    for dtype, shape, axis in (
        ("int64", (3, 1000), 1),
        ("int32", (5000,), 0),
        ("float64", (2, 33), 1),
        ("int64", (300, 70), 0),
        ("uint64", (4, 9, 20), 1),
    ):
        m = model("CumSum", dtype, shape, axis)
        x = np.random.default_rng(0).integers(0, 99, shape).astype(dtype)
        (want,) = ReferenceEvaluator(m).run(None, {"x": x})
        np.testing.assert_array_equal(occ.compile(m, target).run({"x": x})["y"], want)


@pytest.mark.toolchain
@pytest.mark.parametrize("machine", MACHINES)
def test_running_in_shorter_vectors(machine: str) -> None:
    for shape, axis in (((3, 1003), 1), (("n", "m"), 1), ((90, 21), 0), (("n", "m"), 0)):
        m = model("CumSum", "float32", shape, axis)
        session = occ.compile(m, "cpu", options={"halide.target": TARGET_OF[machine]}, threads=2)
        for dims in ((90, 21), (3, 1003)) if "n" in shape else (shape,):
            x = np.random.default_rng(0).integers(-9, 9, dims).astype(np.float32)
            np.testing.assert_array_equal(session.run({"x": x})["y"], np.cumsum(x, axis))


def test_what_comes_later_than_an_element_does_not_take_part() -> None:
    """Infinity times zero would be NaN."""
    m = model("CumSum", "float32", (2, 600), 1)
    x = np.ones((2, 600), np.float32)
    x[0, 300], x[1, 37] = np.inf, np.nan
    for target in ("interp", "cpu-jit"):
        np.testing.assert_array_equal(occ.compile(m, target).run({"x": x})["y"], np.cumsum(x, 1))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float16", "int8", "uint8", "int16", "float", "int64"])
def test_the_greatest_of_each_column_of_symbolic_length(target: str, dtype: str) -> None:
    """Halide knows that positions are less than 2**32: types of 1 and 2 bytes had values of the first row."""
    text = f"g ({dtype}[n, m] x) => ({dtype}[k, m] v, int64[k, m] i) {{ v, i = TopK <axis = 0> (x, one) }}"
    session = occ.compile(model_of(text, {"one": np.array([1])}), target=target)
    for rows, columns in ((1, 1), (3, 5), (2, 16), (4, 17), (3, 40)):
        x = (np.random.default_rng(columns).standard_normal((rows, columns)) * 50).astype(
            {"float": "float32"}.get(dtype, dtype)
        )
        v, i = session(x)
        np.testing.assert_array_equal(v, x.max(0, keepdims=True))
        np.testing.assert_array_equal(np.take_along_axis(x, i, 0), v)
