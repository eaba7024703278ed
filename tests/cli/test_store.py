"""`occ cache --export` and `--import`: builds elsewhere find what is in a store, and nothing that is damaged gets in."""

from __future__ import annotations

import json
import random
import zipfile
from pathlib import Path

import pytest
from building import mlp

from occ.compiler.cache import artifact_cache
from occ.compiler.cache.cache import Cache
from occ.compiler.cache.store import export, import_
from occ.compiler.diagnostics import CompileError


@pytest.fixture
def model(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OCC_CACHE_DIR", str(tmp_path / "first"))
    path = tmp_path / "m.onnx"
    path.write_bytes(mlp().SerializeToString())
    return path


@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
def test_a_build_compiles_nothing_that_is_in_a_store(occ_cli, model, target, monkeypatch, tmp_path):
    first = json.loads(occ_cli("build", model, "-t", target, "--json", "-o", "a.occ").out)
    assert (first["compiled"], first["reused"]) == (first["kernels"], 0)
    made = json.loads(occ_cli("cache", "--export", "kernels.store", "--json").out)
    assert made["exported"] > 0
    monkeypatch.setenv("OCC_CACHE_DIR", str(tmp_path / "second"))
    taken = json.loads(occ_cli("cache", "--import", "kernels.store", "--json").out)
    assert taken["imported"] == made["exported"]
    assert taken["made_for"].startswith("occ ")
    second = json.loads(occ_cli("build", model, "-t", target, "--json", "-o", "b.occ").out)
    assert (second["compiled"], second["reused"]) == (0, first["kernels"])
    assert Path("a.occ").read_bytes() == Path("b.occ").read_bytes()


def rewritten(store: Path, change) -> Path:
    """A store with other members."""
    with zipfile.ZipFile(store) as z:
        members = change({n: z.read(n) for n in z.namelist()})
    made = store.with_name("changed.store")
    with zipfile.ZipFile(made, "w") as z:
        for name, data in members.items():
            z.writestr(name, data)
    return made


DAMAGES = {
    "a byte of an entry": lambda m: {n: b"x" + d[1:] if n.endswith(".o") else d for n, d in m.items()},
    "an entry without its digest": lambda m: {n: d for n, d in m.items() if not n.endswith(".o.sha256")},
    "a path out of the cache": lambda m: m | {"kernel/../../../evil.o": b"x"},
    "an absolute path": lambda m: m | {"/tmp/evil.o": b"x"},
    "a kind that is not shared": lambda m: m | {"artifact/ab/ab12.occ": b"x"},
    "a folder of another key": lambda m: m | {"kernel/ab/cd12.o": b"x"},
    "a name that is too long": lambda m: m | {f"kernel/ab/ab{'1' * 300}.o": b"x"},
    "another format": lambda m: m | {"store.json": b'{"format": 9}'},
    "no head": lambda m: {n: d for n, d in m.items() if n != "store.json"},
    "a head that is not an object": lambda m: m | {"store.json": b"[]"},
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_store_is_refused_whole(occ_cli, model, how, monkeypatch, tmp_path):
    occ_cli("build", model, "-t", "cpu-jit", "-o", "a.occ")
    occ_cli("cache", "--export", "kernels.store")
    bad = rewritten(Path("kernels.store"), DAMAGES[how])
    monkeypatch.setenv("OCC_CACHE_DIR", str(tmp_path / "second"))
    ran = occ_cli("cache", "--import", bad)
    assert ran.code == 2
    assert "not a store of kernels" in ran.err
    assert not list((tmp_path / "second").rglob("*.o"))
    assert not list(tmp_path.parent.rglob("evil.o"))


def test_a_store_with_any_byte_changed_is_refused_or_its_entries_are_whole(tmp_path):
    data = random.Random(0).randbytes(200) + b"text " * 200  # deflated in several kinds of blocks
    first = Cache(tmp_path / "first")
    first.put("kernel", "ab12", data, ".o")
    export(first, tmp_path / "kernels.store", "a machine")
    good = (tmp_path / "kernels.store").read_bytes()
    bad = tmp_path / "bad.store"
    taken, codes = 0, set()
    for at in range(len(good)):
        bad.write_bytes(good[:at] + bytes([good[at] ^ 0x41]) + good[at + 1 :])
        second = Cache(tmp_path / "second")
        try:
            taken += import_(second, bad).entries
        except CompileError as e:
            codes.add(e.diagnostics[0].code)
        else:
            assert second.path("kernel", "ab12", ".o").read_bytes() == data
    assert codes == {"OCC0603"}
    assert taken > 0  # times and attributes of members are covered by no digest


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_store_compressed_by_another_method_is_refused(tmp_path, method):
    bad = tmp_path / "bad.store"
    with zipfile.ZipFile(bad, "w", method) as z:
        z.writestr("store.json", '{"format": 1}')
    with pytest.raises(CompileError, match="compressed by a method"):
        import_(Cache(tmp_path / "second"), bad)


def test_what_is_no_zip_is_refused(occ_cli, model):
    assert occ_cli("cache", "--import", model).code == 2
    assert occ_cli("cache", "--import", "nowhere").code == 2
    assert occ_cli("cache", "--clear", "--export", "x").code == 2


def test_what_is_not_kept_is_said(occ_cli, model, monkeypatch):
    monkeypatch.setenv("OCC_CACHE_ARTIFACTS", "100")
    ran = occ_cli("build", model, "-t", "cpu-jit", "-o", "a.occ")
    assert "the artifact is not kept for the next build" in ran.err


def test_a_share_of_the_disk_is_kept(monkeypatch, tmp_path):
    monkeypatch.delenv("OCC_CACHE_ARTIFACTS", raising=False)
    disk = type("Usage", (), {"total": 500 << 30, "free": 100 << 30})
    monkeypatch.setattr(artifact_cache.shutil, "disk_usage", lambda _: disk)
    assert artifact_cache.limit(tmp_path / "not" / "there") == 50 << 30
    disk.total = 4 << 30
    assert artifact_cache.limit(tmp_path) == 2 << 30
