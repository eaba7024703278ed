"""Every command of the command line: what it prints, what it writes, and its exit code."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import mlp, model_of, reference

import occ
from occ.cli import COMMANDS
from occ.compiler.cache.cache import Cache


def test_help_lists_every_command(occ_cli):
    ran = occ_cli("--help")
    assert ran.code == 0
    assert all(f"  {name} " in ran.out for name in COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help(name, occ_cli):
    ran = occ_cli(name, "--help")
    assert ran.code == 0
    assert ran.out.startswith("Usage: ")
    assert name in ran.out


def test_version(occ_cli):
    assert occ_cli("--version").out.startswith("occ ")


@pytest.mark.parametrize(
    "args",
    [
        ["frobnicate"], ["build"], ["build", "m.onnx", "--nonsense"], ["build", "m.onnx", "--shape", "x"],
        ["build", "m.onnx", "--dim", "n=many"], ["build", "m.onnx", "-C", "key"], ["build", "m.onnx", "--emit", "poem"],
        ["build", "m.onnx", "--jobs", "0"], ["dump", "m.onnx"], ["dump", "m.onnx", "--stage", "polished"],
        ["dump", "m.onnx", "--stage", "llvm", "-t", "cpu"], ["explain", "OCC9999"], ["diff", "m.onnx", "--against", "vibes"],
        ["opt", "m.onnx", "-p", "polish"], ["opt", "m.onnx", "-p", "fuse{max-ops=many}"], ["opt", "m.onnx", "-p", "fuse{speed=1}"],
        ["build", "m.onnx", "-t", "interp", "--emit", "static"],
    ],
)  # fmt: skip
def test_wrong_usage_is_2(args, model, occ_cli):
    ran = occ_cli(*args)
    assert ran.code == 2
    assert "Traceback" not in ran.err
    assert ran.err
    assert ran.out == ""


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_bench_against_what_is_not_installed_is_wrong_usage(name, model, occ_cli, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    ran = occ_cli("bench", model, "-t", "cpu-jit", "--against", name)
    assert ran.code == 2
    assert ran.out == ""
    assert f"--against {name} needs {name}: `pip install {name}`" in ran.err


# build


@pytest.mark.parametrize("target", ["interp", "cpu-jit", "cpu"])
@pytest.mark.parametrize("folder", [False, True])
def test_build_and_run(target, folder, model, occ_cli):
    built = occ_cli("build", model, "-t", target, *(["--dir"] if folder else []))
    assert built.code == 0, built.err
    assert built.out == ""
    assert "wrote    m.occ" in built.err
    assert Path("m.occ").is_dir() == folder
    ran = occ_cli("run", "m.occ", "--inputs", "all.npz", "--output", "out", "--threads", "2")
    assert ran.code == 0, ran.err
    (want,) = reference(mlp(), {"x": np.load("x.npy")})
    np.testing.assert_allclose(np.load("out/y.npy"), want, rtol=1e-4, atol=1e-5)
    assert ran.out.startswith("y: float32[5, 4]")


def test_build_prints_facts_as_json(model, occ_cli):
    ran = occ_cli("build", model, "-t", "cpu-jit", "--json", "-o", "deep/er/out.occ")
    facts = json.loads(ran.out)
    assert facts["target"] == "cpu-jit"
    assert facts["out"] == "deep/er/out.occ"
    assert Path("deep/er/out.occ").stat().st_size == facts["bytes"]
    assert ran.err == ""


def test_build_with_its_own_name_does_not_overwrite_the_model(model, occ_cli):
    text = occ_cli("dump", model, "--stage", "canonical", "-o", "text.occ")
    assert text.code == 0
    assert occ_cli("build", "text.occ", "-t", "cpu-jit").code == 0
    assert Path("text.occ").read_text().startswith("module")
    assert Path("text-built.occ").is_file()


def test_save_stages(model, occ_cli):
    assert occ_cli("build", model, "-t", "cpu-jit", "--save-stages", "--dir").code == 0
    stages = {p.stem for p in Path("m.occ/ir").iterdir()}
    assert {"imported", "inferred", "canonical", "fused", "layout", "scheduled", "lowered"} <= stages


def test_shape_and_dim(model, occ_cli):
    assert occ_cli("build", model, "-t", "cpu-jit", "--dim", "n=5").code == 0
    assert occ_cli("run", "m.occ", "--input", "x=x.npy").code == 0
    assert occ_cli("build", model, "-t", "cpu-jit", "--shape", "x=4,8").code == 0
    ran = occ_cli("run", "m.occ", "--input", "x=x.npy")
    assert ran.code == 1
    assert "axis 0 of the input `x` is 5" in ran.err
    assert occ_cli("build", model, "-t", "cpu-jit", "--shape", "x=batch,8").code == 0
    assert occ.load("m.occ").inputs[0].shape == ("batch", 8)


def test_model_from_standard_input(model, occ_cli):
    ran = occ_cli("build", "-", "-t", "cpu-jit", stdin=model.read_bytes())
    assert ran.code == 0, ran.err
    assert Path("model.occ").is_file()
    text = occ_cli("dump", "-", "--stage", "canonical", stdin=model.read_bytes()).out
    again = occ_cli("dump", "-", "--stage", "fused", "-t", "cpu-jit", stdin=text.encode())
    assert again.code == 0, again.err
    by_path = occ_cli("dump", model, "--stage", "fused", "-t", "cpu-jit")
    assert again.out.splitlines()[1:] == by_path.out.splitlines()[1:], "all but the name of the module"


def test_no_cache_leaves_nothing(model, occ_cli, monkeypatch, tmp_path):
    monkeypatch.setenv("OCC_CACHE_DIR", str(tmp_path / "cache"))
    assert occ_cli("build", model, "-t", "cpu-jit", "--no-cache").code == 0
    assert not (tmp_path / "cache").exists()


# --emit


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["cpu-jit", "cpu"])
@pytest.mark.parametrize(("emit", "suffix"), [("static", "a"), ("shared", "so"), ("object", "o")])
def test_emit_places_and_names(target, emit, suffix, model, occ_cli):
    """A path with the suffix names the library, any other one is a folder; equal builds produce equal bytes."""
    for out in ("a", f"b/m.{suffix}"):
        ran = occ_cli("build", model, "-t", target, "--emit", emit, "-o", out, "--json")
        assert ran.code == 0
        assert json.loads(ran.out)["link"].startswith("cc ")
    files = {"m.h", "m.weights", "occ.h", f"m.{suffix}", *(["libocc.a"] if emit == "object" else [])}
    for folder in ("a", "b"):
        assert {p.name for p in Path(folder).iterdir()} == files
    assert Path(f"a/m.{suffix}").read_bytes() == Path(f"b/m.{suffix}").read_bytes()


def test_emit_for_another_machine(model, occ_cli):
    other = ["-t", "cpu", "-C", "halide.target=arm-64-linux"]
    assert occ_cli("build", model, *other, "--emit", "static").code == 0
    assert occ_cli("build", model, *other, "--emit", "object").code == 0
    for path in Path("m-objects").glob("*.o"):
        assert path.read_bytes()[18:20] == b"\xb7\0", "EM_AARCH64"
    ran = occ_cli("build", model, *other)
    if shutil.which("aarch64-linux-gnu-g++"):
        assert ran.code == 0
        assert occ_cli("run", "m.occ").code == 1
    else:
        assert ran.code == 2
        assert "--emit object" in ran.err


def test_emit_generator_has_the_sources_of_the_artifact(model, occ_cli):
    """libocc takes the place of the runtime that a session loads, and other build files name it."""
    assert occ_cli("build", model, "-t", "cpu", "--emit", "generator").code == 0
    files = {n.removeprefix("src/"): d for n, d in occ.build(model, "cpu").files.items()}
    for name in files.keys() - {"runtime.cpp", "Makefile", "CMakeLists.txt"}:
        assert Path("m-src", name).read_bytes() == files[name], name
    assert all(Path("m-src", name).is_file() for name in ("m.h", "Makefile", "CMakeLists.txt"))


# the rest


def test_inspect_model_and_artifact(model, occ_cli):
    facts = json.loads(occ_cli("inspect", model, "--json").out)
    assert facts["inputs"] == ["x: f32[n,8]"]
    assert facts["operators"] == {"MatMul": 2, "Add": 1, "Relu": 1}
    assert occ_cli("build", model, "-t", "cpu").code == 0
    ran = occ_cli("inspect", "m.occ", "--json")
    facts = json.loads(ran.out)
    assert facts["target"] == "cpu"
    assert len(facts["members"]) == len(set(facts["members"]))
    assert {"manifest.json", "weights.bin", "kernels/model.so", "src/Makefile"} <= set(facts["members"])
    assert "members:\n" in occ_cli("inspect", "m.occ").out


def test_check(model, occ_cli):
    assert occ_cli("check", model, "-t", "cpu").code == 0
    assert json.loads(occ_cli("check", model, "-t", "cpu", "--json").out) == {"ok": True}
    bad = model_of("g (float[2] x) => (float[2] y, float[2] z) { y = Blip(x)  z = Blop(x) }")
    Path("bad.onnx").write_bytes(bad.SerializeToString())
    ran = occ_cli("check", "bad.onnx", "--json")
    assert ran.code == 1
    assert [json.loads(line)["code"] for line in ran.out.splitlines()] == ["OCC0104", "OCC0104"]


def test_diff(model, occ_cli):
    for against in ("onnxruntime", "reference", "interp"):
        ran = occ_cli("diff", model, "-t", "cpu-jit", "--against", against, "--dim", "n=4")
        assert ran.code == 0, ran.err
        assert ran.out.startswith("same     y: [4, 4]")
    text = "g (float[99] x) => (float[99] y) { e = Exp(x)  y = Softmax(e) }"
    Path("e.onnx").write_bytes(model_of(text).SerializeToString())
    ran = occ_cli("diff", "e.onnx", "-t", "cpu-jit", "--tolerance", "1e-30", "--absolute", "0", "--json")
    assert ran.code == 5
    row = json.loads(ran.out.splitlines()[0])
    assert row["ok"] is False
    assert row["worst"]


def test_targets(occ_cli):
    rows = [json.loads(line) for line in occ_cli("targets", "--json").out.splitlines()]
    assert [r["name"] for r in rows] == [t.name for t in occ.targets()]
    npus = {f"ascend{chip}" for chip in ("310", "310b", "310p", "910", "910b", "910_93")}
    assert {"cpu", "cpu-jit", "interp", *npus} == {r["name"] for r in rows}
    assert "halide.target" in occ_cli("targets", "cpu").out
    assert occ_cli("targets", "toaster").code == 2


def test_ops_lists_what_onnx_has(occ_cli):
    rows = [json.loads(line) for line in occ_cli("ops", "--json").out.splitlines()]
    assert len(rows) > 100
    for row in rows:
        domain, _, name = row["name"].rpartition(".")
        if onnx.defs.has(name, domain=domain):
            assert onnx.defs.get_schema(name, domain).since_version == row["since"]
        else:
            assert (row["since"], domain.removesuffix(".nchwc")) in ((1, "com.microsoft"), (1, "")), row["name"]
    assert {r["kind"] for r in rows} <= {"te", "composite", "host", "region"}
    assert sum(line[0] != " " for line in occ_cli("ops", "-t", "cpu").out.splitlines()) == len(rows)


def test_ops_prints_where_code_is(occ_cli):
    """The lines that it names, read from the files, begin the code in question."""
    home = Path(occ.__file__).parent
    rows = {r["name"]: r["places"] for r in map(json.loads, occ_cli("ops", "--where", "--json").out.splitlines())}

    def text(name, target):
        path, _, line = rows[name][target].partition(":")
        return "\n".join((home / path).read_text().splitlines()[int(line or 1) - 1 :])

    assert text("Conv", "definition").startswith("    def body(")
    assert "compiler/ir/ops/" in rows["Conv"]["definition"]
    assert text("Conv", "ascend310p").startswith("def _conv(")
    assert text("NonZero", "cpu").startswith("def nonzero(")
    assert text("NonZero", "cpu") == text("NonZero", "interp")
    assert rows["Conv"]["cpu"] != rows["Conv"]["cpu-jit"]
    for target in ("cpu", "cpu-jit", "interp"):
        assert (home / rows["Conv"][target].rpartition(" ")[2]).is_dir()
    assert "class If" in text("If", "definition")
    assert "cpu" not in rows["If"]
    assert rows["com.microsoft.FusedConv"]["cpu"] == "the operators in its definition"
    assert all((home / r["definition"].partition(":")[0]).is_file() for r in rows.values())
    assert "convolution.py" in occ_cli("ops", "Conv", "--where", "-t", "ascend310p").out


def test_doctor(occ_cli):
    ran = occ_cli("doctor")
    assert ran.code == 0
    for target in ("interp", "cpu-jit", "cpu"):
        assert f"trial {target:10} ok" in ran.out


def test_cache(occ_cli, monkeypatch, tmp_path):
    monkeypatch.setenv("OCC_CACHE_DIR", str(tmp_path / "c"))
    Cache().put("tool", "key", b"12345")
    assert json.loads(occ_cli("cache", "--json").out) == {"path": str(tmp_path / "c"), "entries": 1, "bytes": 5}
    assert "1 entries" in occ_cli("cache").out
    assert json.loads(occ_cli("cache", "--clear", "--json").out)["entries"] == 0
    assert not (tmp_path / "c").exists()


def test_clearing_a_cache_removes_only_what_occ_put_there(occ_cli, monkeypatch, tmp_path):
    """OCC_CACHE_DIR may be set to a folder that holds other things by mistake."""
    monkeypatch.setenv("OCC_CACHE_DIR", str(tmp_path))
    (tmp_path / "thesis.txt").write_text("x")
    made = Cache().put("kernel", "key", b"12345")
    assert occ_cli("cache", "--clear").code == 0
    assert (tmp_path / "thesis.txt").exists()
    assert not made.exists()


def test_explain_is_for_codes_only(occ_cli):
    assert "OCC0202" in occ_cli("explain", "occ0202").out


def test_opt(model, occ_cli):
    text = occ_cli("dump", model, "--stage", "inferred").out
    ran = occ_cli("opt", "-", "-p", "canonicalize,fold,cse,dce", "--time-passes", "--verify", stdin=text.encode())
    assert ran.code == 0, ran.err
    assert ran.out.startswith("module")
    assert re.search(r"ms .* fold\b", ran.err)


def test_json_errors(model, occ_cli):
    ran = occ_cli("build", model, "-t", "toaster", "--json")
    assert ran.code == 2
    record = json.loads(ran.out)
    assert (record["code"], record["severity"]) == ("OCC0303", "error")
    assert "toaster" in record["message"]
