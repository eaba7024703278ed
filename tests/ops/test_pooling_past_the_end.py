"""Pools whose window is longer than the axis by less than a stride: onnxruntime takes what is there."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import occ
from occ.compiler.diagnostics import CompileError
from occ.runtime.errors import RunError

Form = dict[str, object]
FORMS = (
    {"kernel_shape": [2], "strides": [2]},
    {"kernel_shape": [2], "strides": [3]},
    {"kernel_shape": [4], "strides": [3], "pads": [0, 1]},
)
KINDS = {"MaxPool": {}, "AveragePool": {"count_include_pad": 1}, "LpPool": {"p": 2}}
LENGTHS = (1, 2, 3, 4, 7)


def pool(op: str, form: Form, length: object) -> onnx.ModelProto:
    node = helper.make_node(op, ["x"], ["y"], **form, **KINDS[op])
    x, y = (helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", ["n", 2, length]), ("y", None)))
    graph = helper.make_graph([node], "g", [x], [y])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 19)])


def expected(m: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    return onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})[
        0
    ]


def values(length: int) -> np.ndarray:
    return np.random.default_rng(length).standard_normal((3, 2, length)).astype(np.float32) - 3


def past_the_end(form: Form, length: int) -> bool:
    return length + sum(form.get("pads", [0])) < form["kernel_shape"][0]


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", KINDS)
def test_a_window_is_clipped_where_the_length_is_known(op: str, form: Form, target: str) -> None:
    for length in LENGTHS:
        m, x = pool(op, form, length), values(length)
        np.testing.assert_allclose(occ.compile(m, target).run({"x": x})["y"], expected(m, x), rtol=1e-6)


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", KINDS)
def test_a_run_refuses_what_a_build_of_any_length_would_leave_out(op: str, form: Form, target: str) -> None:
    m = pool(op, form, "t")
    session, extra = occ.compile(m, target), sum(form.get("pads", [0]))
    for length in LENGTHS:
        x = values(length)
        if past_the_end(form, length):
            size = rf"t.* to be at least {form['kernel_shape'][0]}, but for these inputs it is {length + extra}"
            with pytest.raises(RunError, match=f"OCC0503.*node `{op}#1` needs {size}(.|\n)*--shape"):
                session.run({"x": x})
        else:
            np.testing.assert_allclose(session.run({"x": x})["y"], expected(m, x), rtol=1e-6)
    if form["strides"] <= form["kernel_shape"]:  # nothing of a window is there: no result, as onnxruntime has it
        assert session.run({"x": values(0)})["y"].shape == (3, 2, 0)


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
@pytest.mark.parametrize("op", KINDS)
def test_the_size_that_is_asked_for_has_a_result(op: str, target: str) -> None:
    """Not one whose windows begin and end before the axis does, which is shorter."""
    session = occ.compile(pool(op, {"kernel_shape": [8], "strides": [2]}, "t"), target)
    for length in (1, 3, 5, 7):
        with pytest.raises(RunError, match=f"OCC0503.* needs t to be at least 8, but for these inputs it is {length}"):
            session.run({"x": values(length)})
    assert session.run({"x": values(8)})["y"].shape == (3, 2, 1)


@pytest.mark.parametrize("length", [1, "t"])
@pytest.mark.parametrize("op", KINDS)
def test_with_ceil_mode_any_length_will_do(op: str, length: object) -> None:
    m = pool(op, {"kernel_shape": [2], "strides": [2], "ceil_mode": 1}, length)
    np.testing.assert_allclose(occ.compile(m, "interp").run({"x": values(1)})["y"], expected(m, values(1)), rtol=1e-6)


WITHOUT_RESULT: dict[str, tuple[Form, int]] = {
    "one too long": ({"kernel_shape": [7]}, 6),
    "a stride too long": ({"kernel_shape": [8], "strides": [2]}, 6),
    "a stride and a half too long": ({"kernel_shape": [9], "strides": [2]}, 6),
    "with padding": ({"kernel_shape": [9], "strides": [2], "pads": [0, 1]}, 6),
    "dilated": ({"kernel_shape": [4], "dilations": [2]}, 6),
    "rounded up": ({"kernel_shape": [9], "strides": [2], "ceil_mode": 1}, 6),
}


@pytest.mark.parametrize("target", ["interp", "cpu-jit", pytest.param("cpu", marks=pytest.mark.toolchain)])
@pytest.mark.parametrize("case", WITHOUT_RESULT)
@pytest.mark.parametrize("op", KINDS)
def test_a_window_that_nothing_is_left_for_has_no_result(op: str, case: str, target: str) -> None:
    form, length = WITHOUT_RESULT[case]
    m, x = pool(op, form, length), values(length)
    want = expected(m, x)
    assert want.shape == (3, 2, 0)
    np.testing.assert_array_equal(occ.compile(m, target).run({"x": x})["y"], want, strict=True)


@pytest.mark.parametrize("form", [{"kernel_shape": [8]}, {"kernel_shape": [11], "strides": [2]}])
@pytest.mark.parametrize("op", KINDS)
def test_a_window_that_is_longer_still_is_refused(op: str, form: Form) -> None:
    """The definition has less than no elements there; so do onnxruntime and the reference."""
    with pytest.raises(CompileError, match=r"OCC0202.*but the padded input has only 6"):
        occ.compile(pool(op, form, 6), "interp")
    with pytest.raises(Exception, match="FAIL"):
        expected(pool(op, form, 6), values(6))
