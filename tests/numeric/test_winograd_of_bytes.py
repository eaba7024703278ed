"""3x3 convolutions of bytes by Winograd's method on x86 without VNNI: sums are exact, whatever codes and weights are."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
from machines import TARGETS, opened
from onnx import numpy_helper

import occ

RNG = np.random.default_rng(11)
WITHOUT_VNNI = ("x86-64-v4", "x86-64-v3", "x86-64-v2")


def model(dtype: type, size: str, weight: np.ndarray, pads: str = "1, 1, 1, 1") -> onnx.ModelProto:
    channels, filters, name = weight.shape[1], weight.shape[0], np.dtype(dtype).name
    made = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        g ({name}[n, {channels}, {size}] x) => (int32[n, {filters}, p, q] y) {{
            y = ConvInteger <pads = [{pads}]> (x, w, z) }}""")
    point = np.array(131 if dtype is np.uint8 else -3, dtype)
    made.graph.initializer.extend([numpy_helper.from_array(v, k) for k, v in (("w", weight), ("z", point))])
    return made


def ends(dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    """Codes and weights that are the least or the largest of their type."""
    return RNG.choice(np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype), shape)


def reference(made: onnx.ModelProto, x: np.ndarray) -> Any:
    (want,) = onnx.reference.ReferenceEvaluator(made).run(None, {"x": x})
    return want


def by_tiles(made: onnx.ModelProto, options: dict[str, str]) -> bool:
    return "winograd_dot" in str(occ.dump(made, "fused", options=options))


@pytest.mark.parametrize("machine", WITHOUT_VNNI)
@pytest.mark.parametrize(
    ("size", "shape", "pads"),
    [
        ("8, 6", (2, 8, 6), "1, 1, 1, 1"),
        ("7, 9", (1, 7, 9), "1, 1, 1, 1"),
        ("6, 7", (1, 6, 7), "1, 1, 1, 1"),
        ("11, 8", (1, 11, 8), "0, 2, 1, 0"),
        ("h, w", (2, 13, 7), "1, 1, 1, 1"),
        ("4, 9", (2, 4, 9), "1, 1, 1, 1"),  # two small tiles, one large one
        ("h, 4", (1, 7, 4), "1, 1, 1, 1"),
    ],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_sums_are_exact(dtype: type, size: str, shape: tuple[int, ...], pads: str, machine: str) -> None:
    made, options = model(dtype, size, ends(np.int8, (40, 32, 3, 3)), pads), {"halide.target": TARGETS[machine]}
    assert by_tiles(made, options)
    session = opened(occ.build(made, "cpu", options=options), 1)
    batch, high, wide = shape
    for x in (ends(dtype, (batch, 32, high, wide)), RNG.integers(0, 99, (batch, 32, high, wide)).astype(dtype)):
        np.testing.assert_array_equal(session.run({"x": x})["y"], reference(made, x), strict=True)


@pytest.mark.parametrize(("channels", "points"), [(112, 36), (256, 16)])
def test_largest_sums(channels: int, points: int) -> None:
    """All weights and all codes at their ends: results times what they are divided by are next to the ends of i32.

    If all channels have the same codes and weights, sums of products leave i32 as well, and wrap.
    """
    options, size = {"halide.target": TARGETS["x86-64-v3"]}, (channels, 9, 9)
    for w, x in (
        (np.full((16, channels, 3, 3), 127, np.int8), np.full((1, *size), 255, np.uint8)),
        (np.repeat(ends(np.int8, (16, 1, 3, 3)), channels, 1), np.repeat(ends(np.uint8, (1, 1, 9, 9)), channels, 1)),
    ):
        made = model(np.uint8, "9, 9", w)
        assert f"i16[{points},{channels // 2},2,16]" in str(occ.dump(made, "fused", options=options))
        got = opened(occ.build(made, "cpu", options=options), 1).run({"x": x})["y"]
        np.testing.assert_array_equal(got, reference(made, x), strict=True)


@pytest.mark.parametrize(
    ("weight", "size", "options"),
    [
        (np.full((16, 1856, 3, 3), 127, np.int8), "6, 6", {}),  # four times a result may leave i32
        (ends(np.int8, (40, 24, 3, 3)), "8, 8", {}),  # channels that do not fill vectors
        (ends(np.int8, (40, 32, 3, 3)), "3, 3", {}),  # tiles that are mostly cut off
        (ends(np.int8, (40, 32, 3, 3)), "2, 20", {}),  # one tile along an axis
        (ends(np.int8, (40, 32, 3, 3)), "h, 2", {}),
        (ends(np.int8, (40, 32, 3, 3)), "8, 8", {"winograd": "off"}),
        (ends(np.int8, (40, 32, 3, 3)), "8, 8", {"optimize": "1", "schedule": "rules"}),
        (ends(np.int8, (40, 32, 3, 3)), "8, 8", {"halide.target": TARGETS["arm-64"]}),
    ],
)
def test_where_it_does_not_apply(weight: np.ndarray, size: str, options: dict[str, str]) -> None:
    assert not by_tiles(model(np.uint8, size, weight), {"halide.target": TARGETS["x86-64-v3"], **options})
