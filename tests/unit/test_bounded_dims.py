"""Bounds of symbolic dims: what a build makes of them, and what a run checks."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from building import TARGETS, model_of, reference

import occ
from occ.compiler.diagnostics import CompileError
from occ.compiler.frontend.signature import Bounds
from occ.compiler.ir import dim
from occ.compiler.passes.infer.solve import solve
from occ.runtime.errors import RunError

# Strides halve the height three times; at the end stands what has to be as large as a part of the beginning.
HALVES = """g (float[n, 3, h, w] x) => (float[n, 8, p, q] y) {
    a = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, k1)
    b = Relu(a)
    y = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (b, k2)
}"""


@pytest.fixture(scope="module")
def halves() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    made = {"k1": rng.standard_normal((8, 3, 3, 3), np.float32), "k2": rng.standard_normal((8, 8, 3, 3), np.float32)}
    return model_of(HALVES, made)


@pytest.mark.parametrize(
    ("text", "lo", "hi", "step"),
    [("32..1280:32", 32, 1280, 32), ("1..", 1, None, 1), ("0..7", 0, 7, 1), ("5..:4", 5, None, 4)],
)
def test_bounds_are_read(text, lo, hi, step):
    assert Bounds.read(text) == Bounds(lo, hi, step)


@pytest.mark.parametrize("text", ["", "..", "7", "9..7", "1..8:0", "33..63:32", "-1..8", "1..8:x", "1...8"])
def test_what_is_no_bounds_is_refused(text, halves):
    with pytest.raises(ValueError, match=r"write bounds as|no size is within"):
        Bounds.read(text)
    with pytest.raises(CompileError, match="dims: "):
        occ.compile(halves, "interp", dims={"h": text})


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_sizes_within_bounds_run_as_the_reference_says(halves, target):
    session = occ.compile(halves, target, dims={"h": "8..64:8", "w": "4..:4"})
    for h, w in ((8, 4), (16, 20), (64, 12)):
        x = np.random.default_rng(h).standard_normal((2, 3, h, w), np.float32)
        np.testing.assert_allclose(session(x)[0], reference(halves, {"x": x})[0], rtol=1e-4, atol=1e-4)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("h", [0, 4, 12, 72])
def test_a_size_outside_of_its_bounds_is_refused_with_input_axis_value_and_bounds(halves, target, h):
    session = occ.compile(halves, target, dims={"h": "8..64:8"})
    text = f"axis 2 of the input `x` is {h}, the model takes multiples of 8 from 8 to 64 as `h`"
    with pytest.raises(RunError, match=f"^error.OCC0501.: {text}"):
        session.run({"x": np.zeros((1, 3, h, 8), np.float32)})


def test_divisible_sizes_need_no_tails(halves):
    rows = occ.dump(halves, "scheduled", dims={"h": "8..64:8", "w": "8..64:8"})
    assert "D1//2" in rows
    assert "(D1 + 1)//2" not in rows
    assert "(D1 + 1)//2" in occ.dump(halves, "scheduled")


def test_bounds_come_back_from_text(halves, tmp_path: Path):
    text = occ.dump(halves, "scheduled", dims={"h": "8..64:8"})
    assert '  dim h "h" [8, 64] % 8' in text
    assert "D1 [8, inf] % 8" in text
    (tmp_path / "m.occ").write_text(occ.dump(halves, "imported", dims={"h": "8..64:8"}))
    again = occ.dump(tmp_path / "m.occ", "scheduled")
    assert [line for line in again.splitlines() if line.startswith("  te ")] == [
        line for line in text.splitlines() if line.startswith("  te ")
    ]


def test_dims_of_unnamed_axes_have_bounds_by_the_name_that_inspect_shows():
    model = model_of("g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }")
    model.graph.input[0].type.tensor_type.shape.dim[0].ClearField("dim_param")
    session = occ.compile(model, "interp", dims={"x_0": "2..6:2"})
    with pytest.raises(RunError, match="multiples of 2 from 2 to 6 as `x_0`"):
        session(np.zeros((3, 4), np.float32))


def test_bounds_of_a_dim_that_a_shape_fixes_are_refused(halves):
    with pytest.raises(CompileError, match="fixes the dim `h`, for which --dim sets bounds"):
        occ.compile(halves, "interp", dims={"h": "8..64:8"}, shapes={"x": [1, 3, 8, 8]})
    with pytest.raises(CompileError, match="`other`, which is not a dim"):
        occ.compile(halves, "interp", dims={"other": "8..64:8"})


H, W = dim.symbol("H", 32, 1280, 32), dim.symbol("W")


def test_quotients_of_multiples_drop_what_cannot_carry():
    assert dim.floordiv(H + 1, 2) == dim.floordiv(H, 2)
    assert dim.floordiv(dim.floordiv(H + 1, 2) + 1, 2) == dim.floordiv(H, 4)
    assert dim.factor_of(dim.floordiv(H, 4)) == 8
    assert dim.factor_of(dim.floordiv(H, 3)) == 1
    assert dim.factor_of(dim.floordiv(W, 4)) == 1
    assert dim.is_multiple(dim.floordiv(H, 2) * W, 16)
    for n in range(0, 320, 32):
        for add in range(-3, 9):
            d = dim.floordiv(dim.floordiv(H + add, 4) + 3, 8)
            assert dim.evaluate(d, {"H": n}) == ((n + add) // 4 + 3) // 8


def test_quotients_of_multiples_times_their_divisor_are_the_multiples():
    h, w, n = dim.symbol("H", 0, None, 32), dim.symbol("W", 0, None, 4), dim.symbol("N")
    assert 2 * (h // 2) == h // 2 + h // 2 == h
    assert [2 * (h // 4), 6 * (h // 4), -2 * (h // 2), 4 * (h // 2) * (h // 2)] == [h // 2, 3 * (h // 2), -h, h * h]
    assert 2 * ((h + 1) // 2) * n == h * n
    assert 2 * ((h + w) // 2) - w == h
    assert 2 * ((h + 2 * n) // 2) - h == 2 * n
    assert str(2 * (n // 2)) == "2*(N//2)"
    assert str(4 * (h // 64)) == "4*(H//64)", "32 is not a multiple of 64"
    assert str(3 * (h // 2)) == "3*(H//2)"


def test_rows_and_columns_of_positions_are_within_planes_that_may_be_empty():
    """A position of a plane of `rows` by `columns` shows that neither is 0."""
    rows, columns = dim.floordiv(dim.symbol("R") + 3, 4), dim.floordiv(dim.symbol("C") + 3, 4)
    at = dim.symbol("at", 0, rows * columns - 1)
    row = dim.floordiv(at, columns)
    for inside, size in ((row, rows), (at - columns * row, columns)):
        assert dim.lower(inside) >= 0
        assert dim.is_positive(size - inside)
        assert not dim.is_positive(size - 1 - inside)
    elsewhere = dim.floordiv(dim.symbol("any"), columns)
    assert dim.lower(elsewhere) < 0, "nothing shows that there is a column"


def test_what_is_halved_and_doubled_needs_no_check_of_sizes():
    """A pyramid: what comes down and up again is as large as what it is added to."""
    text = """g (float[n, 2, h, w] x) => (float[n, 2, p, q] y) {
        a = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
        s = Constant <value = float[4] {1, 1, 2, 2}> ()
        b = Resize <mode = "nearest"> (a, , s)
        y = Add(b, x)
    }"""
    even = occ.build(model_of(text), "cpu-jit", dims={"n": "0..64", "h": "0..64:2", "w": "0..64:2"}).manifest
    assert even.constraints == []
    assert even.outputs[0].shape == even.inputs[0].shape
    assert occ.build(model_of(text), "cpu-jit").manifest.constraints


def test_a_dim_that_takes_the_place_of_another_has_its_bounds():
    found = solve(H, W, {})
    assert found is not None
    (merged,) = {dim.symbols(v)["W"] for v in found.values()}
    assert (merged.lo, merged.hi, merged.divisible_by) == (32, 1280, 32)
    assert solve(H, 3 * W, {}) is None  # nothing says that 3 * W is a multiple of 32
    assert solve(H, 7, {}) is None  # the run fails, since no size is both


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_bounds_hold_for_a_dim_that_turns_out_to_be_another_one(target):
    model = model_of("g (float[n, 4] x, float[m, 4] y) => (float[n, 4] z) { z = Add(x, y) }")
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 4
    session = occ.compile(model, target, dims={"n": "8..32:8", "m": "8..64:4"})
    for n in (4, 12, 64):
        x = np.ones((n, 4), np.float32)
        with pytest.raises(RunError, match="OCC0501"):
            session(x, x)
    np.testing.assert_array_equal(session(*[np.ones((16, 4), np.float32)] * 2)[0], np.full((16, 4), 2, np.float32))


def test_commands_take_bounds(halves, tmp_path: Path, occ_cli):
    path = tmp_path / "m.onnx"
    onnx.save(halves, path)
    out = tmp_path / "m.occ"
    ran = occ_cli("build", path, "-t", "cpu-jit", "--dim", "h=8..64:8", "--dim", "w=48..:16", "-o", out)
    assert ran.code == 0, ran.err
    shown = occ_cli("inspect", out).out
    assert "h: 8 to 64, multiples of 8" in shown
    ran = occ_cli("run", out)
    assert ran.code == 0, ran.err
    assert "h=32, w=48" in ran.err
    wrong = occ_cli("run", out, "--dim", "h=9")
    assert "axis 2 of the input `x` is 9, the model takes multiples of 8 from 8 to 64 as `h`" in wrong.err
    bad = occ_cli("build", path, "-t", "cpu-jit", "--dim", "h=9..8")
    assert (bad.code, "no size is within 9..8" in bad.err) == (2, True)
