"""Resize by factors that are not short binary fractions: 0.4, 1/3, 1.3; their intended values, also in old operator sets."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import onnxruntime
import pytest
from building import TARGETS, model_of, reference

import occ
from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings
from occ.runtime.errors import RunError

RNG = np.random.default_rng(0)
ASYMMETRIC = 'mode = "nearest", coordinate_transformation_mode = "asymmetric"'


def onnxruntime_of(model, inputs) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, inputs)[0]


def resize(scales: Sequence[float], shape: str, attributes: str = 'mode = "linear"'):
    dims = ", ".join("abcdef"[: len(scales)])
    text = f"g (float[{shape}] x) => (float[{dims}] y) {{ y = Resize <{attributes}> (x, , s) }}"
    return model_of(text, {"s": np.array(scales, np.float32)})


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("scale", [0.4, 1 / 3, 0.7, 1.1, 2.2])
def test_planes_of_symbolic_size(target: str, scale: float) -> None:
    """Once `cpu` multiplied such sizes by 13421773 in 32 bits, and `cpu-jit` counted to 2**32 in its build."""
    model = resize((1, 1, scale, scale), "n, c, h, w")
    session = occ.compile(model, target=target)
    for shape in [(1, 2, 12, 10), (1, 2, 240, 160)]:
        x = RNG.standard_normal(shape, dtype=np.float32)
        (y,), wanted = session(x), onnxruntime_of(model, {"x": x})
        assert y.shape == wanted.shape
        np.testing.assert_allclose(y, wanted, atol=2e-4)  # onnxruntime finds positions in f32


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("mode", "scale"), [("linear", 1 / 300), ("nearest", 0.4), ("nearest", 1 / 3), ("cubic", 0.75)]
)
def test_long_axes_of_symbolic_size(target: str, mode: str, scale: float) -> None:
    model = resize((1, 1, scale), "n, 3, t", f'mode = "{mode}"') if mode != "cubic" else None
    model = model or resize((1, 1, scale, 1), "n, 3, t, 2", 'mode = "cubic"')
    session = occ.compile(model, target=target)
    for long in (60, 1200, 90_000):
        shape = (1, 3, long) if mode != "cubic" else (1, 3, long, 2)
        x = RNG.standard_normal(shape, dtype=np.float32)
        (y,), (exact,) = session(x), reference(model, {"x": x})
        assert y.shape == exact.shape == onnxruntime_of(model, {"x": x}).shape
        if long < 90_000:  # positions of f32 factors are off by up to 1e-8 of themselves, and neighbours differ by 4
            np.testing.assert_allclose(y, exact, atol=2e-4)


# Extents by onnxruntime and by ONNX's definition, where they differ.
EXTENTS = [
    (60, 1.3, 78, 77), (480, 0.7, 336, 335), (10, 1.1, 11, 11), (10, 0.7, 7, 6), (100, 2.3, 230, 229), (5, 0.6, 3, 3),
    (100, 0.1, 10, 10), (9, 1 / 3, 3, 3), (1200, 1 / 300, 4, 4), (35, 2.2, 77, 77), (70, 0.9, 63, 62),
]  # fmt: skip


@pytest.mark.parametrize("shape", ["1, 1, {}", "1, 1, t"])
@pytest.mark.parametrize(("size", "scale", "meant", "exact"), EXTENTS)
def test_extents(shape: str, size: int, scale: float, meant: int, exact: int) -> None:
    model = resize((1, 1, scale), shape.format(size), 'mode = "nearest"')
    x = np.zeros((1, 1, size), np.float32)
    assert onnxruntime_of(model, {"x": x}).shape[2] == meant
    assert reference(model, {"x": x})[0].shape[2] == exact
    assert occ.compile(model, target="interp")(x)[0].shape[2] == meant
    assert occ.compile(model, target="interp", options={"resize": "exact"})(x)[0].shape[2] == exact


def test_exact_factors_verify_before_types_are_inferred() -> None:
    settings = Settings("interp", options={"resize": "exact"}, cache=False, verify=True)
    made = Compilation(resize((1, 1, 0.7), "1, 2, w", 'mode = "nearest"'), settings).advance("canonical")
    assert "exact_resize" in [op.name for op in made.walk()]


@pytest.mark.parametrize("target", TARGETS)
def test_exact_factors_are_those_of_the_definition(target: str) -> None:
    model = resize((1, 1, 0.7, 1.3), "1, 2, 30, w", 'mode = "nearest", nearest_mode = "ceil"')
    x = RNG.standard_normal((1, 2, 30, 20), dtype=np.float32)
    (y,), (wanted,) = occ.compile(model, target=target, options={"resize": "exact"})(x), reference(model, {"x": x})
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize("target", TARGETS)
def test_sizes_of_a_run_with_exact_factors(target: str) -> None:
    text = 'g (float[1, 2, 5, w] x, int64[4] s) => (float[a, b, c, d] y) { y = Resize <mode = "linear"> (x, , , s) }'
    model = model_of(text, {})
    session = occ.compile(model, target=target, options={"resize": "exact"})
    for size in ([1, 2, 7, 9], [1, 2, 3, 4]):
        given = {"x": RNG.standard_normal((1, 2, 5, 6), dtype=np.float32), "s": np.array(size, np.int64)}
        np.testing.assert_allclose(session.run(given)["y"], onnxruntime_of(model, given), atol=1e-5)


FORMS = [
    'mode = "nearest"',
    'mode = "linear"',
    'mode = "cubic"',
    ASYMMETRIC,
    'mode = "linear", coordinate_transformation_mode = "align_corners"',
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("exact", ["meant", "exact"])
@pytest.mark.parametrize("attributes", FORMS)
def test_scales_that_a_run_computes_are_those_of_a_constant(target: str, exact: str, attributes: str) -> None:
    """One build serves all: it finds the fraction that is meant, as the compiler does for a constant."""
    text = f"""g (float[1, c, h, w] x, float[2] s) => (float[n, d, e, f] y) {{
        o = Constant <value_floats = [1.0, 1.0]> ()
        t = Concat <axis = 0> (o, s)
        y = Resize <{attributes}> (x, , t)
    }}"""
    made = Compilation(model_of(text), Settings(target, options={"resize": exact}))
    assert "deferred" not in [op.name for op in made.advance("canonical").walk()]
    session = occ.compile(model_of(text), target=target, options={"resize": exact})
    for size, scale in [(60, 1.3), (480, 0.7), (9, 1 / 3), (10, 1.1), (100, 640 / 483), (33, 1.2345678), (1, 3)]:
        x, scales = RNG.standard_normal((1, 2, size, 6), dtype=np.float32), np.array([scale, 2 - 1e-7], np.float32)
        constant = resize((1, 1, *scales), f"1, 2, {size}, 6", attributes)
        (wanted,) = occ.compile(constant, target="interp", options={"resize": exact})(x)
        (y,) = session(x, scales)
        assert y.shape == wanted.shape
        np.testing.assert_allclose(y, wanted, atol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_scales_that_a_run_computes_are_refused_where_they_are_none(target: str) -> None:
    session = occ.compile(model_of("g (float[h] x, float[1] s) => (float[n] y) { y = Resize(x, , s) }"), target=target)
    for scale in (0, -1, np.inf, np.nan):
        with pytest.raises(RunError, match="a scale must be greater than 0"):
            session.run({"x": np.ones(4, np.float32), "s": np.array([scale], np.float32)})


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("kind", [np.float32, np.uint8])
def test_crops_have_the_extrapolation_value_outside(target: str, mode: str, kind: type) -> None:
    name = {np.float32: "float", np.uint8: "uint8"}[kind]
    crop = f'mode = "{mode}", coordinate_transformation_mode = "tf_crop_and_resize", extrapolation_value = 99.0'
    text = f"g ({name}[1, 1, h, 7] x) => ({name}[a, b, c, d] y) {{ y = Resize <{crop}> (x, roi, s) }}"
    weights = {"s": np.array([1, 1, 0.6, 0.6]), "roi": np.array([0, 0, 0.1, -0.2, 1, 1, 0.8, 1.1])}
    model = model_of(text, {k: v.astype(np.float32) for k, v in weights.items()})
    x = np.arange(35).reshape(1, 1, 5, 7).astype(kind)
    (y,) = occ.compile(model, target=target)(x)
    assert (y == 99).any()
    assert not (y == 99).all()
    np.testing.assert_allclose(y, reference(model, {"x": x})[0], atol=1 if kind is np.uint8 else 1e-4)
    np.testing.assert_array_equal(y == 99, onnxruntime_of(model, {"x": x}) == 99)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "scales", [(1, 1, 0.6, 0.6), (1, 1, 1, 0.75), (1, 1, 0.5, 0.5), (1, 1, 2, 0.6), (1, 1, 0.75, 1.5)]
)
def test_nearest_of_operator_set_10(target: str, scales: Sequence[float]) -> None:
    text = "g (float[1, 1, 2, 4] x, float[4] s) => (float[a, b, c, d] y) { y = Resize (x, s) }"
    x, given = np.arange(8, dtype=np.float32).reshape(1, 1, 2, 4), np.array(scales, np.float32)
    wanted = onnxruntime_of(model_of(text, opset=10), {"x": x, "s": given})
    constant = model_of(text.replace(", float[4] s", ""), {"s": given}, opset=10)
    np.testing.assert_array_equal(occ.compile(constant, target=target)(x)[0], wanted)
    np.testing.assert_array_equal(occ.compile(model_of(text, opset=10), target=target)(x, given)[0], wanted)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("shape", ["1, 1, 7, 11", "1, 1, h, w"])
def test_aspect_ratios(target: str, policy: str, shape: str) -> None:
    how = f'mode = "linear", axes = [2, 3], keep_aspect_ratio_policy = "{policy}"'
    text = f"g (float[{shape}] x) => (float[a, b, c, d] y) {{ y = Resize <{how}> (x, , , sizes) }}"
    model = model_of(text, {"sizes": np.array([5, 10], np.int64)})
    x = RNG.standard_normal((1, 1, 7, 11), dtype=np.float32)
    (y,), (wanted,) = occ.compile(model, target=target)(x), reference(model, {"x": x})
    np.testing.assert_allclose(y, wanted, atol=1e-5)
    assert onnxruntime_of(model, {"x": x}).shape == y.shape


@pytest.mark.parametrize("scale", [0.0, -0.5, float("nan"), float("inf")])
def test_scales_that_are_none_are_refused(scale: float) -> None:
    with pytest.raises(occ.CompileError, match="must be greater than 0"):
        occ.compile(resize((1, 1, scale), "1, 1, t"), target="interp")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("steps", ["Identity(c)", "Add(c, c)", "Exp(c)"])
def test_scales_that_are_computed_of_constants(target: str, steps: str) -> None:
    """Folding made them known, and left undefined sizes; Exp is none of the arithmetic of shapes."""
    text = f'g (float[1, 2, h, 8] x) => (float[a, b, c, d] y) {{ s = {steps}  y = Resize <mode = "nearest"> (x, , s) }}'
    scales = np.array([1, 1, 2, 2], np.float32)
    given = {"Identity(c)": scales, "Add(c, c)": scales / 2, "Exp(c)": np.log(scales)}[steps]
    model = model_of(text, {"c": given.astype(np.float32)})
    x = RNG.standard_normal((1, 2, 5, 8), dtype=np.float32)
    session = occ.compile(model, target=target)
    assert [o.shape for o in session.outputs] == [(1, 2, "2*h", 16)]
    np.testing.assert_array_equal(session(x)[0], reference(model, {"x": x})[0])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", ["33", "t"])
@pytest.mark.parametrize("scale", [Fraction(11, 10), Fraction(7, 10), Fraction(33, 10), Fraction(6, 5)])
def test_positions_that_are_whole_numbers(target: str, shape: str, scale: Fraction) -> None:
    """33 / 1.1 is 30; in f64 it was a little less, and `floor` took the neighbour before."""
    model = resize((float(scale),), shape, f'{ASYMMETRIC}, nearest_mode = "floor"')
    x = np.arange(33, dtype=np.float32)
    (y,) = occ.compile(model, target=target)(x)
    assert y.tolist() == [k / scale // 1 for k in range(len(y))]
    assert len(y) == 33 * scale // 1


def test_regions_that_end_at_the_last_element() -> None:
    """0.34 * 4 + 6 * (1.11 - 0.34) * 4 / 7 is 4, the last position of five; the f32 of a file are what it means by them."""
    node = (
        'Resize <mode = "nearest", coordinate_transformation_mode = "tf_crop_and_resize", extrapolation_value = -1.0>'
    )
    model = model_of(
        f"g (float[5] x) => (float[8] y) {{ y = {node} (x, r, , s) }}",
        {"r": np.float32([0.34, 1.11]), "s": np.array([8])},
    )
    x = np.arange(5, dtype=np.float32)
    (y,) = occ.compile(model, target="interp")(x)
    assert y.tolist() == onnxruntime_of(model, {"x": x}).tolist() == [1, 2, 2, 3, 3, 4, 4, -1]


@pytest.mark.parametrize("region", [[0.0, float("nan")], [0.0, float("inf")], [0.0]])
def test_regions_that_are_none_are_refused(region: list[float]) -> None:
    node = 'Resize <mode = "nearest", coordinate_transformation_mode = "tf_crop_and_resize">'
    model = model_of(
        f"g (float[5] x) => (float[8] y) {{ y = {node} (x, r, , s) }}", {"r": np.float32(region), "s": np.array([8])}
    )
    with pytest.raises(CompileError, match="is not a finite start and end"):
        occ.compile(model, target="interp")


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
@pytest.mark.parametrize("count", [1, 3, 21])
def test_scales_of_other_axes_are_refused_by_the_run(target: str, count: int) -> None:
    """More of them than a tensor has axes were an exception of the compiler."""
    model = model_of('g (float[1, 4] x, float[k] s) => (float[a, b] y) { y = Resize <mode = "nearest"> (x, , s) }')
    feeds = {"x": np.ones((1, 4), np.float32), "s": np.ones(count, np.float32)}
    with pytest.raises((RunError, CompileError), match=f"{count} scales or sizes for 2 axes|axis 0 of the input"):
        occ.compile(model, target=target).run(feeds)
