"""What the provider in onnxruntime refuses: options, models, devices, and calls of the driver that fail."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from building import model_of
from ort_device import ABC, NAME, agree, failing, session

import occ
from occ.compiler.diagnostics import CompileError

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytestmark = pytest.mark.toolchain


@pytest.mark.parametrize(
    ("model", "settings", "told"),
    [
        (ABC, {"enable_cann_subgraph": False}, ("does not take the whole model", "Exp `", "enable_cann_subgraph=True")),
        ("g (double[4] x) => (double[4] y) { y = Exp(x) }", {}, ("takes nothing of the model", "Exp `")),
        ("g (float[n] x) => (float[n] y) { y = Relu(x) }", {}, ("OCC0305", "needs constant extents")),
        (
            "g (float[4] x) => (float[4] y) { y = Relu(x) }",
            {"precision_mod": "force_fp16"},
            ("OCC0603", "precision_mod"),
        ),
        ("g (float[4] x) => (float[4] y) { y = Relu(x) }", {"precision_mode": "fp61"}, ("OCC0603", "force_fp16")),
        ("g (float[4] x) => (float[4] y) { y = Relu(x) }", {"enable_cann_graph": "False"}, ("operator by operator",)),
        ("g (float[4] x) => (float[4] y) { y = Relu(x) }", {"npu_mem_limit": "much"}, ("OCC0603", "takes a number")),
        ("g (float[4] x) => (float[4] y) { y = Relu(x) }", {"arena_extend_strategy": "k"}, ("kNextPowerOfTwo",)),
        ("g (float[n] x) => (float[n] y) { y = Relu(x) }", {"dynamic_ranges": "n=1..8"}, ("dynamic_ranges", "gears")),
        ("g (float[4] x) => (float[4] y) { y = Relu(x) }", {"output_type": "FP16"}, ("output_type", "add a Cast")),
        ("g (float[4] x) => (float[4] y) { y = Relu(x) }", {"atc.external_weight": "1"}, ("OCC0603", "from memory")),
        ("g (float[n] x) => (float[n] y) { y = Relu(x) }", {"dynamic_batch_size": "2"}, ("2 to 100 gears",)),
    ],
)
def test_a_session_is_refused_with_the_reason(model, settings, told, device):
    occ.onnxruntime.register("ascend310p")
    text = failing(model_of(model), **settings)
    for words in told:
        assert words in text, text
    assert device.memory[0] == 0


def test_a_fault_of_the_compiler_fails_the_session(device, monkeypatch):
    occ.onnxruntime.register("ascend310p")
    monkeypatch.setattr("occ.onnxruntime.ascend.read_graph", lambda *_, **__: 1 / 0)
    monkeypatch.setattr(
        "occ.onnxruntime.ascend.log.exception", lambda *_: None
    )  # pytest keeps its traceback, and so the session
    assert "ZeroDivisionError" in failing(model_of(ABC))


def test_a_session_without_atc_is_refused(device, monkeypatch):
    occ.onnxruntime.register("ascend310p")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert "OCC0404" in failing(model_of("g (float[4] x) => (float[4] y) { y = Sqrt(x) }"))


def test_memory_that_a_model_does_not_fit_into(device):
    occ.onnxruntime.register("ascend310p")
    text = failing(model_of("g (float[4] x) => (float[4] y) { y = Relu(x) }"), npu_mem_limit=1000)
    assert "OCC0511" in text
    assert "npu_mem_limit" in text


@pytest.mark.parametrize(
    ("machine", "target", "options", "code"),
    [
        ({"soc": "Ascend910B3"}, "ascend310p", {}, "OCC0510"),
        ({"soc": "Ascend310P1"}, "ascend310p", {"soc_version": "Ascend310P3"}, "OCC0510"),
        ({"devices": 0}, "ascend310p", {}, "OCC0407"),
        ({}, "ascend310p", {"precision_mod": "x"}, "OCC0603"),
        ({}, "ascend311p", {}, "OCC0303"),
    ],
)
def test_registration_that_must_fail(machine, target, options, code, toolkit):
    toolkit.machine(**{"soc": "Ascend310P3", "devices": 1} | machine)
    with pytest.raises(CompileError) as failed:
        occ.onnxruntime.register(target, options=options)
    assert failed.value.diagnostics[0].code == code
    assert failed.value.diagnostics[0].helps
    assert not [d for d in onnxruntime.get_ep_devices() if d.ep_name == NAME]
    toolkit.machine("Ascend310P3")
    occ.onnxruntime.register("ascend310p")  # and after that a right one works
    occ.onnxruntime.unregister()


def test_registration_without_ascendcl(monkeypatch, tmp_path):
    monkeypatch.setenv("OCC_ASCENDCL", str(tmp_path / "libascendcl.so"))
    with pytest.raises(CompileError) as failed:
        occ.onnxruntime.register("ascend310p")
    assert failed.value.diagnostics[0].code == "OCC0406"


def test_a_device_that_there_is_not(device):
    occ.onnxruntime.register("ascend310p")
    with pytest.raises(CompileError) as failed:
        occ.onnxruntime.session_options(device_id=7)
    assert failed.value.diagnostics[0].code == "OCC0407"


@pytest.mark.parametrize("call", ["aclrtSetDevice", "aclrtCreateContext", "aclmdlLoadFromMemWithMem", "aclmdlGetDesc"])
def test_a_call_that_fails_fails_the_session_and_leaves_nothing(call, device):
    occ.onnxruntime.register("ascend310p")
    model = model_of("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    session(model)  # compiled
    gc.collect()
    device.fail(call, device.count(call) + 1)
    assert call in failing(model)
    gc.collect()
    assert device.memory[0] == 0
    agree(session(model), model, {"x": np.float32([1, -2, 3, -4])})


def test_a_run_that_fails_says_so_and_the_next_one_works(device):
    occ.onnxruntime.register("ascend310p")
    model = model_of("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    opened = session(model)
    device.fail("aclmdlExecute", device.count("aclmdlExecute") + 1)
    with pytest.raises(Exception, match="running part `part0` failed: `aclmdlExecute` returned 500000"):
        opened.run(None, {"x": np.zeros(4, np.float32)})
    agree(opened, model, {"x": np.float32([1, -2, 3, -4])})
