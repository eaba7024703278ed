"""Odd arguments, and models whose inputs and outputs are not tensors: one error each, with the documented exit code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from building import model_of

import occ

SEQUENCE = "g (seq(float[n]) s) => (float[m] y) { y = ConcatFromSequence<axis = 0>(s) }"


def written(name: str, text: str) -> str:
    Path(name).write_bytes(model_of(text).SerializeToString())
    return name


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        ("run m.onnx -t cpu-jit --seed -1", 2, "--seed"),
        ("run m.onnx -t cpu-jit --threads 0", 2, "--threads"),
        ("run m.onnx -t cpu-jit --simulate", 2, "for `cpu-jit`"),
        ("run . -t cpu-jit", 1, "the folder `.` is not an artifact"),
        ("run m.onnx -t cpu-jit --input x=notes.txt", 1, "`numpy.save` writes .npy files"),
        ("dump m.onnx -t cpu-jit", 2, "--stage imported, inferred, canonical"),
        ("explain 999", 2, "no code OCC0999"),
        ("diff m.onnx -t cpu-jit --simulate", 2, "not `cpu-jit`"),
        ("run m.onnx -t cpu-jit --dim n=999999999999", 1, "more memory than there is"),
        ("run m.onnx -t cpu-jit --dim n=9000000000", 1, "more memory than there is"),
        ("run m.onnx -t cpu-jit --inputs x.npy", 1, "--input NAME=x.npy"),
        ("run m.onnx -t cpu-jit --input x=x.npy --input x=x.npy", 2, "given twice"),
        ("run - -t cpu-jit", 2, "standard input, which is empty"),
        ("build m.onnx -t cpu-jit -o -", 2, "'-' is not the name of a file"),
        ("report m.onnx -t cpu-jit -o -", 2, "'-' is not the name of a file"),
        ("dump m.onnx -t cpu-jit --stage halide", 2, "stages: imported, inferred, canonical"),
        ("dump m.onnx -t cpu-jit --stage halide", 2, "lowered, llvm"),
        ("diff m.onnx -t cpu-jit --node [", 2, "not a regular expression"),
        ("diff m.onnx -t cpu-jit --tolerance nan", 2, "--tolerance"),
        ("diff m.onnx -t cpu-jit --tolerance -1", 2, "--tolerance"),
        ("diff m.onnx -t cpu-jit --inputs wrong.npz", 1, "the model has no input `q`"),
        ("extract m.onnx --from y --to x -o part.onnx", 2, "no node is on a path from `y` to `x`"),
        ("extract empty.onnx --to y -o part.onnx", 1, "no graph"),
        ("reduce m.onnx -t cpu-jit --test nothing-of-this-name", 2, "--test cannot be run"),
    ],
)
def test_one_error_with_the_exit_code_of_the_page(args, code, said, model, occ_cli):
    np.savez("wrong.npz", q=np.zeros((5, 8), np.float32))
    Path("empty.onnx").touch()
    Path("notes.txt").write_text("no array")
    before = set(Path().iterdir())
    ran = occ_cli(*args.split())
    assert ran.code == code, ran.err
    assert said in ran.err
    assert not ran.out
    assert set(Path().iterdir()) == before


def test_options_of_a_build_for_an_artifact_are_wrong_usage(model, occ_cli):
    occ.build("m.onnx", "cpu-jit", "m.occ")
    ran = occ_cli("run", "m.occ", "-C", "llvm.optimize=always")
    assert (ran.code, ran.err.count("error[")) == (2, 1)


@pytest.mark.parametrize("command", ["run", "diff", "bench", "report"])
@pytest.mark.parametrize("kind", ["sequence", "optional"])
def test_random_inputs_are_tensors(kind, command, model, occ_cli):
    texts = {"sequence": SEQUENCE, "optional": "g (optional(float[n]) s) => (bool y) { y = OptionalHasElement(s) }"}
    ran = occ_cli(command, written("odd.onnx", texts[kind]), "-t", "interp")
    assert ran.code == 1, ran.err
    assert f"the input `s` is of kind {kind}" in ran.err


def test_a_sequence_comes_from_an_npz_and_goes_to_one(model, occ_cli):
    np.savez("s.npz", np.ones(2, np.float32), np.zeros(3, np.float32))
    ran = occ_cli("run", written("in.onnx", SEQUENCE), "-t", "interp", "--input", "s=s.npz", "--output", "out")
    assert ran.code == 0, ran.err
    assert np.load("out/y.npy").tolist() == [1, 1, 0, 0, 0]
    split = written("out.onnx", "g (float[4] x) => (seq(float[2]) y) <int64 two = {2}> { y = SplitToSequence(x, two) }")
    ran = occ_cli("run", split, "-t", "interp", "--output", "out")
    assert ran.out.startswith("y: sequence of 2\ny[0]: float32[2]"), ran.out + ran.err
    with np.load("out/y.npz") as made:
        assert [a.shape for a in made.values()] == [(2,), (2,)]
    (facts,) = json.loads(occ_cli("run", split, "-t", "interp", "--json").out)["outputs"]
    assert [e["shape"] for e in facts["elements"]] == [[2], [2]]
    for oracle in ("onnxruntime", "reference"):
        assert occ_cli("diff", split, "-t", "interp", "--against", oracle).code == 0


def test_texts_and_what_numpy_lacks_are_printed(model, occ_cli):
    text = written("text.onnx", "g (string[2] s) => (string[2] y) { y = Identity(s) }")
    ran = occ_cli("run", text, "-t", "interp", "--output", "out")
    assert ran.out == "y: string[2]\n  ['text', 'text']\n"
    assert np.load("out/y.npy", allow_pickle=False).tolist() == ["text", "text"]
    bf16 = written("bf16.onnx", "g (bfloat16[3] x) => (bfloat16[3] y) { y = Neg(x) }")
    assert "bfloat16[3]  min -" in occ_cli("run", bf16, "-t", "interp").out


def strict(line: str):
    return json.loads(line, parse_constant=lambda name: pytest.fail(f"JSON has no {name}"))


def test_json_is_what_every_reader_takes(model, occ_cli):
    np.save("nan.npy", np.full((5, 8), np.nan, np.float32))
    ran = occ_cli("run", "m.onnx", "-t", "interp", "--input", "x=nan.npy", "--json")
    assert strict(ran.out)["outputs"][0]["max"] == "NaN"
    inf = written(
        "inf.onnx",
        "g (float[2] x) => (float[2] y) <float c = {0}> { b = Abs(x) z = Mul(b, c) a = Cos(z) y = Div(a, z) }",
    )
    assert strict(occ_cli("run", inf, "-t", "interp", "--json").out)["outputs"][0]["max"] == "Infinity"


@pytest.mark.parametrize(
    "args",
    ["run m.onnx --threads 0", "run missing.onnx", "bench m.onnx --rounds 0", "report m.onnx -o /proc/x/r.html -t interp",
     "run m.onnx -t interp --dim n=999999999999"],
)  # fmt: skip
def test_errors_are_json_where_it_is_asked_for(args, model, occ_cli):
    ran = occ_cli(*args.split(), "--json")
    assert ran.code in (1, 2)
    assert not ran.err
    assert strict(ran.out)["severity"] == "error"


@pytest.mark.parametrize(
    ("args", "key"),
    [("explain OCC0501", "explanation"), ("doctor", "trial cpu-jit"), ("extract m.onnx --to y -o p.onnx", "nodes"),
     ("report m.onnx -t interp -o r.html", "bytes")],
)  # fmt: skip
def test_json_of_further_commands(args, key, model, occ_cli):
    names = {"y": occ.inspect("m.onnx")["outputs"][0].partition(":")[0]}
    ran = occ_cli(*(names.get(a, a) for a in args.split()), "--json")
    assert ran.code == 0, ran.err
    assert key in strict(ran.out)


def test_words_of_numpy_are_for_its_own_files(model, occ_cli):
    Path("notes.txt").write_text("no array")
    np.save("objects.npy", np.array([{}]), allow_pickle=True)
    assert "pickle" not in occ_cli("run", model, "-t", "cpu-jit", "--input", "x=notes.txt").err
    assert "pickle" in occ_cli("run", model, "-t", "cpu-jit", "--input", "x=objects.npy").err.lower()


def test_a_run_that_fails_on_random_values_asks_for_real_ones(occ_cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written("gather.onnx", "g (float[1] x, int64[40] at) => (float[40] y) { y = Gather(x, at) }")
    np.savez("wrong.npz", x=np.zeros(1, np.float32), at=np.full(40, 7))
    for args, asks in (((), True), (("--inputs", "wrong.npz"), False)):
        ran = occ_cli("run", "gather.onnx", "-t", "cpu-jit", "--seed", "1", *args)
        assert ran.code == 1, ran.out
        assert ("the inputs are random" in ran.err) == asks


def test_explain_takes_numbers_and_fits_80_columns(occ_cli):
    for code in ("305", "occ0305", "0305"):
        ran = occ_cli("explain", code)
        assert ran.out.startswith("OCC0305: ")
        assert max(map(len, ran.out.splitlines())) <= 80
