"""Code for machines without a compiler of Debian: through Zig's, and kernels for Windows and macOS, which are linked there."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arm_program import ARM, PROGRAM, check_program
from building import mlp, reference

import occ
from occ.compiler.cache.cache import Cache
from occ.compiler.codegen_halide.toolchain import cross_compiler, toolchain
from occ.compiler.standalone.emulated import Emulated, missing

pytestmark = [
    pytest.mark.toolchain,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the tests build on x86-64 for another machine"),
]
NM = shutil.which("llvm-nm") or next((str(p) for p in sorted(Path("/usr/lib").glob("llvm-*/bin/llvm-nm"))), None)


@pytest.fixture
def zig(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's cross compiler is not there."""
    if find_spec("ziglang") is None:
        pytest.skip("pip install ziglang")
    which = shutil.which
    monkeypatch.setattr(
        shutil, "which", lambda name, *a, **k: None if name == f"{ARM.gnu}-g++" else which(name, *a, **k)
    )
    if lacks := missing(ARM):
        pytest.skip(f"apt install {lacks}")
    found = cross_compiler(ARM)
    assert found is not None
    assert "ziglang" in found.command


@pytest.mark.slow
@pytest.mark.usefixtures("zig")
def test_zig_makes_artifacts():
    x = np.random.default_rng(0).standard_normal((3, 8), np.float32)
    got = Emulated(occ.build(mlp(), "cpu", options={"halide.target": ARM.target}), Cache()).run({"x": x})
    np.testing.assert_allclose(next(iter(got.values())), reference(mlp(), {"x": x})[0], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("zig")
def test_zig_links_programs(occ_cli: Any, tmp_path: Path):
    (tmp_path / "mlp.onnx").write_bytes(mlp().SerializeToString())
    (tmp_path / "main.c").write_text(PROGRAM)
    out = tmp_path / "out"
    out.mkdir()
    ran = occ_cli("build", tmp_path / "mlp.onnx", "--target-cpu", "cortex-a72", "--emit", "static", "-o", out, "--json")
    assert ran.code == 0, ran.err
    command = json.loads(ran.out)["link"].split()
    assert command[:4] == ["python", "-m", "ziglang", "cc"]
    subprocess.run([sys.executable, *command[1:], "-o", "main"], check=True, cwd=tmp_path)
    check_program(tmp_path / "main", out / "mlp.weights")


@pytest.mark.slow  # Halide.h takes seconds
@pytest.mark.skipif(shutil.which("clang++") is None, reason="apt install clang")
def test_clang_compiles_kernels(monkeypatch: pytest.MonkeyPatch):
    """Constants of a header that g++ keeps to each object are defined twice for clang, unless they are inline."""
    monkeypatch.setenv("OCC_CXX", "clang++")
    toolchain.cache_clear()
    try:
        x = np.random.default_rng(0).standard_normal((3, 8), np.float32)
        got = occ.compile(mlp(), "cpu").run({"x": x})
    finally:
        toolchain.cache_clear()
    np.testing.assert_allclose(next(iter(got.values())), reference(mlp(), {"x": x})[0], rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(NM is None, reason="apt install llvm")
@pytest.mark.parametrize(
    ("target", "kind", "prefix"),
    [("x86-64-windows", "coff-x86-64", ""), ("arm-64-windows", "coff-arm64", ""), ("arm-64-osx", "mach-o arm64", "_")],
)
def test_kernels_for_windows_and_macos(target: str, kind: str, prefix: str, occ_cli: Any, tmp_path: Path):
    """Objects of the format of the system, with the functions that the header declares; they call no runtime of Halide's."""
    (tmp_path / "mlp.onnx").write_bytes(mlp().SerializeToString())
    build = ("build", tmp_path / "mlp.onnx", "-C", f"halide.target={target}")
    ran = occ_cli(*build, "--emit", "object", "-o", tmp_path / "out")
    assert ran.code == 0, ran.err
    header = (tmp_path / "out/kernels.h").read_text()
    objects = sorted((tmp_path / "out").glob("*.o"))
    assert len(objects) == 2
    for path in objects:
        shown = subprocess.run([str(NM), "--format=posix", str(path)], capture_output=True, text=True, check=True)
        symbols = {tuple(line.split()[:2]) for line in shown.stdout.splitlines()}
        assert f"int {path.stem}(" in header
        assert {(f"{prefix}{path.stem}", "T"), (f"{prefix}{path.stem}_argv", "T")} <= symbols
        read = subprocess.run(
            [f"{str(NM)[:-2]}readobj", "--file-headers", str(path)], capture_output=True, text=True, check=True
        )
        assert f"Format: {kind}".lower() in read.stdout.lower()
    ran = occ_cli(*build, "-o", tmp_path / "m.occ")
    assert ran.code == 2
    assert "OCC0603" in ran.err
    assert "`--emit object`" in ran.err
