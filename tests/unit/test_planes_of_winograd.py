"""One kernel for Winograd convolutions of planes that tiles fill, whatever their sizes."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from building import model_of
from machines import TARGETS
from onnx import helper, numpy_helper

import occ
from occ.compiler.codegen_halide.emit import generator
from occ.compiler.driver.compilation import Compilation, Settings

PLANES = [(56, 56, 64), (28, 28, 128), (28, 56, 64), (84, 28, 32)]  # height, width, channels


def convolutions() -> onnx.ModelProto:
    """A convolution of 3x3 and a Relu for each of the planes."""
    rng = np.random.default_rng(0)
    nodes, given, made, weights = [], [], [], []
    for k, (h, w, c) in enumerate(PLANES):
        weights.append(numpy_helper.from_array(rng.standard_normal((64, c, 3, 3)).astype(np.float32) / c, f"w{k}"))
        nodes += [
            helper.make_node("Conv", [f"x{k}", f"w{k}"], [f"c{k}"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", [f"c{k}"], [f"y{k}"]),
        ]
        given.append(helper.make_tensor_value_info(f"x{k}", 1, [1, c, h, w]))
        made.append(helper.make_tensor_value_info(f"y{k}", 1, [1, 64, h, w]))
    graph = helper.make_graph(nodes, "g", given, made, weights)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])


def test_planes_share_a_kernel() -> None:
    options = {"optimize": "2", "halide.target": TARGETS["x86-64-v4"]}
    m = Compilation(convolutions(), Settings("cpu", options=options)).advance("scheduled")
    calls = [op.attrs for op in m.walk() if op.name == "call" and op.attrs["te"].startswith("winograd")]
    assert len(calls) == len(PLANES)
    (name,) = {attrs["te"] for attrs in calls}
    assert [tuple(attrs["dims"][:2]) for attrs in calls] == [(h // 4, w // 4) for h, w, _ in PLANES]
    extents = {str(d) for d in m.te[name].params[0].type.dims}
    assert extents == {"4*D0", "4*D1", "16*K"}
    assert "int64_t" not in generator(m.te[name]), "tests for the border are of ints, as positions are"


@pytest.mark.parametrize(("height", "fetched"), [(900, True), (20, False)], ids=["in memory", "in cache"])
def test_tiles_of_a_large_plane_are_fetched_ahead(height: int, fetched: bool) -> None:
    """No number of tiles below 28 divides 41: blocks differ, and have memory for the same number of tiles."""
    w = np.ones((64, 64, 3, 3), np.float32)
    size = f"float[n, 64, {height}, 161]"
    text = f"g ({size} x) => ({size} y) {{ y = Conv <pads = [1, 1, 1, 1]> (x, k) }}"
    options = {"optimize": "2", "halide.target": TARGETS["x86-64-v4"]}
    m = Compilation(model_of(text, {"k": w}), Settings("cpu", options=options)).advance("scheduled")
    (f,) = (f for name, f in m.te.items() if name.startswith("winograd"))
    assert [d.args for d in f.schedule if d.call == "fetch_beyond"] == ([("p0", 2048, 0)] if fetched else [])
    assert [d.args[1] for d in f.schedule if d.call == "bound_storage"] == [21, 21]


@pytest.mark.toolchain
@pytest.mark.parametrize("level", ["2", "3"])
def test_each_plane_is_computed(level: str) -> None:
    model = convolutions()
    rng = np.random.default_rng(1)
    x = {f"x{k}": rng.standard_normal((1, c, h, w)).astype(np.float32) for k, (h, w, c) in enumerate(PLANES)}
    want = onnxruntime.InferenceSession(model.SerializeToString()).run(None, x)
    found = occ.compile(model, "cpu", options={"optimize": level}).run(x)
    for k, y in enumerate(want):
        np.testing.assert_allclose(found[f"y{k}"], np.asarray(y), rtol=1e-4, atol=1e-5)
