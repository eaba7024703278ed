"""Artifacts with code for several machines: which is chosen where, by Python and by libocc, and what is refused."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import mlp, model_of, reference
from c_library import Model
from machines import opened

import occ
from occ.compiler.cache.cache import Cache
from occ.compiler.diagnostics import CompileError
from occ.compiler.objects.processors import ARCHES, PROCESSORS, arch_of
from occ.compiler.standalone import emulated
from occ.runtime import machine

pytestmark = [
    pytest.mark.toolchain,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the tests build levels of x86-64"),
]
V2, V3, V4 = (PROCESSORS[f"x86-64-{v}"] for v in ("v2", "v3", "v4"))
X = np.random.default_rng(0).standard_normal((3, 8), np.float32)


@pytest.fixture(scope="module")
def several(tmp_path_factory: Any) -> Path:
    path = tmp_path_factory.mktemp("levels") / "several.occ"
    occ.build(mlp(), "cpu", str(path), options={"halide.target": V2, "also": f"x86-64-v3, {V4}"})
    return path


def with_damage(path: Path, out: Path, machine: str) -> Path:
    """The artifact with a library that is not what it was, of the code for one machine."""
    with zipfile.ZipFile(path) as z, zipfile.ZipFile(out, "w") as made:
        for name in z.namelist():
            data = z.read(name)
            of = name.split("/")[1] if name.startswith("machines/") else V2
            if name.endswith("model.so") and of.partition("-no_runtime")[0] == machine:
                data = data[:-8] + bytes(8 * [7])
            made.writestr(name, data)
    return out


def ran_on(cpu: str, path: Path) -> subprocess.CompletedProcess[bytes]:
    """A run of libocc on an emulated processor."""
    qemu = shutil.which("qemu-x86_64-static") or shutil.which("qemu-x86_64")
    if qemu is None:
        pytest.skip("apt install qemu-user-static")
    here = arch_of()
    assert here is not None
    command = [qemu, "-cpu", cpu, str(emulated._runner(here, Cache())), str(path)]
    return subprocess.run(command, input=emulated._packed("f32", X), capture_output=True, check=False)


@pytest.mark.parametrize(("cpu", "taken"), [("Nehalem", V2), ("Haswell", V3), ("Skylake-Server,-avx512f", V3)])
def test_a_processor_takes_its_level(cpu: str, taken: str, several: Path, tmp_path: Path):
    (want,) = reference(mlp(), {"x": X})
    for level in (V2, V3, V4):
        done = ran_on(cpu, with_damage(several, tmp_path / f"{level}.occ", level))
        if level == taken:
            assert b"does not match its digest" in done.stderr
        else:
            assert done.returncode == 0, done.stderr
            np.testing.assert_allclose(next(emulated._unpacked(done.stdout, 1)), want, rtol=1e-5, atol=1e-6)


def test_libocc_refuses_where_none_fits(several: Path, tmp_path: Path):
    assert b"this machine lacks sse41" in ran_on("qemu64", several).stderr
    occ.build(mlp(), "cpu", str(tmp_path / "v3.occ"), options={"halide.target": V3})
    assert b"was built for a processor with avx, which this one lacks" in ran_on("Nehalem", tmp_path / "v3.occ").stderr


@pytest.mark.thinned
@pytest.mark.parametrize("level", [V2, V3])
def test_no_level_loses_nan_in_halves(level: str):
    """x86-64-v2 has no instruction for it."""
    x = np.array([np.nan, -np.inf, 65519, 65520, 6e-8, 2e-8, -0.0, 0.1] * 5, np.float32)
    model = model_of("g (float[n] x) => (float16[n] y) { y = Cast <to = 10> (x) }")
    got = opened(occ.build(model, "cpu", options={"halide.target": level})).run({"x": x})["y"]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got.view(np.uint16), x.astype(np.float16).view(np.uint16))


@pytest.mark.parametrize("level", [V2, V3])
def test_no_level_loses_nan_in_arithmetic_of_halves(level: str):
    """Halide rounded its results in code that makes infinity of NaN, where a processor has no instruction for it."""
    a = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 65504, 6e-8, -1.5, 3] * 5, np.float16)
    b = a[::-1].copy()
    text = """g (float16[45] a, float16[45] b) => (float16[45] sum, float16[45] difference, float16[45] product,
        float16[45] quotient, float16[45] negative, float16[45] both, float16[45] added, float16[45] multiplied, float16[90] joined) {
        sum = Add(a, b) difference = Sub(a, b) product = Mul(a, b) quotient = Div(a, b) negative = Neg(a)
        first = Mul(a, b) both = Sub(first, a)
        second = Add(b, a) joined = Concat<axis = 0>(second, b)
        added = ScatterElements<reduction = "add">(a, at, b)
        multiplied = ScatterElements<reduction = "mul">(a, at, b)
    }"""
    model = model_of(text, {"at": np.arange(45)})
    with np.errstate(all="ignore"):
        want = [a + b, a - b, a * b, a / b, -a, a * b - a, a + b, a * b, np.concatenate([b + a, b])]
    got = opened(occ.build(model, "cpu", options={"halide.target": level})).run({"a": a, "b": b})
    for (name, x), y in zip(got.items(), want, strict=True):
        np.testing.assert_array_equal(x, y, err_msg=name)


FLAGS = {
    V2: {"sse4_1"},
    V3: {"sse4_1", "avx", "avx2", "fma", "f16c"},
    V4: {"sse4_1", "avx", "avx2", "fma", "f16c", "avx512f", "avx512cd", "avx512vl", "avx512bw", "avx512dq"},
}


@pytest.mark.skipif(bool(machine.missing_feature(V4)), reason="the code of each level is loaded here")
@pytest.mark.parametrize("level", FLAGS)
def test_python_takes_the_same(level: str, several: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "flags", lambda: frozenset(FLAGS[level]))
    assert machine.shown(occ.load(several).artifact.manifest.machine) == level


@pytest.mark.parametrize(
    ("flags", "kind", "said"),
    [({"sse2"}, "x86_64", "this machine lacks sse41"), ({"asimd"}, "aarch64", "this machine is aarch64")],
)
def test_python_refuses_where_none_fits(
    flags: set[str], kind: str, said: str, several: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(machine, "flags", lambda: frozenset(flags))
    monkeypatch.setattr(platform, "machine", lambda: kind)
    with pytest.raises(occ.RunError, match=f"has code for {V2}, {V3}, {V4}; {said}"):
        occ.load(several)


def test_sessions_and_libocc_run_it_here_and_saving_keeps_all(several: Path, tmp_path: Path):
    (want,) = reference(mlp(), {"x": X})
    session = occ.load(several)
    session.save(tmp_path / "again.occ")
    session.save(tmp_path / "folder", folder=True)
    for path in (several, tmp_path / "again.occ", tmp_path / "folder"):
        assert [machine.shown(m) for m in occ.inspect(path)["also"]] == [V3, V4]
        np.testing.assert_allclose(occ.load(path).run({"x": X})["y"], want, rtol=1e-5, atol=1e-6)
        with Model(path) as m:
            np.testing.assert_allclose(m.run(X)[0], want, rtol=1e-5, atol=1e-6)
    assert (tmp_path / "again.occ").read_bytes() == several.read_bytes()


@pytest.mark.thinned
@pytest.mark.parametrize(("op", "files"), [("Add", 1), ("MatMul", 2)])
def test_weights_are_stored_again_only_where_they_differ(op: str, files: int, tmp_path: Path):
    """The panels of a product are as wide as the vectors of a machine."""
    w = np.random.default_rng(1).standard_normal((1 if op == "Add" else 64, 64), np.float32)
    model = model_of(f"g (float[n, 64] x) => (float[n, 64] y) {{ y = {op}(x, w) }}", {"w": w})
    path = tmp_path / "model.occ"
    occ.build(model, "cpu", str(path), options={"halide.target": V2, "also": "x86-64-v3"})
    assert sum(n.endswith("weights.bin") for n in zipfile.ZipFile(path).namelist()) == files
    x = np.random.default_rng(2).standard_normal((5, 64), np.float32)
    want = x + w if op == "Add" else x @ w
    np.testing.assert_allclose(occ.load(path).run({"x": x})["y"], want, rtol=1e-4, atol=1e-4)
    with Model(path) as m:
        assert m.dll.occ_verify(m.address) == 0
        np.testing.assert_allclose(m.run(x)[0], want, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(bool(emulated.missing(ARCHES[1])), reason="needs a cross compiler and an emulator")
def test_kinds_of_machines_in_one_artifact(tmp_path: Path):
    made = occ.build(mlp(), "cpu", options={"halide.target": "arm-64-linux", "also": "x86-64-v2"})
    (want,) = reference(mlp(), {"x": X})
    np.testing.assert_allclose(emulated.Emulated(made, Cache()).run({"x": X})["y"], want, rtol=1e-5, atol=1e-6)
    made.save(tmp_path / "both.occ")
    np.testing.assert_allclose(occ.load(tmp_path / "both.occ").run({"x": X})["y"], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["../evil", "..", "", "no/such", "x86-64-linux-none"])
def test_machines_that_a_manifest_makes_up(name: str, several: Path, tmp_path: Path):
    occ.load(several).save(tmp_path / "f", folder=True)
    manifest = tmp_path / "f/manifest.json"
    facts = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**facts, "also": [name]}))
    with pytest.raises(occ.RunError, match="OCC0502"):
        occ.load(tmp_path / "f")


def test_what_is_refused_at_the_build(occ_cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CompileError, match="names `z80`, no known machine"):
        occ.build(mlp(), "cpu", options={"also": "z80"})
    onnx.save(mlp(), "m.onnx")
    for emit in ("static", "generator"):
        done = occ_cli(
            "build", "m.onnx", "--target-cpu", "x86-64-v3", "--also", "x86-64-v2", "--emit", emit, "-o", "d/"
        )
        assert done.code
        assert "is linked for one machine" in done.err
