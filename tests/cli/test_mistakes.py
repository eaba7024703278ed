"""Mistakes on the command line and in calls, and the messages that say what was meant."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import model_of

import occ
import occ.onnxruntime
from occ.arguments import checked_options
from occ.compiler.diagnostics import CompileError
from occ.runtime.errors import RunError


@pytest.mark.parametrize(
    ("args", "code", "hint"),
    [
        (["biuld", "m.onnx"], 2, "did you mean `build`?"),
        (["build", "m.onnx", "--taget", "cpu"], 2, "--target"),
        (["build", "m.onnx", "-t", "cpu_jit"], 2, "did you mean `cpu-jit`"),
        (["ops", "Cnov"], 2, "did you mean `Conv`?"),
        (["build", "m.onnx", "--stop-after", "fused"], 2, "no pass is called `fused`"),
        (["build", "m.onnx", "--print-after", "fodl"], 2, "did you mean `fold`"),
        (["build", "m.onnx", "--optimise", "3"], 2, "--optimize"),
        (["dump", "m.onnx", "-t", "cpu-jit", "--stage", "fuse"], 2, "did you mean `fused`?"),
        (["dump", "m.onnx", "-t", "cpu-jit", "--stage", "ge"], 2, "targets that have it: `ascend310`"),
        (["dump", "m.onnx", "-t", "ascend310p", "--stage", "scheduled"], 2, "targets that have it: `cpu`"),
        (["diff", "m.onnx", "--tolerance", "lots"], 2, "'lots' is not a valid number or percentage"),
        (["serve", "m.onnx", "--port", "http"], 2, "'http' is not a valid whole number"),
        (["run", "m.onnx", "--timeout", "soon"], 2, "'soon' is not a valid number"),
        (["bench", "m.occ", "--per-op"], 2, "--per-op compares with another runtime"),
        (["diff", "m.occ"], 2, "pass that with --onnx FILE"),
        (
            ["diff", "m.occ", "--onnx", "notes.txt", "-t", "cpu-jit"],
            2,
            "`notes.txt` is not an ONNX model but a text file",
        ),
        (["build", "notes.txt"], 1, "not an ONNX model but a text file"),
        (["build", "https://example.com/m.onnx"], 1, "download it first"),
        (["report", "m.onnx", "-o", "page.pdf"], 2, "-o page.html"),
        (["cache", "clear"], 2, "did you mean `--clear`?"),
        (["check", "m.onnx", "-t", "ascend910c"], 2, "`ascend910_93`"),
        (["build", "m.onnx", "--memory-limit", "much"], 2, "such as 4e9, 4GB or 512MiB"),
        (["build", "m.onnx", "-t", "interp", "--memory-limit", "1kB"], 1, "1000 bytes are less"),
        (["diff", "m.onnx", "m.occ"], 2, "--against m.occ"),
        (["diff", "m.occ", "m.onnx"], 2, "--onnx m.onnx"),
        (["dump", "m.onnx", "-t", "cpu-jit", "--stage", "fused", "-o", "."], 1, "`.` is a folder"),
        (["build", "m.onnx", "-t", "cpu-jit", "--target-cpu", "native"], 2, "leave --target-cpu out"),
        (["opt", "m.onnx", "-p", "fuse"], 0, "no pass changed anything at the stage `imported`"),
        (["rules"], 0, "no rules are loaded"),
        (["rules", "m.onnx", "--why", "y", "-t", "cpu-jit"], 0, "--schedule explains how kernels are scheduled"),
        (["rules", "m.onnx", "--why", "neg_1", "-t", "cpu-jit"], 2, "with --schedule it is a kernel"),
        (["build", "odd.onnx", "-t", "interp"], 1, "did you mean `HardSwish`?"),
    ],
)
def test_a_typing_error_is_met_with_what_was_meant(args, code, hint, model, occ_cli):
    odd = model_of("g (float[2] x) => (float[2] y) { y = HardSwsh(x) }")
    Path("odd.onnx").write_bytes(odd.SerializeToString())
    Path("notes.txt").write_text("what I did today\n")
    if "m.occ" in args:
        occ_cli("build", "m.onnx", "-t", "cpu-jit")
    ran = occ_cli(*args)
    assert ran.code == code
    assert hint in ran.err


def test_a_path_given_as_an_input_is_called_one(model):
    with pytest.raises(RunError, match=r"(?s)a text or a path.*numpy.load"):
        occ.compile(model, "interp").run({"x": "x.npy"})


def test_a_model_that_is_opened_as_an_artifact_is_called_one(model):
    with pytest.raises(RunError, match=r"(?s)not an artifact but a model.*`occ build \S*m.onnx`"):
        occ.load(model)


@pytest.mark.parametrize("command", ["run", "bench"])
def test_the_target_of_an_artifact_is_not_chosen_again(command, model, occ_cli):
    assert occ_cli("build", model, "-t", "interp").code == 0
    for options, told in ((["-t", "cpu-jit"], "is an artifact for `interp`"), (["--shape", "x=3,8"], "--shape is for")):
        ran = occ_cli(command, "m.occ", *options)
        assert ran.code == 2
        assert told in ran.err
    assert occ_cli("run", "m.occ", "-t", "interp").code == 0


@pytest.mark.thinned
@pytest.mark.parametrize("command", ["run", "bench"])
def test_a_dim_that_an_artifact_has_fixed_is_refused(command, model, occ_cli):
    assert occ_cli("build", model, "-t", "cpu-jit", "--dim", "n=4", "-o", "fixed.occ").code == 0
    ran = occ_cli(command, "fixed.occ", "--dim", "n=7")
    assert ran.code == 2
    assert "without a symbolic dim `n`; all its sizes are fixed" in ran.err
    assert occ_cli("build", model, "-t", "cpu-jit", "-o", "free.occ").code == 0
    assert occ_cli(command, "free.occ", "--dim", "n=7").code == 0
    assert "its dims: n" in occ_cli(command, "free.occ", "--dim", "batch=7").err


@pytest.mark.parametrize(
    ("package", "call"), [("onnxruntime", "occ.onnxruntime.register()"), ("torch", "occ.torch.explain()")]
)
def test_what_is_not_installed_is_said_with_the_remedy(package, call):
    code = f"import sys; sys.modules[{package!r}] = None; import occ; {call}"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stderr.splitlines()[-1].startswith(f"ModuleNotFoundError: `occ.{package}` needs")
    assert f"pip install {package}" in ran.stderr


@pytest.mark.parametrize("form", [[], ["--dir"]])
def test_a_disk_without_room_is_named_with_the_file(form, tmp_path):
    weights = {"w": np.ones((300, 300), np.float32)}
    onnx.save(model_of("g (float[n,300] x) => (float[n,300] y) { y = MatMul(x, w) }", weights), tmp_path / "m.onnx")
    build = [sys.executable, "-m", "occ", "build", "m.onnx", "-t", "interp", "--no-cache", "-o", "out.occ", *form]
    ran = subprocess.run(
        ["bash", "-c", 'ulimit -f 50; exec "$@"', "-", *build],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert "cannot write `out.occ`: File too large" in ran.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx"]


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["build", "m"], "did you mean `m.onnx`?"),
        (["build", "n.onnx"], "did you mean `m.onnx`?"),
        (["check", "m.onnx", "--shape", "x=5x8"], "by commas: n,8"),
        (["quantize", "m.onnx", "-o", "q.onnx", "--keep", "h,y"], "repeat --keep"),
    ],
)
def test_a_near_miss_says_how_it_is_written(args, hint, model, occ_cli):
    ran = occ_cli(*args)
    assert hint in ran.err, ran.err
    assert ran.code in (1, 2)


@pytest.mark.parametrize("given", [3, np.zeros((1, 8), np.float32)])
def test_inputs_that_have_no_names_are_refused(given, model):
    session = occ.compile(str(model), "interp")
    with pytest.raises(occ.RunError, match="by name, not as"):
        session.run(given)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda m: occ.bench("m.onnx", dims="n=3"), "dims is 'n=3', not a dict"),
        (lambda m: occ.bench("m.onnx", dims={"n": "1..4"}), "inputs have one size"),
        (lambda m: occ.report("m.onnx", dims="n=3"), "dims is 'n=3', not a dict"),
        (lambda m: occ.report("m.onnx", stage="x"), "a report shows no stage 'x'"),
        (lambda m: occ.report("m.onnx", against="tf"), "against is 'tf'"),
        (lambda m: occ.report("m.onnx", inputs=3), "inputs is 3, not a dict"),
        (lambda m: occ.bench("m.onnx", inputs=3), "inputs is 3, not a dict"),
        (lambda m: occ.diff("m.onnx", inputs=3), "inputs is 3, not a dict"),
        (lambda m: occ.diff("m.onnx", dims="n=3"), "dims is 'n=3', not a dict"),
        (lambda m: m.bind(3), "inputs are passed by name, not as int"),
        (lambda m: m.bind(outputs=[1]), "outputs are passed by name, not as list"),
        (lambda m: m.save("m.so"), "--emit shared"),
        (lambda m: m.save("m.A"), "--emit static"),
        (lambda m: occ.build("m.onnx", "interp", out="m.so"), "--emit shared"),
        (lambda m: occ.LanguageModel("m.onnx", options="optimize=2"), "options is 'optimize=2', not a dict"),
    ],
)
def test_a_call_with_an_argument_of_another_kind_says_which(call, said, model):
    session = occ.compile("m.onnx", "interp")
    with pytest.raises((CompileError, RunError), match=re.escape(said)):
        call(session)


@pytest.mark.parametrize("level", [2, "2", np.int64(2)])
def test_options_are_numbers_or_texts(level):
    assert checked_options({"optimize": level}) == {"optimize": "2"}


def test_the_provider_for_onnxruntime_needs_native_code():
    pytest.importorskip("onnxruntime")
    with pytest.raises(CompileError, match=r"(?s)OCC0303.*interp.*cpu-jit"):
        occ.onnxruntime.register("interp")
