"""Kernels that are fast where much is read for little: scattered rows, sums of columns, inverse trigonometric functions, points of grids."""

import numpy as np
import onnx
import pytest
from machines import TARGETS, is_here
from onnx.reference import ReferenceEvaluator

import occ
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings

CPU = pytest.param("cpu", marks=pytest.mark.toolchain)
MACHINES = [
    pytest.param(n, marks=pytest.mark.skipif(not is_here(n), reason="this machine has not its instructions"))
    for n in ("x86-64-v2", "x86-64-v3", "x86-64-v4")
]


def model(graph: str, opset: int = 22) -> onnx.ModelProto:
    opsets = [onnx.helper.make_opsetid("", opset)]
    return onnx.helper.make_model(onnx.parser.parse_graph(graph), opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("target", ["cpu-jit", CPU])
@pytest.mark.parametrize(("op", "exact"), [("Asin", np.arcsin), ("Acos", np.arccos), ("Atan", np.arctan)])
def test_inverse_functions_are_right_to_two_units(target: str, op: str, exact: np.ufunc) -> None:
    x = np.linspace(-1, 1, 20_001, dtype=np.float32)
    if op == "Atan":
        x = np.concatenate([x, 30 * x, np.float32(10) ** np.linspace(-37, 38, 2_001, dtype=np.float32)])
    special = np.array([0.0, -0.0, 1e-40, np.inf, -np.inf, np.nan, 1.5, -1.5, 1, -1, 0.5, -0.5], np.float32)
    session = occ.compile(model(f"g (float[n] x) => (float[n] y) {{ y = {op}(x) }}"), target)
    with np.errstate(invalid="ignore"):
        want = exact(x.astype(np.float64))
        np.testing.assert_allclose(session.run({"x": x})["y"], want, rtol=3e-7, atol=1e-38)
        got, want = session.run({"x": special})["y"], exact(special.astype(np.float64))
    np.testing.assert_allclose(got, want, rtol=3e-7)
    assert (np.signbit(got) == np.signbit(want))[~np.isnan(want)].all()


@pytest.mark.toolchain
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("reduction", ["none", "add", "max"])
def test_scattered_rows_of_any_width(machine: str, reduction: str) -> None:
    rng = np.random.default_rng(0)
    for width in (1, 3, 17, 64, 100, "w"):
        node = f'y = ScatterND <reduction = "{reduction}"> (x, i, u)'
        m = model(f"g (float[n, {width}] x, int64[k, 1] i, float[k, {width}] u) => (float[n, {width}] y) {{ {node} }}")
        session = occ.compile(m, "cpu", options={"halide.target": TARGETS[machine]})
        columns = 37 if isinstance(width, str) else width
        order = rng.permutation(40)[:9] if reduction == "none" else rng.integers(-40, 40, 30)
        x, u = (rng.standard_normal((rows, columns)).astype(np.float32) for rows in (40, len(order)))
        inputs = {"x": x, "i": order[:, None].astype(np.int64), "u": u}
        (want,) = ReferenceEvaluator(m).run(None, inputs)
        np.testing.assert_allclose(session.run(inputs)["y"], want, rtol=1e-5, atol=1e-6)


@pytest.mark.toolchain
def test_later_rows_take_the_place_of_earlier_ones() -> None:
    m = model("g (float[8, 24] x, int64[4, 1] i, float[4, 24] u) => (float[8, 24] y) { y = ScatterND(x, i, u) }", 16)
    x, u = np.zeros((8, 24), np.float32), np.arange(96, dtype=np.float32).reshape(4, 24)
    got = occ.compile(m, "cpu").run({"x": x, "i": np.array([[2], [5], [2], [2]]), "u": u})["y"]
    np.testing.assert_array_equal(got[2], u[3])
    np.testing.assert_array_equal(got[5], u[1])
    assert not got[[0, 1, 3, 4, 6, 7]].any()


@pytest.mark.toolchain
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("shape", [(1, 700, 1024), (3, 130, 2048), (2, 57, 1027)])
def test_sums_of_many_columns(machine: str, shape: tuple[int, ...]) -> None:
    dims = ", ".join(map(str, shape))
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    for op, exact in ("ReduceSum", np.sum), ("ReduceMax", np.max), ("ReduceMean", np.mean):
        text = f"g (float[{dims}] x) => (float[{shape[0]}, {shape[2]}] y) <int64[1] a = {{1}}> {{ y = {op} <keepdims = 0> (x, a) }}"
        session = occ.compile(model(text), "cpu", options={"halide.target": TARGETS[machine]}, threads=2)
        np.testing.assert_allclose(
            session.run({"x": x})["y"],
            exact(x, 1, dtype=np.float64) if op != "ReduceMax" else exact(x, 1),
            rtol=1e-5,
            atol=1e-4,
        )


@pytest.mark.toolchain
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_points_of_a_grid_that_are_no_whole_vectors(machine: str, padding: str, mode: str) -> None:
    node = f'y = GridSample <mode = "{mode}", padding_mode = "{padding}"> (x, g)'
    m = model(f"g (float[2, 3, 7, 9] x, float[2, 5, 11, 2] g) => (float[2, 3, 5, 11] y) {{ {node} }}")
    rng = np.random.default_rng(2)
    inputs = {
        "x": rng.standard_normal((2, 3, 7, 9)).astype(np.float32),
        "g": rng.uniform(-1.3, 1.3, (2, 5, 11, 2)).astype(np.float32),
    }
    (want,) = ReferenceEvaluator(m).run(None, inputs)
    got = occ.compile(m, "cpu", options={"halide.target": TARGETS[machine]}).run(inputs)["y"]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_neighbours_of_points_are_loaded_in_whole_vectors() -> None:
    """A table has the points of each neighbour in a row, and positions in 32 bits."""
    m = model("g (float[1, 3, 7, 9] x, float[1, 5, 12, 2] g) => (float[1, 3, 5, 12] y) { y = GridSample(x, g) }")
    (f,) = Compilation(m, Settings("cpu", cache=False)).advance("lowered").te.values()
    tables = [s for s in f.stages if s.name.startswith(("index", "weight"))]
    assert [s.shape[0] for s in tables] == [2] * 4
    assert {s.dtype.bits for s in tables} == {32}


@pytest.mark.toolchain
def test_pixels_outside_of_an_image_are_zero_though_the_nearest_is_infinite() -> None:
    m = model("g (float[1, 1, 2, 2] x, float[1, 1, 1, 2] g) => (float[1, 1, 1, 1] y) { y = GridSample(x, g) }")
    inputs = {"x": np.full((1, 1, 2, 2), np.inf, np.float32), "g": np.full((1, 1, 1, 2), 5, np.float32)}
    np.testing.assert_array_equal(occ.compile(m, "cpu").run(inputs)["y"], np.zeros((1, 1, 1, 1), np.float32))


@pytest.mark.toolchain
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("shape", ["1", "15", "16", "100", "5000", "3, 70", "n", "n, m"])
def test_codes_through_a_table(machine: str, shape: str) -> None:
    m = model(f"g (uint8[256] t, uint8[{shape}] x) => (uint8[{shape}] y) {{ i = Cast <to = 7> (x) y = Gather(t, i) }}")
    rng = np.random.default_rng(3)
    session = occ.compile(m, "cpu", options={"halide.target": TARGETS[machine]}, threads=2)
    for extent in (1, 17, 70_001) if "n" in shape else (0,):
        dims = [extent if d == "n" else 3 if d == "m" else int(d) for d in shape.split(", ")]
        table, x = (rng.integers(0, 256, d).astype(np.uint8) for d in (256, dims))
        np.testing.assert_array_equal(session.run({"t": table, "x": x})["y"], table[x])
