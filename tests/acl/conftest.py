"""A machine with an Ascend device, as far as the stand-in goes."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from ascend_standin import Standin, build

from occ.runtime.acl import process


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
