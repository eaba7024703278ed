"""Winograd convolution: its transforms, its error against float64 for the shapes of real layers, and the generated code."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import occ
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.ir.ops.own.winograd import (
    POINTS,
    SIZE,
    SMALL,
    input_rows,
    output_rows,
    outputs_of,
    points_of,
    transformed_weight,
)
from occ.compiler.passes.methods.winograd.blocks import block_of
from occ.runtime.session import Session

SHAPES = [(56, 64, 64), (28, 128, 128), (14, 256, 256), (7, 512, 512), (13, 48, 80)]


# Taps along both axes, and one of them with a single tap.
TAPS = [(3, 3), (5, 5), (3, 5), (1, 3), (5, 1)]


def direct(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """A convolution with a border that keeps the size, in float64: x [C, H, W], w [O, C, ky, kx]."""
    taps = w.shape[2:]
    padded = np.pad(x.astype(np.float64), ((0, 0), *((k // 2, k // 2) for k in taps)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, taps, (1, 2))
    return np.einsum("cyxij,ocij->oyx", windows, w.astype(np.float64), optimize=True)


def by_tiles(x: np.ndarray, w: np.ndarray, dtype: type, size: int = SIZE) -> np.ndarray:
    """The same through the transforms of tiles of a size, all arithmetic in a type."""
    channels, *sizes = x.shape
    taps = w.shape[2:]
    sides, each = [points_of(k, size) for k in taps], [outputs_of(k, size) for k in taps]
    down, across = (-(-n // m) for n, m in zip(sizes, each, strict=True))
    beyond = [k // 2 + t * m - n for k, t, m, n in zip(taps, (down, across), each, sizes, strict=True)]
    padded = np.pad(x, ((0, 0), *((k // 2, n) for k, n in zip(taps, beyond, strict=True)))).astype(dtype)
    tiles = np.lib.stride_tricks.sliding_window_view(padded, sides, (1, 2))[:, :: each[0], :: each[1]]
    b = [(np.ones((1, 1)) if k == 1 else input_rows(POINTS[size])).astype(dtype) for k in taps]
    a = [(np.ones((1, 1)) if k == 1 else output_rows(k, POINTS[size])).astype(dtype) for k in taps]
    v = np.einsum("ei,cyxij,gj->egyxc", b[0], tiles, b[1], optimize=True).reshape(-1, down * across, channels)
    m = np.matmul(v, transformed_weight(w, size).astype(dtype)).reshape(*sides, down, across, w.shape[0])
    y = np.einsum("pe,egyxo,qg->oypxq", a[0], m, a[1], optimize=True)
    return y.reshape(w.shape[0], down * each[0], across * each[1])[:, : sizes[0], : sizes[1]]


def layer(size: int, channels: int, out: int, taps: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(size)
    x = np.maximum(rng.standard_normal((channels, size, size)), 0).astype(np.float32)
    w = rng.standard_normal((out, channels, *taps)) * np.sqrt(2 / (taps[0] * taps[1] * channels))
    return x, w.astype(np.float32)


@pytest.mark.parametrize(
    ("shape", "taps"), [(s, k) for s in SHAPES for k in TAPS if k == (3, 3) or s[1] == 48], ids=str
)
def test_error_against_float64_is_near_that_of_direct_convolution(
    shape: tuple[int, int, int], taps: tuple[int, int]
) -> None:
    x, w = layer(*shape, taps)
    exact = direct(x, w)
    scale = np.abs(exact).max()
    assert np.abs(by_tiles(x, w.astype(np.float64), np.float64) - exact).max() / scale < 1e-12
    assert np.abs(by_tiles(x, w, np.float32) - exact).max() / scale < 6e-6


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_error_of_small_tiles_is_near_that_of_direct_convolution(shape: tuple[int, int, int]) -> None:
    x, w = layer(*shape, (3, 3))
    exact = direct(x, w)
    scale = np.abs(exact).max()
    assert np.abs(by_tiles(x, w.astype(np.float64), np.float64, SMALL) - exact).max() / scale < 1e-12
    assert np.abs(by_tiles(x, w, np.float32, SMALL) - exact).max() / scale < 3e-6


def model(
    h: int | str,
    w: int | str,
    channels: int,
    out: int,
    pads: list[int],
    batch: int | str = 2,
    taps: tuple[int, int] = (3, 3),
) -> tuple[onnx.ModelProto, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    weight = (rng.standard_normal((out, channels, *taps)) * 0.1).astype(np.float32)
    bias = rng.standard_normal(out).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=pads),
        helper.make_node("Sigmoid", ["c"], ["s"]),
        helper.make_node("Mul", ["c", "s"], ["y"]),
    ]
    ports = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [batch, channels, h, w]), ("y", None))
    ]
    weights = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)]), weight, bias


@pytest.mark.toolchain
def test_generated_code_on_odd_sizes_and_borders() -> None:
    m, w, b = model(13, 9, 48, 80, [1, 0, 1, 1])
    assert any(op.name == "winograd" for op in Compilation(m, Settings("cpu")).advance("fused").walk())
    agrees(occ.compile(m, "cpu"), w, b, (2, 48, 13, 9), (1, 0, 1, 1))


def agrees(session: Session, w: np.ndarray, b: np.ndarray, shape: tuple[int, ...], pads: tuple[int, ...]) -> None:
    """A session of `model` computes on random inputs of a shape what float64 does."""
    x = np.random.default_rng(6).standard_normal(shape).astype(np.float32)
    got = session.run({"x": x})["y"]
    top, left, bottom, right = pads
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], (2, 3))
    c = np.einsum("ncyxij,ocij->noyx", windows, w.astype(np.float64), optimize=True) + b[:, None, None]
    want = c / (1 + np.exp(-c))
    assert got.shape == want.shape
    assert np.abs(got - want).max(initial=0) / np.abs(want).max(initial=1) < 1e-5


@pytest.mark.toolchain
@pytest.mark.parametrize("size", [(13, 9), (41, 50), ("h", "w")], ids=str)
@pytest.mark.parametrize("channels", [17, 61])
def test_channels_that_do_not_fill_vectors(channels: int, size: tuple[int | str, int | str]) -> None:
    m, w, b = model(*size, channels, 40, [1, 0, 1, 1])
    assert any(op.name == "winograd" for op in Compilation(m, Settings("cpu")).advance("fused").walk())
    height, width = (n if isinstance(n, int) else k for n, k in zip(size, (30, 22), strict=True))
    agrees(occ.compile(m, "cpu"), w, b, (2, channels, height, width), (1, 0, 1, 1))


@pytest.mark.toolchain
def test_halves_are_transformed_in_f32() -> None:
    """The result is rounded once: sums of 432 terms in f16 would be off by much more than a unit."""
    rng = np.random.default_rng(7)
    x, w = (
        rng.standard_normal((1, 48, 20, 20)).astype(np.float16),
        (rng.standard_normal((32, 48, 3, 3)) / 8).astype("f2"),
    )
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT16, s) for n, s in (("x", x.shape), ("y", None))]
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    graph = helper.make_graph([node], "g", ports[:1], ports[1:], [numpy_helper.from_array(w, "w")])
    m = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    assert any(op.name == "winograd" for op in Compilation(m, Settings("cpu")).advance("fused").walk())
    got, want = occ.compile(m, "cpu").run({"x": x})["y"], direct(x[0], w)
    assert got.dtype == np.float16
    assert np.all(np.abs(got[0] - want) <= np.spacing(np.abs(want).astype(np.float16)).astype(np.float64) * 0.52 + 2e-5)


# One block: 1 tile, 5 x 5 and 30 tiles, and one more; short rows of tiles: 3, 7 and 15 across; long ones, full and not.
SIZES = [
    (1, 1),
    (2, 3),
    (10, 10),
    (20, 20),
    (23, 17),
    (12, 31),
    (57, 9),
    (30, 25),
    (9, 60),
    (5, 61),
    (6, 130),
    (8, 239),
]


@pytest.mark.parametrize("level", ["2", "3"])
def test_blocks_of_symbolic_sizes_are_one_code_for_all(level: str) -> None:
    """As many rows of tiles as a run has room for in a block are the same loops; variants are compiled one by one."""
    net, *_ = model("h", "w", 64, 64, [1, 1, 1, 1], "n")
    m = Compilation(net, Settings("cpu", options={"optimize": level})).advance("scheduled")
    (call,) = (op for op in m.walk() if str(op.attrs.get("te")).startswith("winograd"))
    f = m.te[call.attrs["te"]]
    assert not [d for d in f.schedule if d.call == "specialize"]
    rows = [str(d) for d in (f.schedule if level == "3" else call.attrs["dims"])]
    assert [d for d in rows if "max(1, 30//" in d]


@pytest.mark.toolchain
def test_symbolic_batch_height_and_width() -> None:
    m, w, b = model("h", "w", 48, 80, [1, 0, 1, 1], batch="n")
    assert any(op.name == "winograd" for op in Compilation(m, Settings("cpu")).advance("fused").walk())
    session = occ.compile(m, "cpu", threads=2)
    for k, (height, width) in enumerate(SIZES):
        agrees(session, w, b, (1 + k % 3, 48, height, width + 1), (1, 0, 1, 1))
    agrees(session, w, b, (0, 48, 6, 6), (1, 0, 1, 1))


@pytest.mark.thinned
@pytest.mark.toolchain
@pytest.mark.parametrize("width", [5, 26, 130])
def test_symbolic_height(width: int) -> None:
    m, w, b = model("h", width, 32, 32, [1, 1, 1, 1], batch=1)
    session = occ.compile(m, "cpu", threads=1)
    for height in (1, 4, 13, 50, 121):
        agrees(session, w, b, (1, 32, height, width), (1, 1, 1, 1))


@pytest.mark.thinned
@pytest.mark.toolchain
@pytest.mark.parametrize("channels", [144, 32])  # of 32, planes are small and rows of tiles short at the same widths
def test_one_symbolic_size(channels: int) -> None:
    m, w, b = model(6, "w", channels, 32, [1, 1, 1, 1], batch=1)
    session = occ.compile(m, "cpu", threads=1)
    for width in (1, 4, 27, 28, 29, 60, 61, 130):
        agrees(session, w, b, (1, channels, 6, width), (1, 1, 1, 1))


@pytest.mark.toolchain
@pytest.mark.parametrize(("width", "channels"), [(161, 64), (164, 64), (133, 144)])
def test_rows_of_tiles_that_no_block_divides_are_cut_into_blocks(width: int, channels: int) -> None:
    """A tile alone would stream the weights of all points for itself."""
    across = -(-width // 4)
    block, rows = block_of(across, 5, channels)
    assert (rows, across % block != 0, 7 <= block <= 28) == (1, True, True)
    m, w, b = model(18, width, channels, 32, [1, 1, 1, 1], batch=1)
    agrees(occ.compile(m, "cpu", threads=1), w, b, (1, channels, 18, width), (1, 1, 1, 1))


@pytest.mark.thinned
@pytest.mark.toolchain
@pytest.mark.parametrize("taps", TAPS[1:], ids=str)
@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "symbolic"])
def test_other_taps(taps: tuple[int, int], symbolic: bool) -> None:
    pads = [k // 2 for k in taps]
    border = (pads[0], pads[1], pads[0], 0)
    for sizes in ((13, 19), (61, 6)):
        sizes = (sizes[0], sizes[1] + pads[1])
        m, w, b = model(*(("h", "w") if symbolic else sizes), 48, 80, [*border], "n" if symbolic else 2, taps)
        assert any(op.name == "winograd" for op in Compilation(m, Settings("cpu")).advance("fused").walk())
        session = occ.compile(m, "cpu", threads=1)
        agrees(session, w, b, (2, 48, *sizes), border)
        if symbolic:
            for some in ((1, 4), (33, 200), (200, 33)):
                agrees(session, w, b, (1, 48, *some), border)
            break


@pytest.mark.thinned
@pytest.mark.toolchain
@pytest.mark.parametrize(("channels", "out"), [(16, 64), (64, 16), (16, 16), (96, 24), (32, 17), (32, 89)], ids=str)
@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "symbolic"])
def test_few_channels_and_odd_numbers_of_filters(channels: int, out: int, symbolic: bool) -> None:
    m, w, b = model(*(("h", "w") if symbolic else (27, 22)), channels, out, [1, 1, 1, 1])
    assert any(op.name == "winograd" for op in Compilation(m, Settings("cpu")).advance("fused").walk())
    session = occ.compile(m, "cpu", threads=1)
    for size in ((27, 22), (4, 5), (7, 121)) if symbolic else ((27, 22),):
        agrees(session, w, b, (2, channels, *size), (1, 1, 1, 1))


@pytest.mark.toolchain
@pytest.mark.parametrize("size", [(7, 7), (8, 5), (6, 6), (2, 16), (4, 7)], ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_small_tiles_of_small_planes_with_large_weights(size: tuple[int, int], threads: int) -> None:
    h, w = size
    m, weight, bias = model(h, w, 128, 136, [1, 1, 1, 1])
    module = Compilation(m, Settings("cpu")).advance("fused")
    few = h > 2 and h * w > 28  # others waste too much
    assert [op.operands[1].tensor.dims for op in module.walk() if op.name == "winograd"] == [(16, 128, 136)] * few
    agrees(occ.compile(m, "cpu", threads=threads), weight, bias, (2, 128, h, w), (1, 1, 1, 1))


@pytest.mark.parametrize(("h", "w", "filters"), [(9, 8, 136), (7, 7, 112), (7, "w", 136)], ids=str)
def test_large_tiles_of_others(h: int, w: int | str, filters: int) -> None:
    m, _, _ = model(h, w, 128, filters, [1, 1, 1, 1])
    module = Compilation(m, Settings("cpu")).advance("fused")
    assert [op.operands[1].tensor.dims for op in module.walk() if op.name == "winograd"] == [(36, 128, filters)]


def test_option_turns_it_off() -> None:
    m, _, _ = model(13, 9, 48, 80, [1, 1, 1, 1])
    module = Compilation(m, Settings("cpu", options={"winograd": "off"})).advance("fused")
    assert not any(op.name == "winograd" for op in module.walk())


@pytest.mark.thinned
@pytest.mark.toolchain
@pytest.mark.parametrize("out", [72, 36], ids=["of 16", "of 8"])
@pytest.mark.parametrize("taps", [(3, 3), (1, 3)], ids=str)
def test_panels_of_one_vector_that_filters_do_not_fill(taps: tuple[int, int], out: int) -> None:
    """The numbers of vectors have no divisor that is a width of panels: the last reads the padding of its panel."""
    border = (taps[0] // 2, 1, taps[0] // 2, 1)
    m, w, b = model("h", "w", 32, out, [*border], "n", taps)
    assert any(op.name == "winograd" for op in Compilation(m, Settings("cpu")).advance("fused").walk())
    session = occ.compile(m, "cpu", threads=1)
    for size in ((27, 22), (4, 5)):
        agrees(session, w, b, (2, 32, *size), border)
