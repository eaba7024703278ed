"""Compiled models on disk for the provider in onnxruntime: EPContext nodes, and programs without the compiler."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import model_of
from ort_device import ABC, NAME, RNG, agree, plain, session

import occ

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytestmark = pytest.mark.toolchain


def test_a_program_without_the_compiler_refuses_models_that_are_not_compiled(device, occ_cli):
    onnxruntime.register_execution_provider_library("alone", str(occ.onnxruntime.get_library_path(kind="ascend")))
    try:
        for model, told in ((ABC, "--emit ort"), (None, "")):
            if model is None:
                onnx.save(model_of(ABC), "m.onnx")
                assert occ_cli("build", "m.onnx", "-t", "ascend310p", "--emit", "ort", "-o", "r.onnx").code == 0
            options = onnxruntime.SessionOptions()
            found = [d for d in onnxruntime.get_ep_devices() if d.ep_name == NAME]
            options.add_provider_for_devices(found[:1], {"npu_mem_limit": str(2**64 - 1)})
            if model is None:
                onnxruntime.InferenceSession("r.onnx", options).run(None, {"x": np.zeros((4, 8), np.float32)})
                continue
            with pytest.raises(Exception, match=told):
                onnxruntime.InferenceSession(model_of(model).SerializeToString(), options)
        options = onnxruntime.SessionOptions()
        options.add_provider_for_devices(found[:1], {"npu_mem_limits": "1"})
        with pytest.raises(Exception, match="there is no option `npu_mem_limits`; options: device_id, npu_mem_limit"):
            onnxruntime.InferenceSession("r.onnx", options)
    finally:
        gc.collect()
        onnxruntime.unregister_execution_provider_library("alone")


@pytest.mark.parametrize("weights", ["file", "embed"])
def test_emit_ort(weights, device, tmp_path, occ_cli):
    onnx.save(model_of(ABC), tmp_path / "m.onnx")
    ran = occ_cli("build", "m.onnx", "-t", "ascend310p", "--emit", "ort", "--weights", weights, "-o", "d/r.onnx")
    assert ran.code == 0, ran.err
    assert "1 nodes stay with onnxruntime" in ran.err
    assert "Exp `" in ran.err
    made = onnx.load("d/r.onnx")
    assert sorted(n.op_type for n in made.graph.node) == ["EPContext", "EPContext", "Exp"]
    files = {p.name for p in Path("d").iterdir()}
    assert files == ({"r.onnx"} if weights == "embed" else {"r.onnx", "r.0.om", "r.1.om"})
    occ.onnxruntime.register("ascend310p")
    opened = onnxruntime.InferenceSession("d/r.onnx", occ.onnxruntime.session_options())
    x = {"x": RNG.standard_normal((4, 8), dtype=np.float32)}
    np.testing.assert_allclose(opened.run(None, x)[0], plain(model_of(ABC), x)[0], rtol=1e-4, atol=1e-5)


def test_emit_ort_refuses_what_it_cannot_take(device, tmp_path, occ_cli):
    for text, told in (
        ("g (double[4] x) => (double[4] y) { y = Exp(x) }", "takes nothing of the model"),
        ("g (float[n] x) => (float[n] y) { y = Relu(x) }", "needs constant extents"),
    ):
        onnx.save(model_of(text), tmp_path / "m.onnx")
        ran = occ_cli("build", "m.onnx", "-t", "ascend310p", "--emit", "ort", "-o", "r.onnx")
        assert ran.code == 3 if "nothing" in told else ran.code != 0
        assert told in " ".join(ran.err.split())
        assert not Path("r.onnx").exists()


def test_a_session_writes_its_own_compiled_model(device, tmp_path):
    occ.onnxruntime.register("ascend310p")
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_file_path", str(tmp_path / "c.onnx"))
    model = model_of("g (float[2,8] x) => (float[2,8] y) { a = Relu(x)  y = Neg(a) }")
    session(model, options)
    made = onnx.load(tmp_path / "c.onnx")
    (node,) = made.graph.node
    assert {a.name: a.s for a in node.attribute if a.name in ("source", "hardware_architecture")} == {
        "source": NAME.encode(), "hardware_architecture": b"Ascend310P3",
    }  # fmt: skip
    opened = onnxruntime.InferenceSession(str(tmp_path / "c.onnx"), occ.onnxruntime.session_options())
    agree(opened, model, {"x": RNG.standard_normal((2, 8), dtype=np.float32)})


def test_a_compiled_model_of_another_chip_or_that_is_damaged_is_refused(device, tmp_path, occ_cli):
    onnx.save(model_of("g (float[4] x) => (float[4] y) { y = Relu(x) }"), tmp_path / "m.onnx")
    assert (
        occ_cli("build", "m.onnx", "-t", "ascend310p", "--emit", "ort", "--weights", "embed", "-o", "r.onnx").code == 0
    )
    occ.onnxruntime.register("ascend310p")
    for name, value, told in (
        ("notes", b"name x\nsoc Ascend910A\ninput x\noutput y\ngear 4 > 4\n", "OCC0510"),
        ("notes", b"", "not a model compiled by occ"),
        ("notes", b"input x\noutput y\ngear 4\n", "damaged"),
        ("notes", b"name x\ninput x\ninput z\noutput y\ngear 4;4 > 4\n", "2 and 1 were expected"),
        (
            "notes",
            b"name x\nsoc Ascend310P3\ninput x\noutput y\ngear 4 > 2\n",
            "`y` of part `x` has other extents than its record",
        ),
        ("notes", b"name x\ninput x\noutput y\ngear 2,2 > 4\n", "`x` of part `x` has other extents"),
        ("notes", b"name x\nkind batch\ninput x\noutput y\ngear 4 > 4\n", "disagree about gears"),
        ("ep_cache_context", b"nothing", "aclmdlQuerySizeFromMem"),
    ):
        made = onnx.load("r.onnx")
        next(a for a in made.graph.node[0].attribute if a.name == name).s = value
        onnx.save(made, "bad.onnx")
        with pytest.raises(Exception, match=told):
            onnxruntime.InferenceSession("bad.onnx", occ.onnxruntime.session_options())


def test_a_compiled_model_of_other_types_is_refused(device, tmp_path, occ_cli):
    onnx.save(model_of("g (float[4] x) => (float[4] y) { y = Relu(x) }"), tmp_path / "m.onnx")
    assert occ_cli("build", "m.onnx", "-t", "ascend310p", "--emit", "ort", "-o", "r.onnx").code == 0
    made = onnx.load("r.onnx")
    made.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    onnx.save(made, "bad.onnx")
    occ.onnxruntime.register("ascend310p")
    opened = onnxruntime.InferenceSession("bad.onnx", occ.onnxruntime.session_options())
    with pytest.raises(Exception, match="`y` has the element type 10 of ONNX, and its compiled model aclDataType 0"):
        opened.run(None, {"x": np.zeros(4, np.float32)})
    next(a for a in made.graph.node[0].attribute if a.name == "ep_cache_context").s = b"../r.0.om"
    onnx.save(made, "bad.onnx")
    with pytest.raises(Exception, match="leaves the folder"):
        onnxruntime.InferenceSession("bad.onnx", occ.onnxruntime.session_options())
