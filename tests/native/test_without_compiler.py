"""`-t cpu` without a C++ compiler: kernels of a store, linked by `objects/elf`."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from building import model_of
from click.testing import CliRunner

import occ
from occ.cli import cli
from occ.compiler.codegen_halide.toolchain import toolchain
from occ.compiler.driver.settings import Settings
from occ.compiler.tuning.common_nets import common_nets
from occ.compiler.tuning.warm import warm

pytestmark = pytest.mark.toolchain

RNG = np.random.default_rng(3)
WEIGHT = RNG.standard_normal((32, 16, 3, 3), np.float32)
NET = model_of(
    """g (float[n, 16, 24, 24] x) => (float[n, 32, 24, 24] y, float[n, 32, 24, 24] z) {
  a = Conv <pads = [1, 1, 1, 1]> (x, w)
  y = Tanh(a)
  z = Softmax <axis = 1> (a)
}""",
    {"w": WEIGHT},
)
OTHER = model_of("g (float[3, 5] x) => (float[3, 5] y) { y = Selu(x) }")


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine that has no C++ compiler."""
    toolchain.cache_clear()
    monkeypatch.delenv("OCC_CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    yield
    toolchain.cache_clear()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A store with the kernels of one model; the build cache has only these."""
    monkeypatch.setenv("OCC_CACHE_DIR", str(tmp_path / "first"))
    occ.build(NET, "cpu", tmp_path / "first.occ")
    made = tmp_path / "kernels.store"
    _run("cache", "--export", str(made))
    monkeypatch.setenv("OCC_CACHE_DIR", str(tmp_path / "second"))
    _run("cache", "--import", str(made))
    return made


def _run(*words: str) -> str:
    done = CliRunner().invoke(cli, list(words), standalone_mode=False)
    assert done.exception is None, done.output
    return done.output


def test_a_store_has_what_a_build_needs(store: Path, no_compiler: None, tmp_path: Path) -> None:
    path = tmp_path / "second.occ"
    occ.build(NET, "cpu", path)
    x = RNG.standard_normal((3, 16, 24, 24), np.float32)
    want = occ.compile(NET, "interp").run({"x": x})
    linked = occ.load(tmp_path / "first.occ").run({"x": x})  # by a real linker
    for threads in (1, 2):
        got = occ.load(path, threads=threads).run({"x": x})
        for name, value in want.items():
            np.testing.assert_array_equal(got[name], linked[name], strict=True)
            np.testing.assert_allclose(got[name], value, rtol=1e-3, atol=1e-4)


def test_doctor_tries_kernels_that_every_store_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("OCC_CACHE_DIR", str(tmp_path / "cache"))
    warm([next(common_nets())], Settings("cpu"))
    request.getfixturevalue("no_compiler")
    assert re.search("trial cpu +ok", _run("doctor"))


def test_kernels_that_are_missing_are_counted(store: Path, no_compiler: None) -> None:
    with pytest.raises(occ.CompileError, match=r"OCC0401.*1 of 1 kernels are not in the build cache(?s:.)*--import"):
        occ.build(OTHER, "cpu")


def test_errors_of_kernels_name_their_node(store: Path, no_compiler: None) -> None:
    """What goes wrong in a run comes back through the runtime of the library, by longjmp and thread-local text."""
    session = occ.compile(NET, "cpu")
    with pytest.raises(occ.RunError, match="OCC0501"):
        session.run({"x": np.zeros((1, 3, 24, 24), np.float32)})
    assert session.run({"x": np.zeros((2, 16, 24, 24), np.float32)})["y"].shape == (2, 32, 24, 24)


def test_a_process_forks_after_the_library_is_closed(store: Path, no_compiler: None, tmp_path: Path) -> None:
    """The runtime in it has registered its fork handlers with the C library."""
    path = tmp_path / "second.occ"
    occ.build(NET, "cpu", path)
    code = (
        "import gc, os, sys, numpy as np, occ\n"
        f"s = occ.load({str(path)!r}, threads=2)\n"
        "s.run({'x': np.zeros((2, 16, 24, 24), np.float32)})\n"
        "del s; gc.collect()\n"
        "child = os.fork()\n"
        "if not child: os._exit(7)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 7
