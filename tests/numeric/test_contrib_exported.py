"""Operators of com.microsoft that exporters write where ONNX has none, or had none: agreement with onnxruntime on the same node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
import pytest
from building import model_of
from test_contrib import f32, model

import occ

RNG = np.random.default_rng(17)
IMAGE = f32(2, 3, 7, 9)
GRID = RNG.uniform(-1.3, 1.3, (2, 4, 5, 2)).astype(np.float32)
ROIS = np.array([[0, 0, 1, 1], [0.1, 0.2, 0.7, 0.9], [0.8, 0.6, 0.1, 0.3], [-0.2, 0.5, 1.4, 0.75]], np.float32)
CROPS = {"x": IMAGE, "rois": ROIS, "at": np.array([0, 1, 1, 0], np.int32)}
WORDS = np.array([["one", "", "zwölf"], ["abcd", "a longer text", "abc"]], object)
IDS = np.array([[1, 2, 3, 1, 2], [4, 4, 4, 4, 4], [0, 1, 0, 2, 0]])
HASHED = {"ids": IDS[:2], "m": np.array([3, -(2**61) + 1, 2**60 + 5]), "sizes": np.array([11, 13, 17, 19])}
# name -> (operator, operands, attributes, number of results, largest difference, operands that are constants)
Case = tuple[str, Mapping[str, np.ndarray], dict[str, Any], int, float, tuple[str, ...]]
CASES: dict[str, Case] = {
    "grid-sample": ("GridSample", {"x": IMAGE, "grid": GRID}, {}, 1, 1e-5, ()),
    "grid-sample-cubic": ("GridSample", {"x": IMAGE, "grid": GRID}, {"mode": "bicubic", "align_corners": 1}, 1, 1e-5, ()),
    "grid-sample-nearest": ("GridSample", {"x": IMAGE, "grid": GRID}, {"mode": "nearest", "padding_mode": "reflection"}, 1, 0, ()),
    "trilu": ("Trilu", {"x": f32(2, 4, 5), "k": np.array(1)}, {"upper": 0}, 1, 0, ("k",)),
    "gather-nd-i32": ("GatherND", {"x": f32(3, 4), "i": np.array([[0, 1], [2, -1]], np.int32)}, {}, 1, 0, ()),
    "gather-nd": ("GatherND", {"x": f32(3, 4, 5), "i": np.array([[0, 1], [2, -1]])}, {}, 1, 0, ()),
    "range": ("Range", {"a": np.array(3, np.float32), "b": np.array(8, np.float32)}, {}, 1, 0, ("a", "b")),
    "range-by-two": ("Range", {"a": np.array(9), "b": np.array(1), "c": np.array(-2)}, {}, 1, 0, ("a", "b", "c")),
    "range-of-what-is-given": ("Range", {"a": np.array(3), "b": np.array(8)}, {}, 1, 0, ()),
    "pad": ("Pad", {"x": f32(2, 3), "p": np.array([1, 0, 2, 1]), "v": np.array([7], np.float32)}, {}, 1, 0, ("p",)),
    "pad-by-a-row": ("Pad", {"x": f32(4, 3), "p": np.array([[1, 2, 0, 1]])}, {"mode": "reflect"}, 1, 0, ("p",)),
    "sample": ("SampleOp", {"x": f32(2, 3)}, {}, 1, 0, ()),
    "unique": ("Unique", {"x": np.array([3, 1, 3, 2, 1], np.float32)}, {}, 3, 0, ()),
    "inverse": ("Inverse", {"x": f32(5, 3, 3)}, {}, 1, 1e-4, ()),
    "inverse-one": ("Inverse", {"x": f32(7, 7)}, {}, 1, 1e-4, ()),
    "inverse-f64": ("Inverse", {"x": RNG.normal(size=(2, 4, 4))}, {}, 1, 1e-10, ()),
    "inverse-f16": ("Inverse", {"x": (f32(2, 4, 4) + 4 * np.eye(4, dtype=np.float32)).astype(np.float16)}, {}, 1, 1e-3, ()),
    "inverse-with-a-zero-first": ("Inverse", {"x": np.array([[0, 2], [4, 1]], np.float32)}, {}, 1, 1e-6, ()),
    "unfold": ("UnfoldTensor", {"x": f32(2, 9, 3)}, {"dim": 1, "size": 4, "step": 2}, 1, 0, ()),
    "unfold-last": ("UnfoldTensor", {"x": RNG.integers(0, 99, (2, 8))}, {"size": 3}, 1, 0, ()),
    "transposed-conv": (
        "ConvTransposeWithDynamicPads", {"x": f32(1, 2, 5, 5), "w": f32(2, 3, 3, 3), "p": np.array([1, 0, 1, 1])},
        {"strides": [2, 2]}, 1, 1e-4, ("p",),
    ),
    "transposed-conv-of-run-time-pads": (
        "ConvTransposeWithDynamicPads", {"x": f32(1, 2, 5, 6), "w": f32(2, 3, 3, 3), "p": np.array([1, 0, 1, 2]), "b": f32(3)},
        {"strides": [2, 2]}, 1, 1e-4, (),
    ),
    "transposed-conv-bias": (
        "ConvTransposeWithDynamicPads", {"x": f32(1, 2, 5, 5), "w": f32(2, 3, 3, 3), "p": np.zeros(4, np.int64), "b": f32(3)},
        {"output_padding": [1, 1], "strides": [2, 2]}, 1, 1e-4, ("p",),
    ),
    "matmul-16": ("MatMulInteger16", {"a": RNG.integers(-99, 99, (3, 4)).astype(np.int16), "b": RNG.integers(-999, 999, (4, 5)).astype(np.int16)}, {}, 1, 0, ()),
    "crop": ("CropAndResize", CROPS | {"size": np.array([4, 5], np.int32)}, {}, 1, 1e-5, ("size",)),
    "crop-to-one": ("CropAndResize", CROPS | {"size": np.array([1, 3], np.int32)}, {"extrapolation_value": 2.5}, 1, 1e-5, ("size",)),
    "crop-nearest": ("CropAndResize", CROPS | {"size": np.array([6, 2], np.int32)}, {"mode": "nearest"}, 1, 0, ("size",)),
    "repeated-words": ("NGramRepeatBlock", {"ids": IDS, "x": f32(3, 6)}, {"ngram_size": 3}, 1, 0, ()),
    "repeated-pairs": ("NGramRepeatBlock", {"ids": IDS, "x": f32(3, 6)}, {"ngram_size": 2}, 1, 0, ()),
    "repeated-word": ("NGramRepeatBlock", {"ids": IDS, "x": f32(3, 6)}, {"ngram_size": 1}, 1, 0, ()),
    "repeated-words-of-few": ("NGramRepeatBlock", {"ids": IDS[:, :2], "x": f32(3, 6)}, {"ngram_size": 4}, 1, 0, ()),
    "hash-i32": ("MurmurHash3", {"x": RNG.integers(-99, 99, (2, 3)).astype(np.int32)}, {}, 1, 0, ()),
    "hash-i64": ("MurmurHash3", {"x": RNG.integers(-(2**60), 2**60, (5,))}, {"positive": 0, "seed": 7}, 1, 0, ()),
    "hash-f32": ("MurmurHash3", {"x": f32(2, 3)}, {"seed": 314489979}, 1, 0, ()),
    "hash-f64": ("MurmurHash3", {"x": RNG.normal(size=4)}, {"positive": 0}, 1, 0, ()),
    "hash-text": ("MurmurHash3", {"x": WORDS}, {"seed": 5}, 1, 0, ()),
    "hash-text-signed": ("MurmurHash3", {"x": WORDS}, {"positive": 0}, 1, 0, ()),
    "hashed-words": ("NGramHashMapping", HASHED, {"max_ngram_size": 3, "n_head_per_ngram": 2, "pad_id": 9}, 2, 0, ()),
    "hashed-words-after-others": (
        "NGramHashMapping", HASHED | {"past": np.array([[5, 6], [1, 2]]), "off": np.array([0, 11, 24, 41]), "eos": np.array(2)},
        {"max_ngram_size": 3, "n_head_per_ngram": 2, "pad_id": 9, "reset_on_eos": 1}, 2, 0, (),
    ),
    "hashed-words-in-segments": (
        "NGramHashMapping",
        HASHED | {"_past": IDS, "_off": IDS, "_eos": IDS, "seg": np.array([[0, 0, 1, 1, 1], [0, 1, 2, 2, 3]], np.int32)},
        {"max_ngram_size": 3, "n_head_per_ngram": 2, "pad_id": 9}, 1, 0, (),
    ),
    "hashed-words-of-i32": (
        "NGramHashMapping",
        {"ids": IDS[:1, :1].astype(np.int32), "m": np.array([2**30 + 7, -(2**31) + 5, 99, 7], np.int32), "sizes": np.array([13, 17, 19], np.int32)},
        {"max_ngram_size": 4, "n_head_per_ngram": 1, "pad_id": -3}, 2, 0, (),
    ),
    "warp": ("DynamicTimeWarping", {"x": f32(1, 6, 9)}, {}, 1, 0, ()),
    "warp-tall": ("DynamicTimeWarping", {"x": f32(8, 3)}, {}, 1, 0, ()),
}  # fmt: skip


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
@pytest.mark.parametrize("case", CASES)
def test_operator_of_exporters_gives_what_onnxruntime_gives(case: str, target: str) -> None:
    name, operands, attrs, n, most, constant = CASES[case]
    made = model(name, operands, attrs, n, constant)
    feed = {k: v for k, v in operands.items() if k not in constant and not k.startswith("_")}
    expected = onnxruntime.InferenceSession(made.SerializeToString()).run(None, feed)
    got = list(occ.compile(made, target).run(feed).values())
    for x, y in zip(got, expected, strict=True):
        assert x.dtype == y.dtype
        assert x.shape == y.shape
        np.testing.assert_allclose(x.astype(np.float64), y.astype(np.float64), rtol=0, atol=most)


@pytest.mark.parametrize("target", ["interp", "cpu-jit", pytest.param("cpu", marks=pytest.mark.toolchain)])
def test_sizes_that_two_nodes_find_are_their_own(target: str) -> None:
    """Both had the size of the first, and a reader of one had an undefined size."""
    text = """<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (float[n] a, float[k] b) => (float[i] p, float[j] s) {
        p = com.microsoft.Unique(a)
        r = com.microsoft.Unique(b)
        s = Neg(r)
    }"""
    session = occ.compile(model_of(text), target)
    for a, b in (([1, 1, 2], [5, 6, 5, 7]), ([1], [2, 2]), ([], [3])):
        got = session.run({"a": np.array(a, np.float32), "b": np.array(b, np.float32)})
        np.testing.assert_array_equal(got["p"], list(dict.fromkeys(a)))
        np.testing.assert_array_equal(got["s"], [-x for x in dict.fromkeys(b)])


def test_attributes_that_are_left_out_are_those_of_f32() -> None:
    """1.702 was that of Python, which f64 shows."""
    x = np.linspace(-3, 3, 13)
    made = model("QuickGelu", {"x": x}, {}, 1, ())
    (want,) = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(occ.compile(made, "interp").run({"x": x})["y0"], want, rtol=1e-12)


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_one_corner_of_a_grid_is_the_first(target: str) -> None:
    """It was NaN, the distance of no two corners."""
    theta = f32(2, 3, 4)
    text = """g (float[2, 3, 4] t) => (float[2, 1, 2, 1, 3] y) {
        size = Constant<value_ints = [2, 1, 1, 2, 1]>()
        y = AffineGrid<align_corners = 1>(t, size)
    }"""
    places = np.array([[-1, -1, -1, 1], [-1, 1, -1, 1]], np.float32)  # x, y, z
    want = np.einsum("nij,kj->nki", theta, places).reshape(2, 1, 2, 1, 3)
    np.testing.assert_allclose(occ.compile(model_of(text), target).run({"t": theta})["y"], want, rtol=1e-5, atol=1e-6)
