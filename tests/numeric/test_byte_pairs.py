"""Products of bytes on x86 without VNNI: in pairs of 16 bits where a weight lets them fit, exact whatever the codes are."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.reference
import onnxruntime
import pytest
from machines import TARGETS, opened
from onnx import numpy_helper

import occ
from occ.compiler.ir.ops.own.quantised_codes import pairs_fit
from occ.compiler.passes.methods.int8.fitting_pairs import fitting_pairs
from occ.compiler.passes.methods.int8.paired_channels import matched

RNG = np.random.default_rng(5)
WITHOUT_VNNI = ("x86-64-v4", "x86-64-v3", "x86-64-v2")
CASES = {
    "product": ("({x}[m, 45] x) => (int32[m, 33] y) {{ y = MatMulInteger (x, w, z) }}", (7, 45), (45, 33)),
    "row": ("({x}[1, 64] x) => (int32[1, 40] y) {{ y = MatMulInteger (x, w, z) }}", (1, 64), (64, 40)),
    "convolution": (
        "({x}[1, 9, 8, 7] x) => (int32[1, 12, 8, 7] y) {{ y = ConvInteger <pads = [1, 1, 1, 1]> (x, w, z) }}",
        (1, 9, 8, 7),
        (12, 9, 3, 3),
    ),
    "strided": (
        "({x}[2, 16, 9, 9] x) => (int32[2, 20, 5, 5] y) {{ y = ConvInteger <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w, z) }}",
        (2, 16, 9, 9),
        (20, 16, 3, 3),
    ),
}


def model(case: str, dtype: type, weight: np.ndarray) -> onnx.ModelProto:
    text = CASES[case][0].format(x=np.dtype(dtype).name)
    made = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> g {text}')
    point = np.array(131 if dtype is np.uint8 else -3, dtype)
    held = [numpy_helper.from_array(v, k) for k, v in (("w", weight), ("z", point))]
    made.graph.initializer.extend(held)
    return made


def extreme(shape: tuple[int, ...], axis: int) -> np.ndarray:
    """Pairs along an axis whose products come to the ends of 16 bits: 127 and 1, -128 and 0, 64 twice."""
    pairs = np.array([(127, 1), (-128, 0), (64, 64), (-64, -64), (127, -128), (0, 0)], np.int8)
    count = shape[axis]
    rest = tuple(n for k, n in enumerate(shape) if k != axis)
    chosen = pairs[RNG.integers(0, len(pairs), (*rest, -(-count // 2)))].reshape(*rest, -1)[..., :count]
    return np.ascontiguousarray(np.moveaxis(chosen, -1, axis))


@pytest.mark.parametrize("machine", WITHOUT_VNNI)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_sums_at_the_ends_of_their_range(dtype: type, case: str, machine: str) -> None:
    _, shape, weight = CASES[case]
    made = model(case, dtype, extreme(weight, 0 if len(weight) == 2 else 1))
    built = occ.build(made, "cpu", options={"halide.target": TARGETS[machine]})
    session = opened(built, 1)
    ends = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
    for x in (np.full(shape, ends[1]), np.full(shape, ends[0]), ends[RNG.integers(0, 2, shape)]):
        (want,) = reference(made, x)
        np.testing.assert_array_equal(session.run({"x": x})["y"], want, strict=True)


def reference(made: onnx.ModelProto, x: np.ndarray) -> Any:
    """By onnxruntime, whose ConvInteger takes unsigned codes alone, or by the specification."""
    if x.dtype == np.int8 and made.graph.node[0].op_type == "ConvInteger":
        return onnx.reference.ReferenceEvaluator(made).run(None, {"x": x})
    return onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})


@pytest.mark.parametrize(
    ("pair", "fits"),
    [
        ((64, 64), True),
        ((127, 1), True),
        ((127, 2), False),
        ((-128, 0), True),
        ((-128, -1), False),
        ((127, -128), True),
    ],
)
def test_which_pairs_fit(pair: tuple[int, int], fits: bool) -> None:
    """Against all codes: the sum of two products is within 16 bits or not."""
    w = np.array([pair], np.int8)
    codes = np.arange(256)
    sums = codes[:, None] * pair[0] + codes * pair[1]
    assert pairs_fit(w) == fits == bool(sums.min() >= -(1 << 15) and sums.max() < 1 << 15)


def bell(rows: int, columns: int) -> np.ndarray:
    """Codes as trained weights have them: most are small, and a few pairs of neighbours pass 16 bits."""
    w = RNG.normal(size=(rows, columns))
    return np.rint(w / np.abs(w).max() * 127).astype(np.int8)


@pytest.mark.parametrize("case", ["product", "row"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_weights_with_a_few_pairs_that_do_not_fit(dtype: type, case: str) -> None:
    """Their rows are multiplied in another order, as bytes, and the sums are exact."""
    _, shape, extents = CASES[case]
    weight = bell(extents[0], extents[1])
    weight[:4] = 127  # not even among themselves
    weight[4:8] = -128
    made = model(case, dtype, weight)
    options = {"halide.target": TARGETS["x86-64-v3"]}
    assert "narrow=1" in str(occ.dump(made, "layout", options=options))
    session = opened(occ.build(made, "cpu", options=options), 1)
    ends = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
    for x in (np.full(shape, ends[1]), np.full(shape, ends[0]), ends[RNG.integers(0, 2, shape)]):
        np.testing.assert_array_equal(session.run({"x": x})["y"], reference(made, x)[0], strict=True)


@pytest.mark.parametrize("rows", [1, 2, 3, 64, 255])
@pytest.mark.parametrize("large", [0, 1, 2, 9])
def test_rows_in_pairs_that_fit(rows: int, large: int) -> None:
    """Products of all codes stay the same, whichever rows are paired or repeated; a quarter of them at most."""
    weight = bell(rows, 40)
    weight[:large] = RNG.choice(np.array([-128, 127], np.int8), (min(large, rows), 40))
    found = fitting_pairs(weight)
    if found is None:
        assert rows < 8 or large * 8 > rows  # two rows that do not fit need two more
        return
    made, chosen = found
    assert len(made) <= rows + max(rows // 4, 1)
    assert pairs_fit(made.reshape(-1, 2, 40).swapaxes(1, 2))
    x = RNG.integers(0, 256, (5, rows))
    np.testing.assert_array_equal(x[:, chosen] @ made.astype(np.int64), x @ weight.astype(np.int64))


def test_uniform_weights_have_no_such_order() -> None:
    assert fitting_pairs(RNG.integers(-128, 128, (64, 256)).astype(np.int8)) is None


def test_rows_that_all_fit_with_another() -> None:
    """Each two of the order fit together at the ends of their range; rows of which one fits with none have no order."""
    weight = bell(64, 12)
    weight[:3, 0] = (-128, 127, -128)
    order = matched(weight)
    assert order is not None
    assert sorted(order) == list(range(64))
    assert not pairs_fit(weight.reshape(-1, 2, 12).swapaxes(1, 2))
    assert pairs_fit(weight[order].reshape(-1, 2, 12).swapaxes(1, 2))
    weight[5, :2] = weight[:, 2] = 127
    assert matched(weight) is None


def inverted_residual(weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    """A block of a MobileNet v2: 8 to 48 channels, a window for each, and sums of 48; scales are powers of two."""
    text = """(uint8[1, 8, 9, 7] x) => (int32[1, 16, 9, 7] y) {
        a = QLinearConv (x, sx, z, wa, sa, zw, sy, z, ba)
        b = QLinearConv <group = 48, pads = [1, 1, 1, 1]> (a, sy, z, wb, sb, zw, sy, z, bb)
        y = ConvInteger (b, wc, z)
    }"""
    made = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> g {text}')
    held = weights | {
        "sx": np.float32(0.5), "sy": np.float32(1), "z": np.uint8(4), "zw": np.int8(0), "sb": np.float32(1 / 256),
        "sa": np.float32(2) ** RNG.integers(-8, -5, 48).astype(np.float32),
        "ba": RNG.integers(-3000, 3000, 48, np.int32), "bb": RNG.integers(-3000, 30000, 48, np.int32),
    }  # fmt: skip
    made.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), k) for k, v in held.items())
    return made


@pytest.mark.parametrize("machine", WITHOUT_VNNI)
@pytest.mark.parametrize("is_read_again", [False, True])
def test_channels_in_pairs_that_fit(machine: str, is_read_again: bool) -> None:
    """The convolutions before make the channels in another order, if nothing else reads them."""
    weights = {"wa": bell(48, 8)[..., None, None], "wb": bell(48, 9).reshape(48, 1, 3, 3)}
    made = inverted_residual(weights | {"wc": np.ascontiguousarray(bell(48, 16).T)[..., None, None]})
    if is_read_again:
        made.graph.output.add().CopyFrom(onnx.helper.make_tensor_value_info("b", onnx.TensorProto.UINT8, [1, 48, 9, 7]))
    options = {"halide.target": TARGETS[machine]}
    assert ("narrow=1" in str(occ.dump(made, "layout", options=options))) == (not is_read_again)
    session = opened(occ.build(made, "cpu", options=options), 1)
    for codes in (np.full((1, 8, 9, 7), 255, np.uint8), RNG.integers(0, 256, (1, 8, 9, 7), np.uint8)):
        got, wanted = session.run({"x": codes}), onnx.reference.ReferenceEvaluator(made).run(None, {"x": codes})
        for name, value in zip((o.name for o in made.graph.output), wanted, strict=True):
            np.testing.assert_array_equal(got[name], value, strict=True)


CROSSED = {
    "points": ("x [1, 64, 7, 5]", "y [1, 40, 7, 5]", "", (40, 64, 1, 1), 131),
    "strided points": ("x [2, 16, 9, 9]", "y [2, 32, 5, 5]", "strides = [2, 2]", (32, 16, 1, 1), 131),
    "windows": ("x [1, 24, 9, 8]", "y [1, 48, 5, 4]", "pads = [1, 1, 1, 1], strides = [2, 2]", (48, 24, 3, 3), 0),
    "deep": ("x [1, 2048, 3, 3]", "y [1, 32, 3, 3]", "", (32, 2048, 1, 1), 0),
    "border": ("x [1, 16, 7, 7]", "y [1, 32, 7, 7]", 'auto_pad = "SAME_UPPER"', (32, 16, 5, 5), 0),
    "one position": ("x [1, 64, 1, 1]", "y [1, 40, 1, 1]", "", (40, 64, 1, 1), 7),
}


@pytest.mark.parametrize("case", CROSSED)
@pytest.mark.parametrize("machine", ["x86-64-v3", "x86-64-v4"])
def test_crossed_products_at_the_ends_of_their_range(case: str, machine: str) -> None:
    """`(x0 + w2) * (x2 + w0)` less `x0 * x2` and `w0 * w2`: sums are exact for all codes and weights."""
    x, y, window, extents, point = CROSSED[case]
    names = [f"{kind}{shape[1:]} {shape[0]}" for kind, shape in (("uint8", x), ("int32", y))]
    text = f"({names[0]}) => ({names[1]}) {{ y = ConvInteger <{window}> (x, w, z) }}".replace("<>", "")
    made = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> g {text}')
    weight = RNG.choice(np.array([-128, 127, 100, -77], np.int8), extents)
    weight[0], weight[1] = 127, -128
    held = [numpy_helper.from_array(v, k) for k, v in (("w", weight), ("z", np.array(point, np.uint8)))]
    made.graph.initializer.extend(held)
    options = {"halide.target": TARGETS[machine]}
    apart = 2 if extents[1] > 64 else extents[1] // 2
    assert (f"crossed={apart}," in str(occ.dump(made, "layout", options=options))) == (machine == "x86-64-v3")
    session = opened(occ.build(made, "cpu", options=options), 1)
    shape = tuple(int(n) for n in session.inputs[0].shape)
    for codes in (np.full(shape, 255, np.uint8), np.zeros(shape, np.uint8), RNG.integers(0, 256, shape, np.uint8)):
        np.testing.assert_array_equal(session.run({"x": codes})["y"], reference(made, codes)[0], strict=True)


def test_windows_of_a_symbolic_batch() -> None:
    """Sums of codes in windows of a batch that a run knows are a kernel that Halide refuses: products stay in pairs."""
    text = "(uint8[N, 64, 9, 12] x) => (int32[N, 32, 1, 5] y) { y = ConvInteger <strides = [2, 2], dilations = [2, 1]> (x, w, z) }"
    made = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> g {text}')
    weight = RNG.integers(-128, 128, (32, 64, 5, 3)).astype(np.int8)
    held = [numpy_helper.from_array(v, k) for k, v in (("w", weight), ("z", np.array(5, np.uint8)))]
    made.graph.initializer.extend(held)
    session = opened(occ.build(made, "cpu", options={"halide.target": TARGETS["x86-64-v3"]}), 1)
    x = RNG.integers(0, 256, (2, 64, 9, 12), np.uint8)
    np.testing.assert_array_equal(session.run({"x": x})["y"], reference(made, x)[0], strict=True)
