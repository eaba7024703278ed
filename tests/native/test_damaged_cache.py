"""Whatever is damaged in the build cache is made again: a build never fails, and never returns something that does not load."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from building import mlp, model_of

import occ
from occ.compiler.codegen_llvm import build as llvm

LATE = "g (float[2, 3] x, int64[1] axes) => (float[a, b] y) { y = %s(x, axes) }"  # compiled when the axes are known
X = np.full((3, 8), 0.5, np.float32)


DAMAGE = pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda data: b"\0" * len(data)], ids=["cut", "zeros"]
)


@pytest.mark.thinned
@pytest.mark.toolchain
@DAMAGE
def test_damaged_entries_are_made_again(damage, tmp_path: Path, tools_only):
    tmp_path = tools_only("cache")
    want = occ.build(mlp(), "cpu")
    seen = {p: p.read_bytes() for kind in ("kernel", "library") for p in (tmp_path / kind).rglob("*.*o")}
    seen |= {p: p.read_bytes() for p in (tmp_path / "tool").rglob("*.o")}
    assert {p.parts[-3] for p in seen} == {"kernel", "library", "tool"}
    for path, data in seen.items():
        path.write_bytes(damage(data))
    made = occ.build(mlp(), "cpu", tmp_path / "m.occ")
    assert made.code == want.code
    np.testing.assert_allclose(occ.load(tmp_path / "m.occ")(X)[0], occ.compile(mlp(), "interp")(X)[0], rtol=1e-5)
    for kind in ("kernel", "library"):
        assert all(p.read_bytes() == data for p, data in seen.items() if p.parts[-3] == kind)


@DAMAGE
def test_damaged_kernels_of_cpu_jit_are_made_again(damage, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("OCC_CACHE_DIR", str(tmp_path))
    want = occ.build(mlp(), "cpu-jit")
    seen = {p: p.read_bytes() for p in (tmp_path / "kernel").rglob("*.o")}
    assert len(seen) == len({step.name for step in want.manifest.plan.steps if step.kind == "kernel"})
    for path, data in seen.items():
        path.write_bytes(damage(data))
    assert occ.build(mlp(), "cpu-jit").code == want.code
    assert {p: p.read_bytes() for p in seen} == seen


def test_cpu_jit_builds_where_the_cache_cannot_be_written(tmp_path: Path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("OCC_CACHE_DIR", str(tmp_path / "file" / "cache"))
    np.testing.assert_allclose(occ.compile(mlp(), "cpu-jit")(X)[0], occ.compile(mlp(), "interp")(X)[0], rtol=1e-5)


def test_what_is_compiled_during_a_run_is_not_kept(tmp_path: Path, monkeypatch):
    """A server would fill the disk with it."""
    monkeypatch.setenv("OCC_CACHE_DIR", str(tmp_path))
    session = occ.compile(model_of(LATE % "ReduceSum"), "cpu-jit")
    before = list(tmp_path.rglob("*.o"))
    (y,) = session(np.ones((2, 3), np.float32), np.array([1]))
    assert y.tolist() == [[3], [3]]
    assert list(tmp_path.rglob("*.o")) == before


def test_what_is_compiled_during_a_run_is_remembered_by_the_process(monkeypatch):
    compiled: list[str] = []
    monkeypatch.setattr(llvm, "_recent", llvm._Recent(1))
    compile_ = llvm._compile
    monkeypatch.setattr(llvm, "_compile", lambda f, *how: compiled.append(f.name) or compile_(f, *how))

    def compiles(name: str) -> int:
        session = occ.compile(model_of(LATE % name), "cpu-jit")
        before = len(compiled)
        session(np.ones((2, 3), np.float32), np.array([1]))
        return len(compiled) - before

    assert [compiles(name) for name in ("ReduceSum", "ReduceSum", "ReduceMax", "ReduceSum")] == [1, 0, 1, 1]
