"""What goes wrong in the first hour with occ: each of these was once a stumble."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import model_of

import occ
from occ.benchmark import Comparison, Timing
from occ.cli.numbers import Bytes, Share


def test_a_tolerance_may_be_a_percentage(model, occ_cli):
    assert Share().convert("1%", None, None) == Share().convert("0.01", None, None) == 0.01
    assert occ_cli("diff", "m.onnx", "-t", "cpu-jit", "--against", "interp", "--tolerance", "1%").code == 0


def test_memory_is_given_in_bytes_or_in_units_of_them():
    given = [Bytes().convert(text, None, None) for text in ("4e9", "4GB", "4 gb", "4GiB", "1.5Ki")]
    assert given == [4e9, 4e9, 4e9, 4 * 2**30, 1536]


def test_ops_takes_names(occ_cli):
    listed = [line.split()[0] for line in occ_cli("ops", "relu").out.splitlines()]
    assert {"Relu", "PRelu", "LeakyRelu"} <= set(listed)
    assert all("relu" in name.lower() for name in listed)
    assert "com.microsoft.MatMulNBits" in occ_cli("ops", "NBits", "Softmax").out


def test_ops_tells_the_types_that_operands_take(occ_cli):
    assert "X: bfloat16, double, float, float16" in occ_cli("ops", "Conv", "--types").out
    rows = map(json.loads, occ_cli("ops", "QLinearConv", "--json").out.splitlines())
    assert next(rows)["operands"]["w"] == ["int8", "uint8"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell, occ_cli):
    ran = occ_cli("completion", shell)
    assert ran.code == 0
    assert f"_OCC_COMPLETE={shell}_complete" in ran.out


def test_completion_completes_commands_options_and_values():
    def completed(words: str, at: int) -> list[str]:
        env = {"_OCC_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(at), "PATH": ""}
        run = "import sys; sys.argv[0] = 'occ'; from occ.cli import main; main()"
        done = subprocess.run([sys.executable, "-c", run], env=env, capture_output=True, text=True, check=False)
        return [line.partition(",")[2] for line in done.stdout.splitlines()]

    assert completed("occ bi", 1) == ["bisect"]
    assert completed("occ build --emi", 2) == ["--emit"]
    assert "static" in completed("occ build --emit st", 3)


def test_inputs_may_be_the_test_data_of_onnx(model, occ_cli):
    x = np.random.default_rng(0).standard_normal((3, 8), dtype=np.float32)
    Path("input_0.pb").write_bytes(onnx.numpy_helper.from_array(x, "x").SerializeToString())
    ran = occ_cli("run", model, "-t", "interp", "--input", "x=input_0.pb", "--output", "out")
    assert ran.code == 0, ran.err
    np.testing.assert_array_equal(np.load("out/y.npy"), occ.compile(str(model), "interp").run({"x": x})["y"])
    Path("broken.pb").write_bytes(b"\xff\xff")
    for name, told in (("broken.pb", "is not a TensorProto"), ("missing.pb", "cannot be read")):
        ran = occ_cli("run", model, "-t", "interp", "--input", f"x={name}")
        assert ran.code == 1
        assert told in ran.err
        assert "pickle" not in ran.err


def test_inspect_of_fixed_sizes_and_in_80_columns(tmp_path, monkeypatch, occ_cli):
    monkeypatch.chdir(tmp_path)
    names = (
        "Abs Acos Asin Atan Ceil Cos Elu Erf Exp Floor Neg Relu Round Sigmoid Sign Sin Softplus Softsign Sqrt Tan Tanh"
    )
    chain = ["x", *(f"v{k}" for k, _ in enumerate(names.split()))]
    nodes = "  ".join(f"{b} = {op}({a})" for op, a, b in zip(names.split(), chain, chain[1:], strict=False))
    text = f"g (float[n,3] x) => (float[n,3] {chain[-1]}) {{ {nodes} }}"
    Path("long.onnx").write_bytes(model_of(text).SerializeToString())
    assert max(map(len, occ_cli("inspect", "long.onnx").out.splitlines())) <= 80
    assert occ_cli("build", "long.onnx", "-t", "cpu-jit", "--dim", "n=4").code == 0
    out = occ_cli("inspect", "long.occ").out
    assert max(map(len, out.splitlines())) <= 80
    assert "0 to any" not in out


def test_inspect_tells_types_of_outputs_and_has_no_empty_headings(model, occ_cli):
    out = occ_cli("inspect", "m.onnx").out
    assert "outputs:\n  y: f32[n,4]\ndims:\n  n\noperators:" in out
    assert occ_cli("build", "m.onnx", "-t", "cpu-jit", "--dim", "n=4").code == 0
    out = occ_cli("inspect", "m.occ").out
    assert "dims:" not in out
    assert "constraints:" not in out


def test_the_summary_of_a_build_fits_80_columns_and_counts_well(tmp_path, monkeypatch, occ_cli):
    monkeypatch.chdir(tmp_path)
    text = "g (int64[n] x) => (int64[k] y) { y = Unique(x) }"
    Path("a.onnx").write_bytes(model_of(text).SerializeToString())
    told = occ_cli("build", "a.onnx", "-t", "cpu-jit").err.splitlines()
    assert max(map(len, told)) <= 80
    assert any(line.startswith("plan     1 step, 0 kernels") for line in told)


def test_an_operand_that_is_read_twice_is_described_once(tmp_path, occ_cli):
    path = tmp_path / "b.onnx"
    path.write_bytes(model_of("g (bool[4] x) => (bool[4] y) { y = Add(x, x) }").SerializeToString())
    assert occ_cli("build", path).err.count("`x` is bool[4]") == 1


def test_help_and_lists_fit_80_columns(occ_cli):
    for args in (["--help"], ["build", "--help"], ["targets"], ["targets", "cpu"], ["ops"]):
        assert max(map(len, occ_cli(*args).out.splitlines())) <= 80, args


def test_times_that_vary_are_not_given_as_a_result():
    lines = Comparison(1, {"occ": Timing(2.0, 1.36, 2.0)}).lines()
    assert "136%" not in "".join(lines)
    assert "unsteady" in lines[0]
    assert "something else uses the processors" in lines[-1]
    assert "+- 10%" in Comparison(1, {"occ": Timing(2.0, 0.1, 2.0)}).lines()[0]


def test_what_to_do_next_with_an_ascend_artifact_runs_without_a_device(model, occ_cli):
    ran = occ_cli("build", model, "-t", "ascend310p", "--dim", "n=2")
    assert ran.code == 0, ran.err
    (following,) = [line.split()[1:] for line in ran.err.splitlines() if line.startswith("next")]
    assert occ_cli(*following[1:]).code == 0


# Texts


def test_weights_of_a_dump_come_last_or_not_at_all(model, occ_cli):
    full, names, none = (
        occ_cli("dump", model, "--stage", "canonical", "--weights", how).out for how in ("full", "names", "none")
    )
    assert full.index("func @main") < full.index("  weight @")
    assert full == occ_cli("dump", model, "--stage", "canonical").out
    assert (
        occ_cli("dump", "-", "--stage", "canonical", stdin=full.encode()).out.splitlines()[1:] == full.splitlines()[1:]
    )
    assert "weight @" in names
    assert "dense<" not in names
    assert "ref(" not in names
    assert "weight @" not in none
    assert "func @main" in none


@pytest.mark.parametrize(
    "text",
    [
        "y = LeakyRelu <alpha = 0.1> (x)",
        "c = Constant <value = float[3] {0.1, 0.7, 1e-7}> ()  y = Mul(x, c)",
        "y = Elu <alpha = 1e-5> (x)",
    ],
)
def test_floats_of_a_dump_have_the_fewest_digits(text, tmp_path, monkeypatch, occ_cli):
    monkeypatch.chdir(tmp_path)
    Path("f.onnx").write_bytes(model_of(f"g (float[3] x) => (float[3] y) {{ {text} }}").SerializeToString())
    for stage in ("canonical", "scheduled"):
        assert occ_cli("dump", "f.onnx", "--stage", stage, "-t", "cpu-jit", "-o", "f.occ").code == 0
        dumped = Path("f.occ").read_text()
        assert "0.10000000149" not in dumped
        assert "e-08" not in dumped
        assert "9.9999" not in dumped
        x = np.float32([-1.5, 0.3, 2.0])
        want = occ.compile("f.onnx", "cpu-jit").run({"x": x})["y"]
        np.testing.assert_array_equal(occ.compile("f.occ", "cpu-jit").run({"x": x})["y"], want)


@pytest.mark.thinned
@pytest.mark.parametrize("command", ["diff", "report", "run", "bench"])
def test_sizes_of_random_inputs_are_said(command, tmp_path, monkeypatch, occ_cli):
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(model_of("g (float[k] x) => (float[k] y) { y = Exp(x) }").SerializeToString())
    against = ["--against", "interp"] if command == "diff" else []
    assert (
        "random inputs with k=32; --dim sets other sizes" in occ_cli(command, "m.onnx", "-t", "cpu-jit", *against).err
    )
    assert "random inputs with" not in occ_cli(command, "m.onnx", "-t", "cpu-jit", *against, "--dim", "k=3").err


def test_small_outputs_are_printed_whole(tmp_path, monkeypatch, occ_cli):
    monkeypatch.chdir(tmp_path)
    text = (
        "g (float[n] x) => (float[n] y, bool[n] z) { y = Exp(x)  o = Constant <value = float {2.}> ()  z = Less(y, o) }"
    )
    Path("m.onnx").write_bytes(model_of(text).SerializeToString())
    for x, shown in (([0, 0.5], "[1.     1.6487]\n"), ([0, 1], "[ True False]\n")):
        np.save("x.npy", np.float32(x))
        assert f"\n  {shown}" in occ_cli("run", "m.onnx", "-t", "interp", "--input", "x=x.npy").out
    np.save("x.npy", np.zeros(17, np.float32))
    assert occ_cli("run", "m.onnx", "-t", "interp", "--input", "x=x.npy").out.count("\n") == 2


def test_a_dim_is_fixed_by_its_name_or_as_it_is_shown(tmp_path, monkeypatch, occ_cli):
    monkeypatch.chdir(tmp_path)
    model = model_of("g (float[n,m] x) => (float[n,m] y) { y = Exp(x) }")
    for port in (*model.graph.input, *model.graph.output):
        for d, name in zip(port.type.tensor_type.shape.dim, ("Dyn.Dim:0", "Dyn.Dim:1"), strict=True):
            d.dim_param = name
    onnx.save(model, "m.onnx")
    assert "f32[Dyn_Dim_0,Dyn_Dim_1]" in occ_cli("inspect", "m.onnx").out
    for name in ("Dyn.Dim:0", "Dyn_Dim_0"):
        assert (
            "float32[3, 5]"
            in occ_cli("run", "m.onnx", "-t", "interp", "--dim", f"{name}=3", "--dim", "Dyn_Dim_1=5").out
        )
    assert occ_cli("run", "m.onnx", "-t", "interp", "--dim", "Dyn_Dim_2=3").code == 2
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "Dyn_Dim.0"
    onnx.save(model, "two.onnx")
    ran = occ_cli("run", "two.onnx", "-t", "interp", "--dim", "Dyn_Dim_0=3")
    assert ran.code == 2, "two dims are shown alike"


def test_a_model_may_be_named_like_the_first_word_of_a_text(model):
    """The path was taken for IR."""
    assert [i.name for i in occ.compile(str(model.rename("module.onnx")), "interp").inputs] == ["x"]


def test_occ_is_a_module_too_and_has_the_help_of_git(model):
    def printed(*args: str) -> str:
        return subprocess.run([sys.executable, "-m", *args], capture_output=True, text=True, check=True).stdout

    assert printed("occ", "--version") == printed("occ.cli", "--version")
    assert printed("occ", "help") == printed("occ", "--help")
    assert printed("occ", "help", "explain") == printed("occ", "explain", "--help")


def test_the_only_input_needs_no_name(model, occ_cli):
    x = np.random.default_rng(0).standard_normal((3, 8), dtype=np.float32)
    np.save("x.npy", x)
    np.save("a=b.npy", x)
    for given in ("x.npy", "x=x.npy", "a=b.npy"):
        ran = occ_cli("run", model, "-t", "interp", "--input", given, "--output", "out")
        assert ran.code == 0, ran.err
        np.testing.assert_array_equal(np.load("out/y.npy"), occ.compile(str(model), "interp").run({"x": x})["y"])
    Path("two.onnx").write_bytes(
        model_of("g (float[2] a, float[2] b) => (float[2] y) { y = Add(a, b) }").SerializeToString()
    )
    ran = occ_cli("run", "two.onnx", "-t", "interp", "--input", "x.npy")
    assert ran.code == 2
    assert "the inputs: a, b" in ran.err


def test_inspect_lists_what_extract_and_diff_take(tmp_path, monkeypatch, occ_cli):
    monkeypatch.chdir(tmp_path)
    text = """g (float[n,3] x) => (float[n,2] y, int64[2] s) {
        [first] h = Slice(x, b, e, b2)
        y = com.microsoft.Gelu(h)
        s = Shape(x)
    }"""
    held = model_of(
        text,
        {"b": np.int64([0]), "e": np.int64([2]), "b2": np.int64([1])},
    )
    held.graph.node[0].output[0] = "odd\nname"
    held.graph.node[1].input[0] = "odd\nname"
    held.opset_import.add(domain="com.microsoft", version=1)
    Path("m.onnx").write_bytes(held.SerializeToString())
    rows = [json.loads(line) for line in occ_cli("inspect", "m.onnx", "--nodes", "--json").out.splitlines()]
    assert [r["operator"] for r in rows] == ["Slice", "com.microsoft.Gelu", "Shape"]
    assert rows[0] == {
        "name": "first", "operator": "Slice", "inputs": ["x", "b", "e", "b2"], "outputs": ["odd\nname"], "types": ["f32[n,2]"],
    }  # fmt: skip
    assert rows[1]["types"] == ["f32[n,2]"]
    lines = occ_cli("inspect", "m.onnx", "--nodes").out.splitlines()
    assert lines[0] == r"first  Slice(x, b, e, b2) -> odd\nname: f32[n,2]"
    assert len(lines) == 3
    assert occ_cli("extract", "m.onnx", "--to", rows[0]["name"], "-o", "part.onnx").code == 0
    assert occ_cli("extract", "m.onnx", "--from", rows[0]["outputs"][0], "-o", "part.onnx").code == 0
    for form, end in (("text", "t.occ"), ("artifact", "a.occ")):
        made = ("dump", "m.onnx", "--stage", "fused") if form == "text" else ("build", "m.onnx")
        assert occ_cli(*made, "-t", "cpu-jit", "-o", end).code == 0
        assert "first" in occ_cli("inspect", end, "--nodes").out
