"""The execution provider for Ascend devices in onnxruntime, on the stand-ins for `atc` and AscendCL.

Results are compared with onnxruntime's own on the CPU, and what the device was asked with the counts of the stand-in.
"""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import pytest
from ascend_standin import Standin
from building import mlp, model_of
from test_whole_path import squeezenet

import occ
from occ.compiler.diagnostics import CompileError

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytestmark = pytest.mark.toolchain
NAME = "OccAscendExecutionProvider"
RNG = np.random.default_rng(0)
KINDS = ("upload", "download", "device")
HALF = 5e-3  # of the largest value: the 310P multiplies in half precision
# The middle needs DOUBLE, of which no chip has the kernel.
ABC = """g (float[4,8] x) => (float[4,8] y) {
    a = Relu(x)  b = Cast<to = 11>(a)  c = Exp(b)  d = Cast<to = 1>(c)  e = Sub(d, a)  y = Abs(e)
}"""


@pytest.fixture
def device(toolkit: Standin) -> Iterator[Standin]:
    toolkit.machine("Ascend310P3", devices=2)
    yield toolkit
    gc.collect()
    occ.onnxruntime.unregister()


def session(model: onnx.ModelProto, options: object = None, **settings: object) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model.SerializeToString(), occ.onnxruntime.session_options(options, **settings))


def plain(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)


def agree(
    opened: onnxruntime.InferenceSession, model: onnx.ModelProto, feeds: dict[str, np.ndarray], within: float = HALF
) -> None:
    for got, want in zip(opened.run(None, feeds), plain(model, feeds), strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(got, want, atol=within * max(1, np.abs(want).max()) if want.size else 0)


def nodes() -> list[int]:
    return [c.nodes for c in occ.onnxruntime.claimed()]


def copies(device: Standin) -> list[int]:
    return [device.copies(k)[0] for k in KINDS]


def failing(model: onnx.ModelProto, **settings: object) -> str:
    with pytest.raises(Exception) as failed:
        session(model, **settings)
    return " ".join(str(failed.value).split())


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


@pytest.mark.parametrize(
    ("how", "sizes", "kind"),
    [
        ({"dynamic_batch_size": "1,2,5"}, (1, 2, 5), "batch"),
        ({"dynamic_dims": "n=2;n=3"}, (2, 3), "dims"),
        ({"dynamic_dims": "2;3"}, (3, 2), "dims"),
    ],
)
def test_gears(how, sizes, kind, device):
    occ.onnxruntime.register("ascend310p", options=how)
    model = mlp()
    opened = session(model)
    assert len(nodes()) == 1
    for n in sizes:
        agree(opened, model, {"x": RNG.standard_normal((n, 8), dtype=np.float32)})
    with pytest.raises(Exception, match=r"was compiled for inputs of \[\d,8\]; .*, not \[7,8\]"):
        opened.run(None, {"x": np.zeros((7, 8), np.float32)})
    agree(opened, model, {"x": RNG.standard_normal((sizes[0], 8), dtype=np.float32)})  # the session goes on


def test_gears_of_pictures(device):
    text = "g (float[1,2,h,w] x) => (float[1,2,h,w] y) { y = Relu(x) }"
    occ.onnxruntime.register("ascend310p")
    opened = session(model_of(text), dynamic_image_size="4,6;8,6")
    for h in (8, 4):
        agree(opened, model_of(text), {"x": RNG.standard_normal((1, 2, h, 6), dtype=np.float32)})


def test_gears_count_in_the_order_of_the_inputs(device):
    model = model_of("g (float[a] x, float[b,2] z) => (float[b,2] y, float[a] w) { y = Relu(z)  w = Neg(x) }")
    occ.onnxruntime.register("ascend310p")
    opened = session(model, dynamic_dims="3,4;5,7")
    for a, b in ((5, 7), (3, 4)):
        agree(
            opened,
            model,
            {"x": RNG.standard_normal(a).astype(np.float32), "z": RNG.standard_normal((b, 2)).astype(np.float32)},
        )


def test_gears_of_parts(device):
    model = model_of(ABC.replace("[4,8]", "[n,8]"))
    occ.onnxruntime.register("ascend310p")
    opened = session(model, dynamic_batch_size="1,4")
    assert sorted(nodes()) == [2, 3]
    for n in (4, 1):
        agree(opened, model, {"x": RNG.standard_normal((n, 8), dtype=np.float32)})


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


def test_bound_values_are_not_copied(device):
    occ.onnxruntime.register("ascend310p")
    model = model_of(
        "g (float[2,3] x, float[2,3] z) => (float[2,3] y, float[2,3] w) { c = Add(x, z)  y = Relu(c)  w = Neg(c) }"
    )
    opened = session(model)
    x, z = (RNG.standard_normal((2, 3), dtype=np.float32) for _ in range(2))
    made = [onnxruntime.OrtValue.ortvalue_from_shape_and_type((2, 3), np.float32, "cann", 0) for _ in range(3)]
    onnxruntime.copy_tensors([onnxruntime.OrtValue.ortvalue_from_numpy(v) for v in (x, z)], made[:2])
    binding = opened.io_binding()
    binding.bind_ortvalue_input("x", made[0])
    binding.bind_ortvalue_input("z", made[1])
    binding.bind_ortvalue_output("y", made[2])
    binding.bind_output("w", "cann", 0)
    before = copies(device)
    for _ in range(3):
        opened.run_with_iobinding(binding)
    assert copies(device) == before
    np.testing.assert_allclose(made[2].numpy(), np.maximum(x + z, 0), rtol=1e-5)
    np.testing.assert_allclose(binding.get_outputs()[1].numpy(), -x - z, rtol=1e-5)
    assert made[2].device_name() in ("npu", "cann")
    with closing(occ.DeviceTensor.from_numpy(x)) as own:
        binding.bind_input("x", "cann", 0, np.float32, (2, 3), own.address)  # memory of others, by its address
        before = copies(device)
        opened.run_with_iobinding(binding)
        assert copies(device) == before
        np.testing.assert_allclose(made[2].numpy(), np.maximum(x + z, 0), rtol=1e-5)
    del binding, made


def test_results_of_one_run_go_into_the_next_on_the_device(device):
    occ.onnxruntime.register("ascend310p")
    opened = session(model_of("g (float[4] s) => (float[4] t) { t = Add(s, s) }"))
    values = [onnxruntime.OrtValue.ortvalue_from_shape_and_type((4,), np.float32, "cann", 0) for _ in range(2)]
    onnxruntime.copy_tensors([onnxruntime.OrtValue.ortvalue_from_numpy(np.float32([1, 2, 3, 4]))], values[:1])
    before = copies(device)
    for k in range(5):
        binding = opened.io_binding()
        binding.bind_ortvalue_input("s", values[k % 2])
        binding.bind_ortvalue_output("t", values[1 - k % 2])
        opened.run_with_iobinding(binding)
    assert copies(device) == before
    assert values[1].numpy().tolist() == [32, 64, 96, 128]
    del binding, values


def compiled(device: Standin) -> list[dict[str, object]]:
    """What the stand-in for atc was told of the models that sessions have taken."""
    found = []
    for claim in occ.onnxruntime.claimed():
        payload = claim.artifact.read_bytes().partition(b"payload ")[2].partition(b"\n")[2]
        found.append(json.loads(payload.partition(b"\n")[0]))
    return found


def test_options_of_a_session_are_seen_by_the_compiler(device):
    occ.onnxruntime.register("ascend310p", options={"precision_mode_v2": "cube_fp16in_fp32out"})
    how = {
        "op_select_impl_mode": "high_precision",
        "optypelist_for_implmode": "Gelu",
        "enable_cann_graph": True,
        "input_format": "ND",
    }
    model = mlp(seed=3)
    options = onnxruntime.SessionOptions()
    options.add_free_dimension_override_by_name("n", 2)
    session(model, options, **how)
    told = compiled(device)[0]
    assert told["precision"] == "cube_fp16in_fp32out"
    assert {"--op_select_implmode=high_precision", "--optypelist_for_implmode=Gelu"} <= set(told["flags"])
    options = onnxruntime.SessionOptions()
    options.add_free_dimension_override_by_name("n", 2)
    occ.onnxruntime.register("ascend310p")
    session(mlp(seed=3), options, precision_mode="force_fp16")
    assert compiled(device)[0]["precision"] == "fp16"


@pytest.mark.parametrize("strategy", ["kNextPowerOfTwo", "kSameAsRequested"])
def test_memory_of_a_session(strategy, device):
    occ.onnxruntime.register("ascend310p")
    model = model_of("g (float[1000,1000] x) => (float[1000,1000] y) { y = Relu(x) }")
    x = {"x": RNG.standard_normal((1000, 1000), dtype=np.float32)}
    opened = session(model, arena_extend_strategy=strategy, npu_mem_limit=40_000_000)
    agree(opened, model, x)
    peak = device.memory[1]
    assert (8_000_000 < peak < 8_400_000) if strategy == "kSameAsRequested" else 8_400_000 < peak < 20_000_000
    for _ in range(5):
        opened.run(None, x)
    assert device.memory[1] == peak  # blocks are used again
    del opened
    small = session(model, npu_mem_limit=5_000_000)
    with pytest.raises(Exception, match=r"[Ff]ailed to allocate|OCC0511"):
        small.run(None, x)


def test_what_is_dumped(device, tmp_path):
    occ.onnxruntime.register("ascend310p")
    session(model_of(ABC), dump_graphs=True, dump_om_model="True")
    made = sorted(p.suffix for p in tmp_path.glob(f"{NAME}_*"))
    assert made == [".om", ".om", ".onnx", ".onnx"]
    for path in tmp_path.glob("*.onnx"):
        onnx.checker.check_model(onnx.load(path))


def test_a_file_that_an_option_names_is_part_of_what_is_compiled(device, tmp_path):
    model = model_of("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    told = []
    for text in ("{}", '{"black-list": {}}'):
        (tmp_path / "mix.json").write_text(text)
        occ.onnxruntime.register("ascend310p", options={"atc.modify_mixlist": "mix.json"})
        session(model)
        told.append(occ.onnxruntime.claimed()[0].artifact)
    assert told[0] != told[1]
    assert "--modify_mixlist=modify_mixlist.json" in compiled(device)[0]["flags"]


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


# What is refused


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
        ("g (float[4] x) => (float[4] y) { y = Relu(x) }", {"output_type": "FP16"}, ("output_type", "cast in it")),
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


# Compiled models on disk


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
        ("notes", b"", "no model that occ has compiled"),
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
