"""A machine with an Ascend device, as far as the stand-in goes."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ascend_standin import Standin, build
from simulated_device import simulate, simulate_operator

from occ.runtime.acl import process

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def _library(tmp_path_factory: pytest.TempPathFactory) -> Standin:
    if shutil.which("gcc") is None:
        pytest.skip("the stand-in for AscendCL is C and needs gcc")
    return Standin(build(tmp_path_factory.mktemp("standin")))


@pytest.fixture
def standin(_library: Standin, monkeypatch: pytest.MonkeyPatch) -> Iterator[Standin]:
    """A fresh device; at the end nothing may be left, and no rule broken."""
    monkeypatch.setenv("OCC_ASCENDCL", str(_library.path))
    _library.reset()
    _library.programs.clear()
    _library.fallback = _library.operator = None
    yield _library
    gc.collect()
    process.shutdown()
    assert _library.report == ""
    assert not _library.errors


@pytest.fixture
def standin_path(_library: Standin) -> Path:
    return _library.path


@pytest.fixture
def toolkit(standin: Standin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Standin:
    """A machine with an Ascend device, its driver and the CANN toolkit, all stand-ins."""
    atc = tmp_path / "toolkit" / "bin" / "atc"
    atc.parent.mkdir(parents=True)
    atc.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P "{HERE / "standin_atc.py"}" "$@"\n')
    atc.chmod(0o755)
    monkeypatch.setenv("PATH", f"{atc.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *sys.path]))
    monkeypatch.chdir(tmp_path)
    standin.fallback, standin.operator = simulate, simulate_operator
    return standin


@pytest.fixture
def device(toolkit: Standin) -> Iterator[Standin]:
    """A machine with two devices for the provider in onnxruntime; a test registers it."""
    import occ

    toolkit.machine("Ascend310P3", devices=2)
    yield toolkit
    gc.collect()
    occ.onnxruntime.unregister()
