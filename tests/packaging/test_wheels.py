"""`make wheels`: what is compiled already is taken where it fits what is installed, and nowhere else."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import onnx
import pytest
from building import mlp

from occ.compiler import prebuilt as module
from occ.compiler.prebuilt import INDEX, made_of, prebuilt

TEXTS = {"a.cpp": "int a;", "b.h": "int b;"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    (tmp_path / "tool.bin").write_bytes(b"")
    (tmp_path / INDEX).write_text(
        json.dumps({"machine": platform.machine(), "glibc": "2.17", "entries": {"tool.bin": made_of(TEXTS, "-O2")}})
    )
    module._index.cache_clear()
    yield tmp_path
    module._index.cache_clear()


def changed(folder: Path, **index: object) -> None:
    (folder / INDEX).write_text(json.dumps(json.loads((folder / INDEX).read_text()) | index))


def test_what_was_made_of_the_same_is_taken(folder: Path) -> None:
    assert prebuilt("tool.bin", made_of(TEXTS, "-O2")) == folder / "tool.bin"
    assert prebuilt("tool.bin", made_of(TEXTS, "-O3")) is None
    assert prebuilt("tool.bin", made_of(TEXTS | {"b.h": "int c;"}, "-O2")) is None
    assert prebuilt("tool.bin", made_of({"a": TEXTS["a.cpp"], "b.h": TEXTS["b.h"]}, "-O2")) is None
    assert prebuilt("other.bin", made_of(TEXTS, "-O2")) is None


@pytest.mark.parametrize("index", [{"machine": "riscv128"}, {"glibc": "99.1"}, {"entries": {}}])
def test_what_does_not_run_here_is_not_taken(folder: Path, index: dict[str, object]) -> None:
    changed(folder, **index)
    assert prebuilt("tool.bin", made_of(TEXTS, "-O2")) is None


@pytest.mark.parametrize("libc", ["", "musl 1.2", "glibc 2.16"])
def test_another_c_library_takes_nothing(folder: Path, libc: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "confstr", lambda _: libc)
    assert prebuilt("tool.bin", made_of(TEXTS, "-O2")) is None


def test_a_checkout_has_nothing_compiled(folder: Path) -> None:
    (folder / INDEX).unlink()
    assert prebuilt("tool.bin", made_of(TEXTS, "-O2")) is None
    assert not (Path(module.__file__).parent / INDEX).exists()


@pytest.mark.slow
@pytest.mark.toolchain
def test_a_wheel_with_compiled_parts_compiles_none_of_ours(tmp_path: Path) -> None:
    from test_install import ROOT, environment, ran

    from tools.wheels import build

    made = build(tmp_path / "dist")
    assert f"_{platform.machine()}.whl" in made.name
    assert "-py3-none-manylinux_2_" in made.name
    assert made.stat().st_size < 4 << 20, "MiB"
    assert {"occ/compiler/prebuilt/emit.bin", f"occ/compiler/prebuilt/{INDEX}"} <= set(zipfile.ZipFile(made).namelist())
    programs = environment(made, tmp_path)
    onnx.save(mlp(), str(tmp_path / "m.onnx"))
    for which in ("--ep", "--ep-ascend"):
        library = ran(programs / "occ", "config", which, where=tmp_path).strip()
        assert "/site-packages/occ/compiler/prebuilt/" in library
    assert "wrote" in ran(programs / "occ", "build", "m.onnx", "-t", "cpu", where=tmp_path)
    assert "y" in ran(programs / "occ", "run", "m.occ", where=tmp_path)
    kept = {p.suffix for p in (tmp_path / "cache" / "tool").rglob("*")}
    assert kept.isdisjoint({".bin", ".libocc", ".ort"}), kept
    register = "import sys, onnxruntime as o, occ; print(o.InferenceSession('m.onnx', providers=[occ.onnxruntime.register()]).get_providers())"
    if subprocess.run([sys.executable, "-c", "import onnxruntime"], check=False, capture_output=True).returncode == 0:
        assert "OccExecutionProvider" in ran(programs / "python", "-c", register, where=tmp_path)
    assert not (ROOT / "compiler/prebuilt" / INDEX).exists(), "the checkout is left as it was"
