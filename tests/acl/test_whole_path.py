"""From a model to a run on the device: occ build, the stand-in for atc, occ.load, the stand-in for AscendCL.

What the device computes comes from the simulator, which reads the `.air` inside of the compiled part. The numbers are
compared with onnxruntime.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from ascend_standin import Standin
from building import model_of
from onnx import numpy_helper

import occ

HERE = Path(__file__).parent
# Largest errors, of the largest value: the 310P multiplies in half precision, the 910B in single.
HALF, EXACT = 5e-3, 1e-5
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def squeezenet() -> onnx.ModelProto:
    """The SqueezeNet of the onnx package, its weights, which are left out there, drawn at random."""
    model = onnx.load(LIGHT / "light_squeezenet.onnx")
    model.ir_version = 8
    graph, rng = model.graph, np.random.default_rng(0)
    shapes = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    kept = [n for n in graph.node if n.op_type != "ConstantOfShape"]
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            shape = tuple(shapes[node.input[0]])
            fan = max(1, int(np.prod(shape[1:])))
            weight = rng.standard_normal(shape, np.float32) * np.sqrt(2 / fan, dtype=np.float32)
            graph.initializer.append(numpy_helper.from_array(weight, node.output[0]))
    del graph.node[:]
    graph.node.extend(kept)
    return model


def reference(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


@pytest.mark.parametrize("folder", [False, True])
def test_weights_beside_the_compiled_model(toolkit: Standin, occ_cli, tmp_path: Path, folder: bool) -> None:
    """`--external_weight`: they are in the artifact, and in `weight` beside an .om, where AscendCL looks for them."""
    toolkit.machine("Ascend910B1")
    model = model_of(
        "g (float[2, 64] x) => (float[2, 32] y) { m = MatMul (x, w) y = Relu (m) }",
        {"w": np.random.default_rng(0).standard_normal((64, 32), dtype=np.float32)},
    )
    onnx.save(model, tmp_path / "m.onnx")
    how = ("build", "m.onnx", "-t", "ascend910b", "--emit", "om", "-C", "atc.external_weight=1")
    for _ in range(2):  # the second time out of the cache
        ran = occ_cli(*how, "-o", "m.occ", *(["--dir"] if folder else []))
        assert ran.code == 0, ran.err
    x = {"x": np.random.default_rng(1).standard_normal((2, 64), dtype=np.float32)}
    (want,) = reference(model, x)
    before = set(Path(tempfile.gettempdir()).glob("occ-weights-*"))
    with occ.load("m.occ") as session:
        np.testing.assert_allclose(session.run(x)["y"], want, atol=EXACT * np.abs(want).max())
    assert set(Path(tempfile.gettempdir()).glob("occ-weights-*")) <= before
    assert occ_cli(*how, "-o", "out/m.om").code == 0
    (weights,) = Path("out/weight").iterdir()
    assert weights.stat().st_size > 64 * 32 * 4 > Path("out/m.om").stat().st_size


def test_squeezenet(toolkit: Standin, occ_cli: object, tmp_path: Path) -> None:
    toolkit.machine("Ascend910B1")
    model = squeezenet()
    onnx.save(model, tmp_path / "m.onnx")
    ran = occ_cli("build", "m.onnx", "-t", "ascend910b", "--emit", "om", "-o", "m.occ", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["device_parts"] == 1
    (port,) = [i for i in model.graph.input if i.name not in {t.name for t in model.graph.initializer}]
    shape = [d.dim_value for d in port.type.tensor_type.shape.dim]
    x = np.random.default_rng(1).standard_normal(shape, np.float32)
    (want,) = reference(model, {port.name: x})
    with occ.load("m.occ") as session:
        (got,) = session.run({port.name: x}).values()
        np.testing.assert_allclose(got, want, atol=EXACT * np.abs(want).max())
        assert toolkit.copies("upload") == (1, x.nbytes)
        assert toolkit.copies("download") == (1, want.nbytes)
        source, target = occ.DeviceTensor.from_numpy(x), occ.DeviceTensor(want.shape, np.float32)
        before = [toolkit.copies(k) for k in ("upload", "download", "device")]
        session.run({port.name: source}, outputs={session.outputs[0].name: target})
        assert [toolkit.copies(k) for k in ("upload", "download", "device")] == before
        np.testing.assert_array_equal(target.numpy(), got)
        source.close()
        target.close()


def test_parts_on_device_cpu_device(toolkit: Standin, occ_cli: object, tmp_path: Path) -> None:
    """This chip has no bf16, so that the middle of the model goes to the CPU."""
    text = """g (float[4, 8] x) => (float[4, 8] y) {
        a = Relu(x)
        b = Cast<to=16>(a)
        c = Mul(b, b)
        d = Cast<to=1>(c)
        y = Sub(d, a)
    }"""
    model = model_of(text)
    onnx.save(model, tmp_path / "m.onnx")
    ran = occ_cli("build", "m.onnx", "-t", "ascend310p", "--emit", "om", "-o", "m.occ", "--json")
    facts = json.loads(ran.out)
    assert (facts["device_parts"], facts["cpu_parts"]) == (2, 1)
    x = np.random.default_rng(0).integers(-8, 8, (4, 8)).astype(np.float32)  # bf16 holds these and their squares
    want = np.maximum(x, 0) ** 2 - np.maximum(x, 0)
    with occ.load("m.occ") as session, ThreadPoolExecutor(4) as pool:
        for y in pool.map(lambda _: session.run({"x": x})["y"], range(16)):
            np.testing.assert_array_equal(y, want)


def test_extents_that_the_data_decide(toolkit: Standin, occ_cli: object, tmp_path: Path) -> None:
    """The device tells them after the run; one tensor is long enough for all."""
    text = """g (float[4, 6] x) => (float[n] y, int64[2, n] where, float[4, 6] z) {
        where = NonZero(x)
        places = Transpose<perm = [1, 0]>(where)
        y = GatherND(x, places)
        z = Neg(x)
    }"""
    model = model_of(text)
    onnx.save(model, tmp_path / "m.onnx")
    ran = occ_cli("build", "m.onnx", "-t", "ascend310p", "--emit", "om", "-o", "m.occ", "--json")
    assert (json.loads(ran.out)["device_parts"], json.loads(ran.out)["cpu_parts"]) == (1, 0)
    rng = np.random.default_rng(2)
    samples = [rng.standard_normal((4, 6), np.float32) * (rng.random((4, 6)) < share) for share in (0, 0.2, 0.6, 1)]
    with occ.load("m.occ") as session:
        for x in (x.astype(np.float32) for x in samples):
            for got, want in zip(session.run({"x": x}).values(), reference(model, {"x": x}), strict=True):
                np.testing.assert_array_equal(got, want)
        x = samples[-1].astype(np.float32)
        whole, short = occ.DeviceTensor((24,), np.float32), occ.DeviceTensor((5,), np.float32)
        session.run({"x": x}, outputs={"y": whole})
        np.testing.assert_array_equal(whole.numpy(), x.reshape(-1))
        with pytest.raises(occ.RunError, match=r"the data have decided that an output has the shape \[24\]"):
            session.run({"x": x}, outputs={"y": short})
        whole.close()
        short.close()


def mlp(width: int = 64, depth: int = 4) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = {f"w{k}": rng.standard_normal((width, width), np.float32) / 8 for k in range(depth)}
    lines = [f"h{k + 1} = MatMul(h{k}, w{k})" for k in range(depth - 1)] + [f"y = MatMul(h{depth - 1}, w{depth - 1})"]
    return model_of(f"g (float[n, {width}] h0) => (float[n, {width}] y) {{ {chr(10).join(lines)} }}", weights)


def test_a_model_larger_than_the_limit(toolkit: Standin, occ_cli: object, tmp_path: Path) -> None:
    toolkit.machine("Ascend910B1")
    model, limit = mlp(256, 6), 900_000  # six weights of 256 KiB
    onnx.save(model, tmp_path / "m.onnx")
    how = ("-t", "ascend910b", "--shape", "h0=4,256", "--emit", "om", "--json", "-C", f"npu_mem_limit={limit}")
    ran = occ_cli("build", "m.onnx", *how, "-o", "m.occ")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["device_parts"] > 1
    x = np.random.default_rng(1).standard_normal((4, 256), np.float32)
    (want,) = reference(model, {"h0": x})
    with occ.load("m.occ") as session:
        for _ in range(2):
            np.testing.assert_allclose(session.run({"h0": x})["y"], want, atol=EXACT * np.abs(want).max())
    assert toolkit.memory[1] <= limit


def small_net() -> onnx.ModelProto:
    """Operators with windows, formats, lists, optional and dynamic inputs."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((4, 3, 3, 3), np.float32), "b": rng.standard_normal(4, np.float32),
        "v": rng.standard_normal((8, 5), np.float32),
    }  # fmt: skip
    text = """g (float[1, 3, 8, 8] x) => (float[1, 5] y, float[1, 8, 4, 4] c) <int64[2] shape = {1, 8}> {
        a = Conv<pads = [1, 1, 1, 1]>(x, w, b)
        r = Relu(a)
        p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r)
        q = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(a)
        c = Concat<axis = 1>(p, q)
        g = GlobalAveragePool(c)
        f = Reshape(g, shape)
        z = MatMul(f, v)
        y = Softmax<axis = 1>(z)
    }"""
    return model_of(text, weights)


def test_operator_by_operator(toolkit: Standin, occ_cli: object, tmp_path: Path) -> None:
    toolkit.machine("Ascend910B1")
    model = small_net()
    onnx.save(model, tmp_path / "m.onnx")
    how = ("-t", "ascend910b", "--emit", "om", "-o", "m.occ", "-C", "enable_cann_graph=false")
    ran = occ_cli("build", "m.onnx", *how)
    assert ran.code == 0, ran.err
    x = np.random.default_rng(1).standard_normal((1, 3, 8, 8), np.float32)
    want = dict(zip(("y", "c"), reference(model, {"x": x}), strict=True))
    with occ.load("m.occ") as session, ThreadPoolExecutor(4) as pool:
        for got in pool.map(lambda _: session.run({"x": x}), range(8)):
            for name, value in want.items():
                np.testing.assert_allclose(got[name], value, atol=EXACT * np.abs(value).max())
    assert toolkit.count("aclopExecuteV2") >= 8 * 9
    assert toolkit.count("aclmdlExecuteAsync") == 0


def test_one_part_as_a_file(toolkit: Standin, occ_cli: object, tmp_path: Path) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    for emit in ("om", "air"):
        ran = occ_cli("build", "m.onnx", "-t", "ascend310p", "--shape", "h0=4,64", "--emit", emit)
        assert ran.code == 0, ran.err
    assert (tmp_path / "m.om").read_bytes().startswith(b"standin-om 1\nsoc Ascend310P3\n")
    assert (tmp_path / "m.om").read_bytes().endswith((tmp_path / "m.air").read_bytes())


def test_the_script_of_a_folder_compiles_in_place(toolkit: Standin, occ_cli: object, tmp_path: Path) -> None:
    toolkit.machine("Ascend910B1")
    model = mlp()
    onnx.save(model, tmp_path / "m.onnx")
    ran = occ_cli("build", "m.onnx", "-t", "ascend910b", "--shape", "h0=4,64", "--dir", "-o", "m.occ")
    assert ran.code == 0, ran.err
    ran = occ_cli("run", "m.occ")
    assert ran.code == 1
    assert "GE graph IR that is not compiled for the device yet" in ran.err
    subprocess.run(["sh", "compile.sh"], cwd=tmp_path / "m.occ" / "device", check=True, capture_output=True)
    x = np.random.default_rng(1).standard_normal((4, 64), np.float32)
    want = reference(model, {"h0": x})[0]
    np.testing.assert_allclose(occ.load("m.occ").run({"h0": x})["y"], want, atol=EXACT * np.abs(want).max())


def test_compile_and_run_at_once(toolkit: Standin, occ_cli: object, tmp_path: Path) -> None:
    toolkit.machine("Ascend910B1")
    model = mlp()
    onnx.save(model, tmp_path / "m.onnx")
    assert occ_cli("run", "m.onnx", "-t", "ascend910b", "--shape", "h0=4,64").code == 0
    x = np.random.default_rng(1).standard_normal((4, 64), np.float32)
    session = occ.compile(model, "ascend910b", shapes={"h0": [4, 64]})
    want = reference(model, {"h0": x})[0]
    np.testing.assert_allclose(session.run({"h0": x})["y"], want, atol=EXACT * np.abs(want).max())


def test_without_the_toolkit(occ_cli: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    onnx.save(mlp(), tmp_path / "m.onnx")
    monkeypatch.chdir(tmp_path)
    for command in ("build", "run"):
        emit = ["--emit", "om"] if command == "build" else []
        ran = occ_cli(command, "m.onnx", "-t", "ascend310p", "--shape", "h0=4,64", *emit)
        assert ran.code == 4
        assert ran.err.count("error[") == 1
        assert "error[OCC0404]: `atc`, the compiler of the CANN toolkit, is not in PATH" in ran.err
        assert "set_env.sh" in ran.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx"]


def test_options_of_a_session(toolkit: Standin, occ_cli: object, tmp_path: Path) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    how = ("-t", "ascend310p", "--shape", "h0=4,64", "--emit", "om", "-o", "m.occ")
    assert occ_cli("build", "m.onnx", *how).code == 0
    assert occ_cli("run", "m.occ", "-C", "arena_extend_strategy=kSameAsRequested").code == 0
    for option, code, told in (
        ("device_id=3", 4, "error[OCC0407]: `device_id` is 3"),
        ("npu_mem_limit=1000", 1, "error[OCC0511]"),
        ("arena=1", 1, "error[OCC0501]: a session has no option `arena`"),
    ):
        ran = occ_cli("run", "m.occ", "-C", option)
        assert (ran.code, told in ran.err) == (code, True), ran.err


def test_another_soc(toolkit: Standin, occ_cli: object, tmp_path: Path) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    how = ("-t", "ascend310p", "--shape", "h0=4,64", "--emit", "om", "-o", "m.occ", "-C", "soc_version=Ascend310P1")
    assert occ_cli("build", "m.onnx", *how).code == 0
    ran = occ_cli("run", "m.occ")
    assert ran.code == 1
    assert "was compiled for `Ascend310P1`, device 0 is `Ascend310P3`" in ran.err
    assert "build it with `-C soc_version=Ascend310P3`" in ran.err


def test_native_sessions_take_device_tensors_as_copies(toolkit: Standin) -> None:
    model = mlp()
    x = np.random.default_rng(1).standard_normal((4, 64), np.float32)
    tensor = occ.DeviceTensor.from_numpy(x)
    np.testing.assert_allclose(
        occ.compile(model, "interp").run({"h0": tensor})["y"], reference(model, {"h0": x})[0], atol=1e-4
    )
    tensor.close()


PROGRAM = """
import sys, numpy, occ
session = occ.load("m.occ")
tensor = occ.DeviceTensor.from_numpy(numpy.zeros((4, 64), "float32"))
kept = [session, tensor]
kept.append(kept)
if sys.argv[1] == "raise":
    raise ValueError("the user's own")
"""


@pytest.mark.thinned
@pytest.mark.parametrize("end", ["end", "raise"])
def test_a_program_that_closes_nothing(toolkit: Standin, occ_cli: object, tmp_path: Path, end: str) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    how = ("-t", "ascend310p", "--shape", "h0=4,64", "--emit", "om", "-o", "m.occ")
    assert occ_cli("build", "m.onnx", *how).code == 0
    environment = os.environ | {"STANDIN_REPORT": str(tmp_path / "report")}
    ran = subprocess.run([sys.executable, "-P", "-c", PROGRAM, end], env=environment, capture_output=True, text=True)
    assert ("ValueError" in ran.stderr) == (end == "raise"), ran.stderr
    *problems, calls = (tmp_path / "report").read_text().splitlines()
    assert problems == []
    counts = dict(zip(calls.split()[1::2], calls.split()[2::2], strict=True))
    assert (counts["aclInit"], counts["aclFinalize"], counts["aclrtResetDevice"]) == ("1", "1", "1")


def test_gears_of_a_symbolic_batch(toolkit: Standin, occ_cli: object, tmp_path: Path) -> None:
    toolkit.machine("Ascend910B1")
    model = mlp()
    onnx.save(model, tmp_path / "m.onnx")
    how = ("-t", "ascend910b", "--emit", "om", "-o", "m.occ", "-C", "dynamic_batch_size=1,2,4")
    ran = occ_cli("build", "m.onnx", *how)
    assert ran.code == 0, ran.err
    with occ.load("m.occ") as session:
        for n in (1, 4, 2, 4):
            x = np.random.default_rng(n).standard_normal((n, 64), np.float32)
            want = reference(model, {"h0": x})[0]
            np.testing.assert_allclose(session.run({"h0": x})["y"], want, atol=EXACT * np.abs(want).max())
        with pytest.raises(occ.RunError, match="built for other extents than n=3"):
            session.run({"h0": np.zeros((3, 64), np.float32)})


def test_the_python_of_the_page(toolkit: Standin, occ_cli: object) -> None:
    """The block of docs/ascend-running.md that opens an artifact, runs it, and keeps tensors on the device."""
    page = (HERE.parents[1] / "docs/ascend-running.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    text = "g (float[1,3,16,16] x) => (float[1,1000] y) { p = GlobalAveragePool(x) f = Flatten(p) y = MatMul(f, w) }"
    weights = np.random.default_rng(0).standard_normal((3, 1000)).astype(np.float32)
    onnx.save(model_of(text, {"w": weights}), "m.onnx")
    assert occ_cli("build", "m.onnx", "-t", "ascend310p", "--emit", "om", "-o", "model.occ").code == 0
    x = np.random.default_rng(1).standard_normal((1, 3, 16, 16)).astype(np.float32)
    said: list[np.ndarray] = []
    exec(code, {"x": x, "print": said.append})
    np.testing.assert_allclose(said[0], x.mean((2, 3)) @ weights, atol=HALF)
