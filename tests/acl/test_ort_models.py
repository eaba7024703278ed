"""Models through the provider in onnxruntime: whole, in parts, with control flow, of other types, from several threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from building import mlp, model_of
from ort_device import ABC, NAME, RNG, agree, copies, failing, nodes, plain, session
from test_whole_path import squeezenet

import occ

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytestmark = pytest.mark.toolchain


def test_a_whole_model(device):
    assert occ.onnxruntime.register("ascend310p") == NAME
    model = squeezenet()
    (port,) = [i for i in model.graph.input if i.name not in {t.name for t in model.graph.initializer}]
    x = RNG.standard_normal([d.dim_value for d in port.type.tensor_type.shape.dim], np.float32)
    opened = session(model)
    assert len(nodes()) == 1
    assert occ.onnxruntime.refused() == []
    before = copies(device)
    agree(opened, model, {port.name: x})
    assert [b - a for a, b in zip(before, copies(device), strict=True)] == [1, 1, 0]
    assert device.count("aclmdlExecute") == 1


def test_the_names_of_onnxruntime_reach_it(device):
    name = occ.onnxruntime.register("ascend310p")
    model = mlp()
    x = {"x": RNG.standard_normal((2, 8), dtype=np.float32)}
    options = onnxruntime.SessionOptions()
    options.add_free_dimension_override_by_name("n", 2)
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == name]
    assert [d.ep_metadata["device_id"] for d in devices] == ["0", "1"]
    options.add_provider_for_devices(devices[1:], {"device_id": "1", "enable_cann_graph": "True"})
    agree(onnxruntime.InferenceSession(model.SerializeToString(), options), model, x)


def test_parts_around_what_the_device_cannot_take(device):
    occ.onnxruntime.register("ascend310p")
    model = model_of(ABC)
    opened = session(model)
    assert sorted(nodes()) == [2, 3]
    (told,) = occ.onnxruntime.refused()
    assert "kernel of GE `Exp` for DOUBLE" in told
    before = copies(device)
    agree(opened, model, {"x": RNG.standard_normal((4, 8), dtype=np.float32)})
    # in: x, c; out: b, y; `a` stays on the device for Sub
    assert [b - a for a, b in zip(before, copies(device), strict=True)] == [2, 2, 0]


CONTROL = {
    "if": """g (bool which, float[4] x) => (float[4] y) {
        w = Constant <value = float[4] {1, 2, 3, 4}> ()
        a = Exp(x)
        y = If <then_branch = t () => (float[4] b) { c = Abs(a)  d = Sqrt(c)  b = Mul(d, w) },
                else_branch = e () => (float[4] b) { c = Neg(a)  b = Exp(c) }> (which)
    }""",
    "loop": """g (float[4] x) => (float[4] y) {
        go = Constant <value = bool {1}> ()
        count = Constant <value = int64 {3}> ()
        y = Loop <body = b (int64 i, bool c, float[4] v) => (bool c2, float[4] w) { c2 = Identity(c)  e = Abs(v)  w = Sqrt(e) }> (count, go, x)
    }""",
}


@pytest.mark.parametrize("kind", sorted(CONTROL))
def test_control_flow_is_the_device_s(kind, device):
    occ.onnxruntime.register("ascend310p")
    model = model_of(CONTROL[kind])
    opened = session(model)
    assert occ.onnxruntime.refused() == []
    for which in (True, False):
        feeds = {"x": np.float32([1, 2, 0.5, 4])} | ({"which": np.array(which)} if kind == "if" else {})
        agree(opened, model, feeds)


@pytest.mark.parametrize("text", [CONTROL["if"], ABC])
def test_nodes_that_another_provider_has_taken_are_not_asked_for(text, device):
    model = model_of(text)
    occ.onnxruntime.register("cpu-jit", least=0)
    options = occ.onnxruntime.session_options()
    occ.onnxruntime.register("ascend310p")
    opened = session(model, options)
    assert nodes() == []
    feeds = {"x": np.ones(4 if "which" in text else (4, 8), np.float32)}
    agree(opened, model, feeds | ({"which": np.array(True)} if "which" in text else {}))


def test_nodes_that_stay_with_the_cpu_are_told(device, capfd):
    onnxruntime.set_default_logger_severity(2)  # other tests may have made it silent
    occ.onnxruntime.register("ascend310p")
    session(model_of(ABC))
    told = capfd.readouterr().err
    assert "1 of 6 nodes stay with the CPU" in told
    assert "Exp `" in told
    assert "the AI CPU of `ascend310p` runs 1 Cast (b)" in told


@pytest.mark.parametrize("dtype", ["float16", "int64", "int32", "uint8", "bool"])
def test_other_types(dtype, device):
    occ.onnxruntime.register("ascend310p")
    op = "Not(x)" if dtype == "bool" else "Concat<axis = 0>(x, x)"
    model = model_of(f"g ({dtype}[2,3] x) => ({dtype}[m,3] y) {{ y = {op} }}")
    agree(session(model), model, {"x": RNG.integers(0, 2, (2, 3)).astype(dtype)}, 0)


def test_tensors_without_elements_and_scalars(device):
    occ.onnxruntime.register("ascend310p")
    text = "g (float[2,3] x, float[0,3] e, float s) => (float[m,3] y, float t) { c = Concat<axis = 0>(x, e)  y = Mul(c, s)  t = Neg(s) }"
    model = model_of(text)
    feeds = {
        "x": RNG.standard_normal((2, 3), dtype=np.float32),
        "e": np.zeros((0, 3), np.float32),
        "s": np.array(2, np.float32),
    }
    agree(session(model), model, feeds)
    assert sum(nodes()) >= 2
    nothing = "g (float[0,3] e) => (float[m,3] y) { y = Concat<axis = 0>(e, e) }"
    assert "there is nothing to compute" in failing(model_of(nothing))


def test_several_threads(device):
    occ.onnxruntime.register("ascend310p")
    model = model_of(ABC)
    shared = session(model)
    feeds = [{"x": RNG.standard_normal((4, 8), dtype=np.float32)} for _ in range(4)]
    wanted = [plain(model, f)[0] for f in feeds]
    wrong: list[int] = []

    def work(k: int) -> None:
        for _ in range(10):
            if not np.allclose(shared.run(None, feeds[k])[0], wanted[k], rtol=1e-3, atol=1e-3):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
