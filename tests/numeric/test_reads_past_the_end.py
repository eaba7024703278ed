"""Kernels on operands that end where memory ends: who reads past the end of a row of odd length is ended by the system."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

import occ
from occ.compiler.driver.settings import Settings
from occ.compiler.tuning.warm import warm
from tools.fuzz.guard import guarded, run_guarded
from tools.fuzz.oracle import run_onnxruntime

PLANES = [(1, 4, 9, 17), (1, 4, 5, 5), (2, 4, 20, 37), (1, 4, 7, 16), (1, 4, 33, 6)]


def model(op: str, shape: tuple[Any, ...], weights: tuple[int, ...] = (), **attrs: Any) -> ModelProto:
    x = helper.make_tensor_value_info("x", 1, shape)
    w = np.random.default_rng(1).standard_normal(weights, dtype=np.float32)
    node = helper.make_node(op, ["x", "w"] if weights else ["x"], ["y"], **attrs)
    data = [numpy_helper.from_array(w, "w")] if weights else []
    graph = helper.make_graph([node], "g", [x], [helper.make_empty_tensor_value_info("y")], data)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def ended(session: occ.Session, x: np.ndarray) -> int:
    """How a process ends that runs a session on guarded operands: 0 where results are those of others."""
    wanted = session.run({"x": x})["y"]
    if (child := os.fork()) == 0:
        code = 1
        try:
            code = 0 if np.array_equal(run_guarded(session.run, {"x": x})["y"], wanted) else 2
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def test_guards_end_who_reads_past_them() -> None:
    x = np.arange(5, dtype=np.float32)
    for side, step in (("end", 1), ("start", -1)):
        made = guarded(x, side)
        assert made.tolist() == x.tolist()
        if (child := os.fork()) == 0:
            faulthandler.disable()  # its words of a crash are for others
            np.lib.stride_tricks.as_strided(made[::step], (6,)).sum()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == signal.SIGSEGV


@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
@pytest.mark.parametrize("op", ["ReduceMean", "ArgMax"])
def test_columns_of_rows_of_any_length(op: str, target: str) -> None:
    """Halide rounded the columns of `window` up to whole vectors, and read them all of the last row."""
    attrs: dict[str, Any] = {"axis": 0} if op == "ArgMax" else {"axes": [0]}
    session = occ.compile(model(op, ("n", "k"), **attrs), target=target, threads=1)
    for shape in ((2, 17), (3, 3), (33, 5), (2, 16), (4, 77)):
        assert ended(session, np.random.default_rng(0).standard_normal(shape, dtype=np.float32)) == 0, shape


@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
def test_padded_pools_of_any_number_of_channels(target: str) -> None:
    """Where a border was added while vectors of channels were read, these read on past the end of the last pixel."""
    x = helper.make_tensor_value_info("x", 3, (1, 6, 4, "c"))
    y = helper.make_empty_tensor_value_info("y")
    node = helper.make_node("NhwcMaxPool", ["x"], ["y"], domain="com.microsoft", kernel_shape=[2, 3], pads=[1, 0, 1, 0])
    sets = [helper.make_opsetid("", 14), helper.make_opsetid("com.microsoft", 1)]
    pool = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=sets, ir_version=8)
    session = occ.compile(pool, target=target, threads=1)
    for channels in (1, 8, 63, 64, 65, 130):
        data = np.random.default_rng(0).integers(-128, 128, (1, 6, 4, channels)).astype(np.int8)
        np.testing.assert_array_equal(session.run({"x": data})["y"], run_onnxruntime(pool, {"x": data})["y"])
        assert ended(session, data) == 0, channels


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_rows_that_are_shorter_than_vectors(op: str) -> None:
    """The last vector of a row starts before its end: of the first row that was before the tensor."""
    session = occ.compile(model(op, ("n", "k"), axis=-1), target="cpu", threads=1)
    for shape in ((3, 5), (2, 17), (4, 3)):
        assert ended(session, np.random.default_rng(0).standard_normal(shape, dtype=np.float32)) == 0, shape


def _windows() -> Iterator[tuple[str, ModelProto]]:
    """Windows over planes of symbolic size, by the rules that schedule them: products of one group or some, depthwise, pools."""
    planes = ("n", 4, "h", "w")
    for name, filters, groups, attrs in (
        ("conv", (8, 4, 3, 3), 1, {}),
        ("strides", (8, 4, 3, 3), 1, {"strides": [2, 2]}),
        ("dilations", (8, 4, 3, 3), 1, {"dilations": [2, 2]}),
        ("after", (8, 4, 5, 5), 1, {"pads": [0, 0, 1, 1]}),
        ("depthwise", (4, 1, 3, 3), 4, {}),
        ("one-filter", (1, 4, 3, 3), 1, {}),
        ("one-tap", (8, 4, 1, 1), 1, {"strides": [2, 2]}),
    ):
        yield name, model("Conv", planes, filters, group=groups, kernel_shape=filters[2:], **attrs)
    yield "transposed", model("ConvTranspose", planes, (4, 8, 3, 3), kernel_shape=[3, 3])
    yield "max-pool", model("MaxPool", planes, kernel_shape=[3, 3])
    yield "average-pool", model("AveragePool", planes, kernel_shape=[3, 3], strides=[3, 3])
    yield "pooled-rows", model("AveragePool", ("n", 4, "w"), kernel_shape=[2])
    yield "rows", model("Conv", ("n", 4, "w"), (8, 4, 3), kernel_shape=[3])


WINDOWS = dict(_windows())


def _options(level: str) -> dict[str, str]:
    """Options of Halide's kernels: an option that `cpu-jit` lacks keeps them at -O1."""
    return {"optimize": level, "schedule": "rules"}


@cache
def _warm(level: str) -> None:
    """The kernels of all windows, into the cache at once."""
    warm(WINDOWS.items(), Settings("cpu", options=_options(level)))


@pytest.mark.parametrize("level", ["1", "3"])
@pytest.mark.parametrize("name", WINDOWS)
def test_windows_over_planes_of_any_size(name: str, level: str) -> None:
    """Tiles of pixels of a convolution without pads reached past the end of the last row, and vectors of -O1 past that of a pool."""
    _warm(level)
    session = occ.compile(WINDOWS[name], target="cpu", options=_options(level), threads=1)
    for shape in PLANES:
        x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        assert ended(session, x[:, :, 0] if "rows" in name else x) == 0, shape
