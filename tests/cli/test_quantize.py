"""`occ quantize`: the four forms, beside onnxruntime's results, and what it refuses in one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import mlp, model_of
from onnx import numpy_helper

import occ

ort = pytest.importorskip("onnxruntime", reason="onnxruntime is the quantiser")
RNG = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def convnet(opset: int = 21, batch: str = "n") -> onnx.ModelProto:
    """Conv with BatchNormalization, a residual sum, a pool, and a Gemm."""
    weights = {
        "w1": normal(16, 3, 3, 3) * 0.3, "w2": normal(16, 16, 3, 3) * 0.1, "b2": normal(16), "g": normal(16) + 2, "c": normal(16),
        "m": normal(16), "v": np.abs(normal(16)) + 1, "w3": normal(10, 16), "b3": normal(10),
    }  # fmt: skip
    text = f"""g (float[{batch}, 3, 16, 16] x) => (float[{batch}, 10] y) {{
        a = Conv <pads = [1, 1, 1, 1]> (x, w1)  b = BatchNormalization (a, g, c, m, v)  r = Relu (b)
        d = Conv <pads = [1, 1, 1, 1]> (r, w2, b2)  s = Add (r, d)  t = Relu (s)
        p = GlobalAveragePool (t)  f = Flatten (p)  y = Gemm <transB = 1> (f, w3, b3)
    }}"""
    return model_of(text, weights, opset=opset)


def ran_by_onnxruntime(path: str | Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, inputs), strict=True))


def types_of(path: str | Path) -> set[str]:
    return {n.op_type for n in onnx.load(path).graph.node}


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(convnet(), "net.onnx")
    onnx.save(mlp(sizes=(64, 96, 32)), "mlp.onnx")
    np.savez("net.npz", x=normal(4, 3, 16, 16))
    np.savez("mlp.npz", x=normal(8, 64))
    return tmp_path


@pytest.mark.parametrize("target", ["cpu-jit", "interp"])
def test_static_codes_give_what_onnxruntime_gives(target, here, occ_cli):
    ran = occ_cli("quantize", "net.onnx", "-o", "q.onnx", "--calibrate", "net.npz", "-t", target, "--rounds", "0")
    assert ran.code == 0, ran.err
    assert "static int8, ranges of 1 run" in ran.err
    assert "Conv 2" in ran.err
    assert "BatchNormalization" not in types_of("q.onnx")
    inputs = dict(np.load("net.npz"))
    ours, theirs = occ.compile("q.onnx", target).run(inputs)["y"], ran_by_onnxruntime("q.onnx", inputs)["y"]
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()
    floats = ran_by_onnxruntime("net.onnx", inputs)["y"]
    assert 0 < np.abs(ours - floats).max() <= 0.03 * np.abs(floats).max()
    assert (here / "q.onnx").stat().st_size < 0.7 * (here / "net.onnx").stat().st_size


def test_weights_have_a_scale_for_each_channel(here):
    def scales(path: str) -> set[int]:
        model = onnx.load(path)
        values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        return {
            values[n.input[1]].size
            for n in model.graph.node
            if n.op_type == "DequantizeLinear" and values[n.input[1]].ndim
        }

    occ.quantize("net.onnx", "q.onnx", calibrate="net.npz")
    occ.quantize("net.onnx", "t.onnx", calibrate="net.npz", per_channel=False)
    assert 16 in scales("q.onnx")
    assert scales("t.onnx") <= {1}


@pytest.mark.parametrize(("weights", "bound"), [("int8", 0.02), ("int4", 0.3)])
def test_weights_alone_become_blocks_of_codes(weights, bound, here, occ_cli):
    pytest.importorskip("onnx_ir", reason="the quantiser of weights reads them by onnx-ir")
    ran = occ_cli(
        "quantize", "mlp.onnx", "-o", "q.onnx", "--weights", weights, "-t", "cpu-jit", "--rounds", "0", "--block", "16"
    )
    assert ran.code == 0, ran.err
    nodes = [n for n in onnx.load("q.onnx").graph.node if n.op_type == "MatMulNBits"]
    assert [next(a.i for a in n.attribute if a.name == "bits") for n in nodes] == [int(weights[3:])] * 2
    inputs = dict(np.load("mlp.npz"))
    ours, theirs = occ.compile("q.onnx", "cpu-jit").run(inputs)["y"], ran_by_onnxruntime("q.onnx", inputs)["y"]
    assert np.abs(ours - theirs).max() <= 1e-4 * np.abs(theirs).max()
    floats = ran_by_onnxruntime("mlp.onnx", inputs)["y"]
    assert 0 < np.abs(ours - floats).max() <= bound * np.abs(floats).max()


def test_gemm_has_weights_of_blocks_too(here):
    pytest.importorskip("onnx_ir", reason="the quantiser of weights reads them by onnx-ir")
    made = occ.quantize("net.onnx", "q.onnx", weights="int8", block=16)
    assert list(made.nodes.values()) == ["MatMul"]
    assert types_of("q.onnx") >= {"Conv", "MatMulNBits"}


def test_dynamic_codes_need_no_data(here, occ_cli):
    ran = occ_cli("quantize", "mlp.onnx", "-o", "q.onnx", "-t", "cpu-jit", "--rounds", "0", "--json")
    row = json.loads(ran.out)
    assert (ran.code, row["form"], row["nodes"]) == (0, "dynamic int8", {"h": "MatMul", "y": "MatMul"})
    assert {"MatMulInteger", "DynamicQuantizeLinear"} <= types_of("q.onnx")
    inputs = dict(np.load("mlp.npz"))
    ours, theirs = occ.compile("q.onnx", "cpu-jit").run(inputs)["y"], ran_by_onnxruntime("q.onnx", inputs)["y"]
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()


def test_the_table_names_the_node_that_loses_most(here, occ_cli):
    model = onnx.load("mlp.onnx")
    weight = next(t for t in model.graph.initializer if t.name == "w2")
    wide = numpy_helper.to_array(weight).copy()
    wide[0] *= 300  # one row of each column takes most of the steps
    weight.CopyFrom(numpy_helper.from_array(wide, "w2"))
    onnx.save(model, "mlp.onnx")
    arguments = ("quantize", "mlp.onnx", "-o", "q.onnx", "--calibrate", "mlp.npz", "-t", "cpu-jit")
    told = occ_cli(*arguments, "--rounds", "0").out
    worst = told.split("the largest error")[1].splitlines()[1].split()[1]
    assert worst == "y"
    kept = json.loads(occ_cli(*arguments, "--keep", worst, "--rounds", "0", "--json").out)
    assert "y" not in kept["nodes"]
    before = json.loads(occ_cli(*arguments, "--rounds", "0", "--json").out)
    assert kept["differences"][0]["mean"] < before["differences"][0]["mean"]
    assert {d["runtime"] for d in before["differences"]} == {"occ", "onnxruntime"}


@pytest.mark.parametrize("name", ["w", "conv", "a"])
def test_a_node_is_kept_by_its_name_and_by_its_value(name, here):
    """A node that the library joined with another is kept by the name that it had: `a` is the result of the Conv."""
    model = onnx.load("net.onnx")
    model.graph.node[0].name = "conv"
    onnx.save(model, "net.onnx")
    if name == "w":
        with pytest.raises(occ.CompileError, match="has no node or value `w`"):
            occ.quantize("net.onnx", "q.onnx", calibrate="net.npz", keep=[name])
        return
    made = occ.quantize("net.onnx", "q.onnx", calibrate="net.npz", keep=[name])
    assert list(made.nodes.values()).count("Conv") == 1


def test_a_folder_of_samples_in_each_form(here):
    fixed = convnet(batch="2")
    folder = here / "data"
    (folder / "test_data_set_0").mkdir(parents=True)
    tensor = numpy_helper.from_array(normal(2, 3, 16, 16), "another name")
    (folder / "test_data_set_0" / "input_0.pb").write_bytes(tensor.SerializeToString())
    np.savez(folder / "a.npz", x=normal(6, 3, 16, 16))  # three batches
    np.save(folder / "b.npy", normal(2, 3, 16, 16))
    (folder / "notes.txt").write_text("no sample")
    assert occ.quantize(fixed, "q.onnx", calibrate=folder).samples == 5
    assert occ.quantize(fixed, "q.onnx", calibrate=[{"x": normal(2, 3, 16, 16)}]).samples == 1


def test_ascend_has_signed_codes_about_zero(here):
    made = occ.quantize("net.onnx", "q.onnx", calibrate="net.npz", target="ascend310p")
    values = {t.name: numpy_helper.to_array(t) for t in made.codes.graph.initializer}
    zeros = [values[n.input[2]] for n in made.codes.graph.node if n.op_type == "QuantizeLinear"]
    assert zeros
    assert all(z.dtype == np.int8 and not z.any() for z in zeros)
    text = occ.dump("q.onnx", "ge", "ascend310p", dims={"n": 1})
    assert "AscendQuant" in str(text)


def test_models_that_are_written_in_other_ways(here):
    """An old operator set with weights as inputs, constants as nodes, a function, no names, and weights in a file."""
    old = convnet(opset=9)
    old.ir_version = 3
    old.graph.input.extend(
        onnx.helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in old.graph.initializer
    )
    assert "Conv 2" in occ.quantize(old, "q.onnx", calibrate="net.npz").types

    constants = convnet()
    taken = constants.graph.initializer.pop(0)
    constants.graph.node.insert(0, onnx.helper.make_node("Constant", [], [taken.name], value=taken))
    assert "Conv 2" in occ.quantize(constants, "q.onnx", calibrate="net.npz").types
    assert occ.quantize(constants, "q.onnx").nodes

    function = model_of(
        '<ir_version: 10, opset_import: ["" : 21, "f" : 1]> g (float[n, 64] x) => (float[n, 96] y) { y = f.dense (x, w) } '
        '<domain: "f", opset_import: ["" : 21]> dense (a, b) => (c) { c = MatMul (a, b) }',
        {"w": normal(64, 96)},
    )
    assert list(occ.quantize(function, "q.onnx", calibrate="mlp.npz").nodes.values()) == ["MatMul"]

    declared = convnet()  # as torch declares its weights
    declared.graph.value_info.append(onnx.helper.make_tensor_value_info("w3", onnx.TensorProto.FLOAT, [10, 16]))
    assert "Gemm 1" in occ.quantize(declared, "q.onnx").types

    onnx.save(onnx.load("net.onnx"), "away.onnx", save_as_external_data=True, location="away.bin", size_threshold=0)
    made = occ.quantize("away.onnx", "q.onnx", calibrate="net.npz")
    assert made.bytes_before > (here / "away.bin").stat().st_size > made.bytes_after


@pytest.mark.parametrize(
    ("arguments", "code", "hint"),
    [
        (["--calibrate", "none.npz"], 1, "the input file `none.npz` cannot be read"),
        (["--calibrate", "empty"], 1, "has no calibration data"),
        (["--calibrate", "wrong.npz"], 1, "`wrong.npz` has no array for the input `x`, but `X`"),
        (["--calibrate", "double.npz"], 1, "the input `x` is float32, not float64"),
        (["--calibrate", "rank.npz"], 1, "is ['n', 3, 16, 16], not [3, 16, 16]"),
        (["--calibrate", "nan.npz"], 1, "has infinities or NaN"),
        (["--calibrate", "none.npz", "--weights", "int4"], 2, "leave --calibrate out"),
        (["--keep", "conv9"], 2, "no node or value `conv9`"),
        (["--operators", "Cnov"], 2, "did you mean `Conv`?"),
        (["--operators", "BatchNormalization"], 1, "nothing was quantised"),
        (["-t", "cpuu"], 2, "did you mean"),
        (["-o", "net.onnx"], 1, "is the file that the model is read from"),
        (["-o", "."], 1, "is a folder"),
    ],
)  # fmt: skip
def test_what_is_refused_in_a_line(arguments, code, hint, here, occ_cli):
    (here / "empty").mkdir()
    sound = normal(1, 3, 16, 16)
    for name, arrays in {
        "wrong": {"X": sound}, "double": {"x": sound.astype(np.float64)}, "rank": {"x": sound[0]}, "nan": {"x": sound * np.nan},
    }.items():  # fmt: skip
        np.savez(f"{name}.npz", **arrays)
    before = (here / "net.onnx").read_bytes()
    ran = occ_cli("quantize", "net.onnx", *([] if "-o" in arguments else ["-o", "q.onnx"]), *arguments)
    assert (ran.code, hint in ran.err) == (code, True), ran.err
    assert "Traceback" not in ran.err
    assert not (here / "q.onnx").exists()
    assert (here / "net.onnx").read_bytes() == before


def test_models_that_cannot_be_quantised(here, occ_cli):
    def refused(model: onnx.ModelProto, *arguments: str) -> str:
        onnx.save(model, "m.onnx")
        ran = occ_cli("quantize", "m.onnx", "-o", "q.onnx", *arguments)
        assert ran.code == 1, ran.err
        assert ran.err.count("error[") == 1
        return ran.err

    occ.quantize("mlp.onnx", "coded.onnx")
    assert "already quantised: `" in refused(onnx.load("coded.onnx"))
    half = model_of(
        "g (float16[n, 8] x) => (float16[n, 4] y) { y = MatMul (x, w) }", {"w": normal(8, 4).astype(np.float16)}
    )
    assert "`w` is float16" in refused(half)
    assert "the model has Relu" in refused(model_of("g (float[2] x) => (float[2] y) { y = Relu (x) }"))
    missing = onnx.load("net.onnx")
    onnx.external_data_helper.convert_model_to_external_data(missing, location="../gone.bin", size_threshold=0)
    for tensor in missing.graph.initializer:
        tensor.ClearField("raw_data")
    Path("m.onnx").write_bytes(missing.SerializeToString())
    ran = occ_cli("quantize", "m.onnx", "-o", "q.onnx")
    assert (ran.code, "OCC0106" in ran.err) == (1, True), ran.err
    Path("m.onnx").write_bytes(b"\x80")
    assert "OCC0102" in occ_cli("quantize", "m.onnx", "-o", "q.onnx").err


@pytest.mark.parametrize(
    ("how", "hint"),
    [
        ({"weights": "int3"}, "int8, int4"), ({"method": "max"}, "minmax, entropy"), ({"weights": "int4", "block": 20}, "16, 32"),
        ({"weights": "int4", "calibrate": "net.npz"}, "leave `calibrate` out"),
    ],
)  # fmt: skip
def test_wrong_values_in_python_are_errors(how, hint, here):
    with pytest.raises(occ.CompileError, match=hint):
        occ.quantize("net.onnx", "q.onnx", **how)


def test_names_of_a_model_are_no_paths(here, occ_cli):
    """Names that would be paths, formats or control characters elsewhere are names."""
    model = onnx.load("mlp.onnx")
    model.graph.node[0].name = "../../etc/\x1b[31m%s{}"
    model.graph.name = "/tmp/g"
    onnx.save(model, "m.onnx")
    ran = occ_cli("quantize", "m.onnx", "-o", "deep/er/q.onnx", "-t", "interp", "--rounds", "0")
    assert ran.code == 0, ran.err
    assert "\x1b[31m" not in ran.out + ran.err
    assert sorted(p.name for p in (here / "deep/er").iterdir()) == ["q.onnx"]
