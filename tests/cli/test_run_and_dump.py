"""The commands run and dump: inputs of every kind, and the texts of every stage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from building import mlp, reference

import occ


def test_run_uses_seeded_inputs(model, occ_cli):
    first, second, other = (
        json.loads(occ_cli("run", model, "-t", "cpu-jit", "--dim", "n=3", "--seed", s, "--json").out)["outputs"]
        for s in (0, 0, 1)
    )
    assert first == second
    assert first != other
    assert first[0]["shape"] == [3, 4]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--input", "x=missing.npy"], "cannot be read"),
        (["--inputs", "missing.npz"], "cannot be read"),
        (["--input", "x=m.onnx"], "is not a file of arrays"),
        (["--input", "y=x.npy"], "no input `y`"),
    ],
)
def test_run_with_inputs_that_do_not_fit(args, message, model, occ_cli):
    ran = occ_cli("run", model, "-t", "interp", *args)
    assert ran.code == 1
    assert "error[OCC0501]" in ran.err
    assert message in ran.err


def test_running_an_artifact_imports_no_compiler(model):
    occ.compile(model, target="cpu-jit").save("m.occ")
    code = (
        "import sys; from occ.cli import cli; cli.main(['run', 'm.occ'], standalone_mode=False)\n"
        "print(*(m for m in sys.modules if m.startswith(('onnx', 'occ.compiler.ir', 'occ.compiler.driver'))))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == ""


def test_run_refuses_pickled_inputs(model, occ_cli):
    np.save("evil.npy", np.array([{"a": 1}], object), allow_pickle=True)
    ran = occ_cli("run", model, "-t", "interp", "--input", "x=evil.npy")
    assert ran.code == 1
    assert "is not a file of arrays" in ran.err


@pytest.mark.parametrize("field", [8, 10])  # of a member: that it is encrypted, and an unknown way to compress it
def test_run_refuses_members_that_cannot_be_unpacked(field, model, occ_cli):
    np.savez("x.npz", x=np.ones((3, 3), np.float32))
    data = bytearray(Path("x.npz").read_bytes())
    for signature, at in ((b"PK\1\2", field), (b"PK\3\4", field - 2)):
        data[data.index(signature) + at] ^= 0x61
    Path("x.npz").write_bytes(data)
    ran = occ_cli("run", model, "-t", "interp", "--inputs", "x.npz")
    assert ran.code == 1
    assert "is not a file of arrays" in ran.err


@pytest.mark.parametrize(
    "header", ["{'descr': '<f4', 'shape': (5,", "{[]: 1}", "{'descr': (), 'fortran_order': False, 'shape': (9,)}"]
)
def test_run_refuses_arrays_with_damaged_headers(header, model, occ_cli):
    text = header.encode().ljust(117) + b"\n"
    Path("x.npy").write_bytes(b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text + bytes(36))
    ran = occ_cli("run", model, "-t", "interp", "--input", "x=x.npy")
    assert ran.code == 1
    assert "is not a file of arrays" in ran.err


# dump


@pytest.mark.parametrize("stage", ["imported", "inferred", "canonical", "fused", "layout", "scheduled", "lowered"])
def test_dump_json(stage, model, occ_cli):
    record = json.loads(occ_cli("dump", model, "--stage", stage, "--format", "json", "-t", "cpu").out)
    assert record["stage"] == stage
    assert record["inputs"] == [{"name": "x", "type": "f32[n,8]"}]
    assert record["ops"]
    assert bool(record["te"]) == (stage in ("scheduled", "lowered"))


@pytest.mark.parametrize(("stage", "target", "word"), [("halide", "cpu", "Generator<"), ("llvm", "cpu-jit", "define")])
def test_dump_of_the_target_text(stage, target, word, model, occ_cli):
    assert word in occ_cli("dump", model, "--stage", stage, "-t", target).out


def test_dump_to_a_file_brings_its_weights(model, occ_cli, tmp_path):
    assert occ_cli("dump", model, "--stage", "fused", "-t", "cpu-jit", "-o", "moved/f.occ").code == 0
    os.rename("moved", "elsewhere")
    assert occ_cli("build", "elsewhere/f.occ", "-t", "cpu-jit", "-o", "f-built.occ").code == 0
    (want,) = reference(mlp(), {"x": np.load("x.npy")})
    np.testing.assert_allclose(occ.load("f-built.occ")(np.load("x.npy"))[0], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
@pytest.mark.parametrize("stage", ["imported", "inferred", "canonical", "fused", "layout", "scheduled", "lowered"])
def test_a_dump_of_any_stage_builds(stage, target, model, occ_cli):
    assert occ_cli("dump", model, "--stage", stage, "-t", target, "-o", "s.occ").code == 0
    assert occ_cli("build", "s.occ", "-t", target, "-o", "built.occ").code == 0
    (want,) = reference(mlp(), {"x": np.load("x.npy")})
    np.testing.assert_allclose(occ.load("built.occ")(np.load("x.npy"))[0], want, rtol=1e-4, atol=1e-5)


def test_a_text_of_a_late_stage_is_for_one_target(model, occ_cli):
    assert occ_cli("dump", model, "--stage", "fused", "-t", "cpu", "-o", "s.occ").code == 0
    ran = occ_cli("build", "s.occ", "-t", "cpu-jit")
    assert ran.code == 2
    assert "-t cpu" in ran.err
