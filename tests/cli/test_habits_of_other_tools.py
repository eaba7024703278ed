"""Options, arguments and calls as other tools have them: answered with how occ spells them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from packaging.specifiers import SpecifierSet

import occ
from occ.compiler.diagnostics import CompileError
from occ.compiler.ir.operator import onnx_release
from occ.runtime.errors import RunError

ROOT = Path(__file__).parents[2]
X = np.zeros((3, 8), np.float32)


@pytest.mark.parametrize(
    ("args", "code", "hint"),
    [
        (["run", "m.onnx", "--batch", "4"], 2, "a batch is a dim: --dim NAME=4"),
        (["quantize", "m.onnx", "-o", "q.onnx", "--batch", "4"], 2, "No such option '--batch'"),
        (["bench", "m.onnx", "--warmup", "3"], 2, "--rounds sets how often"),
        (["build", "m.onnx", "--int8"], 2, "`occ quantize` writes"),
        (["quantize", "m.onnx", "-o", "q.onnx", "--int8"], 2, "--calibrate DATA quantises everything to 8 bits"),
        (["serve", "m.onnx", "--batch-size", "8"], 2, "--batch sets how many rows"),
        (["run", "m.onnx", "--fp16"], 2, "-C precision=bf16"),
        (["run", "m.onnx", "--device", "cpu"], 2, "-t TARGET sets"),
        (["run", "m.onnx", "x.npy"], 2, "--input [NAME=]FILE"),
        (["build", "m.onnx", "m2.onnx"], 2, "path with -o"),
        (["embed", "m.onnx", "hello"], 2, "pass texts with --text"),
        (["warm", "m.onnx", "-t", "interp"], 2, "kernels are built for `-t cpu`"),
        (["diff", "m.onnx", "--against", "old.occ"], 2, "`old.occ` is not an artifact: no such file exists"),
        (["build", "m.onnx", "-t", "cuda"], 2, "not for GPUs"),
        (["build", "m.onnx", "-t", "interp", "--emit", "static"], 2, "`-t cpu` and `-t cpu-jit` would"),
        (["build", "m.onnx", "-t", "cpu-jit", "--emit", "air"], 2, "an Ascend target would"),
        (["build", "m.onnx", "-t", "interp", "-o", "y.onnx"], 1, "name it `y.occ`"),
        (["build", "m.onnx", "-t", "interp", "-o", "y.so"], 2, "add --emit shared, or write `y.occ`"),
        (["build", "m.onnx", "-t", "interp", "--emit", "ort", "-o", "y.occ"], 2, "-o y.onnx"),
        (["run", "m.onnx", "-t", "interp", "-o", "x.npy"], 2, "`x.npy` is a file"),
        (["extract", "m.onnx", "--to", "qqq", "-o", "p.onnx"], 2, "`occ inspect --nodes` lists them"),
        (["build", "m.onnx", "-t", "interp", "-o", "/proc/y.occ"], 1, "cannot write `/proc/y.occ`"),
    ],
)
def test_a_habit_of_another_tool_is_answered(args, code, hint, model, occ_cli):
    ran = occ_cli(*args)
    assert ran.code == code, ran.err
    assert hint in " ".join(ran.err.split())
    assert {p.name for p in Path().iterdir()} == {"m.onnx", "x.npy", "all.npz"}, "nothing is written"


def test_an_artifact_is_not_quantised(model, occ_cli):
    assert occ_cli("build", model, "-t", "interp", "-o", "m.occ").code == 0
    ran = occ_cli("quantize", "m.occ", "-o", "q.onnx")
    assert ran.code == 2
    assert "quantise the .onnx file that it was built from" in " ".join(ran.err.split())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"dims": "n=4"}, "dims is 'n=4', not a dict"),
        ({"dims": {"n": 4.5}}, "dims of `n` is 4.5, not a whole number"),
        ({"dims": {"n": -1}}, "dims of `n` is -1, not a whole number from 0"),
        ({"specialise": ["n"]}, "specialise has 'n', not a dict of sizes"),
        ({"specialise": {"n": 2.5}}, "dims of `n` is 2.5, not a whole number"),
        ({"rules": "nope.py"}, "no rule file `nope.py`"),
        ({"target": None}, "name of a target is a text, not NoneType"),
        ({"shapes": [(3, 8)]}, "shapes is .*, not a dict"),
        ({"shapes": {"x": "3,8"}}, "shapes of `x` is '3,8', not a sequence of extents"),
        ({"shapes": {"x": 3}}, "shapes of `x` is 3, not a sequence"),
        ({"shapes": {"x": (3.0, 8)}}, "extents are not all whole numbers"),
        ({"options": ["optimize=2"]}, "options is .*, not a dict"),
    ],
)
def test_sizes_and_options_of_another_kind_are_refused(given, told, model):
    with pytest.raises(CompileError, match=told):
        occ.compile(model, **{"target": "interp"} | given)


def test_numbers_of_numpy_are_sizes(model):
    shapes = {"x": np.array([3, 8])}
    assert occ.compile(model, "interp", shapes=shapes).inputs[0].shape == (3, 8)
    assert occ.compile(model, "interp", dims={"n": np.int32(3)}).inputs[0].shape == (3, 8)
    for sizes in ({"n": np.int64(4)}, {"x": np.array([4, 8])}):
        assert len(occ.build(model, "cpu-jit", specialise=sizes).manifest.special) == 1
    assert occ.compile(model, "interp", threads=np.int64(2)).threads == 2
    assert occ.diff(model, "interp", tolerance=np.float32(0.1)).rows


def test_one_name_stands_for_a_list_of_one(model):
    assert [o.name for o in occ.compile(model, "interp", outputs="h").outputs] == ["y", "h"]
    assert [o.name for o in occ.extract(model, end="h").graph.output] == ["h"]
    assert [o.name for o in occ.compile(model, "interp", outputs=None).outputs] == ["y"]
    with pytest.raises(ValueError, match="not 'tensorrt'"):
        occ.bench(model, "interp", against="tensorrt")


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_calls_of_onnxruntime_are_answered(target, model):
    session = occ.compile(model, target)
    for first in (None, ["y"]):
        with pytest.raises(RunError, match=r"by name, not as .*\n.*`m.run\(\{'x': x\}\)`"):
            session.run(first, {"x": X})


def test_an_artifact_does_not_get_the_name_of_a_model_or_a_folder(model, tmp_path):
    session = occ.compile(model, "interp")
    for save in (session.save, lambda path: occ.build(model, "interp", path)):
        with pytest.raises(RunError, match=r"name it `new.occ`"):
            save(tmp_path / "new.onnx")
    assert not (tmp_path / "new.onnx").exists()
    with pytest.raises(IsADirectoryError, match="it is a folder"):
        session.save(tmp_path)
    with pytest.raises(CompileError, match=r"name it `r\.html`"):
        occ.report(model, "r.pdf", "interp")


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
@pytest.mark.parametrize("outputs", [["y"], "y"])
def test_outputs_are_not_names(target, outputs, model):
    with pytest.raises(RunError, match=r"(?s)arrays to write into, by name, not .*leave `outputs` out"):
        occ.compile(model, target).run({"x": X}, outputs)


@pytest.mark.parametrize("given", [None, np.array([None, 1], object)])
def test_what_is_no_number_is_not_converted(given, model):
    with pytest.raises(RunError, match=r"is (None|no array of numbers), the model takes float32$"):
        occ.compile(model, "interp")(given)


def test_one_dict_is_one_plan(model):
    assert len(occ.build(model, "cpu-jit", specialise={"n": 4}).manifest.special) == 1


def test_a_queue_runs_a_session(model):
    with pytest.raises(RunError, match=r"a queue runs a session, not str\n.*occ.load"):
        occ.RunQueue(str(model))


def test_measures_and_tolerances_are_numbers(model):
    with pytest.raises(CompileError, match=r"tolerance is '1%'.*numbers"):
        occ.diff(model, "interp", tolerance="1%")
    with pytest.raises(ValueError, match="rounds is 0; it takes at least 1"):
        occ.bench(model, "interp", rounds=0)
    with pytest.raises(ValueError, match="rounds is '3'; it takes at least 1"):
        occ.bench(model, "interp", rounds="3")


def test_a_rule_file_without_rules_is_refused(model, tmp_path):
    (tmp_path / "none.py").write_text("x = 1\n")
    with pytest.raises(CompileError, match=r"none.py` defines no rule, pass or operator"):
        occ.compile(model, "interp", rules=[tmp_path / "none.py"])
    with pytest.raises(CompileError, match="the source of a kernel is a text, not int"):
        occ.halide_kernel(3)


def test_settings_of_the_provider_are_checked(model):
    pytest.importorskip("onnxruntime", minversion="1.23")
    with pytest.raises(TypeError, match="least is 'all'; it is a number"):
        occ.onnxruntime.register("cpu-jit", least="all")
    with pytest.raises(ValueError, match="there is no setting 'thread'"):
        occ.onnxruntime.check_settings({"thread": 2})
    with pytest.raises(ValueError, match="pool is 'ort'"):
        occ.onnxruntime.check_settings({"pool": "ort"})


def test_a_generator_without_its_library_says_which(model, monkeypatch):
    from occ.compiler.driver import compilation

    def missing(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'llvmlite'", name="llvmlite")

    monkeypatch.setattr(compilation.Compilation, "target", SimpleNamespace(name="cpu-jit", generate=missing), False)
    with pytest.raises(CompileError, match=r"(?s)OCC0409.*needs the library `llvmlite`.*pip install llvmlite"):
        compilation.Compilation._generate(compilation.Compilation.__new__(compilation.Compilation), None)


def test_threads_are_a_number(model):
    with pytest.raises(RunError, match="threads is 'two'"):
        occ.compile(model, "interp", threads="two")


@pytest.mark.parametrize("data", [X, [X], {"x": X}, []])
def test_calibration_data_are_inputs_by_name(data, model, tmp_path):
    pytest.importorskip("onnxruntime")
    with pytest.raises(RunError, match=r"(?s)calibration data"):
        occ.quantize(model, tmp_path / "q.onnx", calibrate=data)


def test_a_rule_is_made_of_a_function():
    with pytest.raises(CompileError, match="of a function, not of str"):
        occ.fusion("conv_relu")


@pytest.mark.parametrize(
    ("version", "told"),
    [("1.20.0", "onnx 1.20.0 cannot be used: the types"), ("1.20.1", "cannot be used"), ("1.16.2", "it is too old")],
)
def test_a_release_of_onnx_that_cannot_be_used_is_refused_by_name(version, told, monkeypatch):
    onnx_release.check_release.cache_clear()
    monkeypatch.setattr(onnx, "__version__", version)
    with pytest.raises(CompileError, match=rf"(?s)OCC0409.*{told}.*pip install -U 'onnx>=1.17,!=1.20.\*'"):
        onnx_release.check_release()
    monkeypatch.undo()
    onnx_release.check_release()


def test_what_is_refused_is_what_the_package_does_not_ask_for():
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (asked,) = [SpecifierSet(d.removeprefix("onnx")) for d in wanted if d.startswith("onnx>")]
    for minor in range(10, 30):
        fine = (1, minor) >= onnx_release.LEAST and (1, minor) not in onnx_release.FAULTY
        assert (f"1.{minor}.0" in asked) == fine, minor
