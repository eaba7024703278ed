"""Whatever is damaged in the build cache is made again: a build never fails, and never gives what does not load."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from building import mlp

import occ
from occ.compiler.cache.cache import cache_dir

pytestmark = pytest.mark.toolchain

X = np.full((3, 8), 0.5, np.float32)


@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda data: b"\0" * len(data)], ids=["cut", "zeros"]
)
def test_damaged_entries_are_made_again(damage, tmp_path: Path, monkeypatch):
    occ.build(mlp(), "cpu")  # so that the programs are there, which take long
    shutil.copytree(cache_dir() / "tool", tmp_path / "tool", ignore=shutil.ignore_patterns("*.libocc*"))
    monkeypatch.setenv("OCC_CACHE_DIR", str(tmp_path))
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
