"""Artifacts: they read back as written, equal builds produce equal bytes, and damage is one clear error."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tracemalloc
import zipfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from building import mlp, model_of, reference

import occ
from occ.compiler.driver.sessions import open_session
from occ.runtime.artifact import Artifact
from occ.runtime.buffers import ALIGNMENT
from occ.runtime.dims import evaluate
from occ.runtime.errors import RunError
from occ.runtime.manifest import Buffer, Function, Manifest, Plan, Specialisation, Storage, TensorInfo, WeightInfo
from occ.runtime.members import LIBRARY, MANIFEST, WEIGHTS

X = np.random.default_rng(1).standard_normal((3, 8), dtype=np.float32)


@pytest.fixture(scope="module")
def built() -> Artifact:
    return occ.build(mlp(), "cpu-jit")


@pytest.fixture(params=["zip", "folder"])
def saved(request, built, tmp_path) -> Path:
    return built.save(tmp_path / "m.occ", folder=request.param == "folder")


def members(path: Path) -> dict[str, bytes]:
    if path.is_dir():
        return {p.relative_to(path).as_posix(): p.read_bytes() for p in path.rglob("*") if p.is_file()}
    with zipfile.ZipFile(path) as z:
        return {n: z.read(n) for n in z.namelist()}


def rewrite(path: Path, change) -> None:
    """Write an artifact again with its members changed by `change(members)`."""
    found = members(path)
    change(found)
    if path.is_dir():
        for old in [p for p in path.rglob("*") if p.is_file()]:
            old.unlink()
        for name, data in found.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(data)
        return
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as z:
        for name, data in found.items():
            z.writestr(name, data)


def error_of(path: Path) -> occ.RunError:
    with pytest.raises(occ.RunError) as caught:
        Artifact.load(path).verify()
    assert caught.value.code == "OCC0502"
    assert str(path) in str(caught.value) or "artifact" in str(caught.value) or "manifest" in str(caught.value)
    return caught.value


def test_a_saved_artifact_runs(saved):
    (want,) = reference(mlp(), {"x": X})
    np.testing.assert_allclose(occ.load(saved)(X)[0], want, rtol=1e-5, atol=1e-6)


def test_zip_and_folder_have_the_same_members(built, tmp_path):
    a = members(built.save(tmp_path / "a.occ"))
    b = members(built.save(tmp_path / "b.occ", folder=True))
    assert a == b
    assert {MANIFEST, WEIGHTS, LIBRARY} <= set(a)


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["interp", "cpu-jit", "cpu"])
def test_equal_builds_give_equal_bytes(target, tmp_path):
    a, b = (occ.build(mlp(), target, tmp_path / f"{k}.occ").save(tmp_path / f"{k}.occ") for k in "ab")
    assert a.read_bytes() == b.read_bytes()


def test_weights_are_aligned_in_the_file_and_mapped(built, tmp_path):
    path = built.save(tmp_path / "m.occ")
    loaded = Artifact.load(path)
    for w in loaded.weights:
        assert w.ctypes.data % ALIGNMENT == 0
        assert not w.flags.writeable
        assert not w.flags.owndata


def test_every_member_is_stored_plain(built, tmp_path):
    with zipfile.ZipFile(built.save(tmp_path / "m.occ")) as z:
        assert all(i.compress_type == zipfile.ZIP_STORED for i in z.infolist())
        assert z.testzip() is None


def test_loading_and_saving_again_gives_the_same_bytes(saved, tmp_path):
    again = Artifact.load(saved).save(tmp_path / "again.occ", folder=saved.is_dir())
    assert members(again) == members(saved)


def test_saving_over_an_artifact_replaces_it(saved):
    other = occ.build(mlp(7), "cpu-jit")
    before = members(saved)
    other.save(saved, folder=saved.is_dir())
    assert members(saved) != before
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]


def test_a_folder_that_is_no_artifact_is_not_replaced(built, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("x")
    with pytest.raises(FileExistsError):
        built.save(tmp_path / "home", folder=True)
    assert (tmp_path / "home" / "thesis.txt").read_text() == "x"
    assert [p.name for p in tmp_path.iterdir()] == ["home"]


def test_a_failure_while_writing_leaves_nothing(built, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    for folder in (False, True):
        with pytest.raises(OSError, match="No space"):
            built.save(tmp_path / "m.occ", folder=folder)
    assert list(tmp_path.iterdir()) == []


def test_an_artifact_is_readable_by_others(built, tmp_path):
    path = built.save(tmp_path / "m.occ")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_members_that_no_run_needs_are_read_when_they_are_asked_for(built, tmp_path):
    files = {**built.files, "src/long.txt": bytes(8 << 20)}
    path = replace(built, files=files).save(tmp_path / "m.occ")
    tracemalloc.start()
    loaded = Artifact.load(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2 << 20
    path.unlink()
    assert loaded.files == files


def test_the_digest_of_what_code_was_made_for_is_that_of_its_text():
    """Part by part it is the same: artifacts of earlier builds know the digest of the whole."""
    plan = Plan([Buffer("f32", [k, "n"], k) for k in range(200)], [Storage("arena")] * 64, [], [], [])
    names = ("inputs", "outputs", "dims", "constraints", "weights", "plan", "functions")
    m = Manifest("m", "cpu", "", [], [TensorInfo('ä"', "f32", [1])], [], [], [WeightInfo("w", 0, 4)] * 65, plan)
    m = replace(m, functions={"b": Function([], [], plan), "a": Function([], [], plan)})
    for made in (m, replace(m, special=[Specialisation([], [], [], [], plan)] * 70)):
        whole = {n: v for n, v in asdict(made).items() if n in names or (n == "special" and v)}
        text = json.dumps(whole, separators=(",", ":"), sort_keys=True)
        assert made.code_digest == hashlib.sha256(text.encode()).hexdigest()


# damage


def test_a_missing_artifact(tmp_path):
    assert "does not exist" in error_of(tmp_path / "no.occ").message


def test_a_file_that_is_no_zip(tmp_path):
    path = tmp_path / "m.occ"
    path.write_bytes(b"not a zip")
    assert "is not an artifact" in error_of(path).message


def test_a_truncated_zip(built, tmp_path):
    path = built.save(tmp_path / "m.occ")
    data = path.read_bytes()
    for size in (0, 10, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        error_of(path)


@pytest.mark.parametrize("name", [MANIFEST, WEIGHTS, LIBRARY])
def test_a_missing_member(saved, name):
    rewrite(saved, lambda m: m.pop(name))
    assert name in error_of(saved).message


def test_cut_off_weights(saved):
    rewrite(saved, lambda m: m.update({WEIGHTS: m[WEIGHTS][:-4]}))
    assert WEIGHTS in error_of(saved).message


@pytest.mark.parametrize("name", [WEIGHTS, LIBRARY])
def test_a_member_that_was_changed_does_not_have_its_digest(saved, name):
    def flip(m):
        data = bytearray(m[name])
        data[len(data) // 2] ^= 0xFF
        m[name] = bytes(data)

    rewrite(saved, flip)
    assert name in error_of(saved).message


def edited(**changes):
    def change(m):
        m[MANIFEST] = json.dumps(json.loads(m[MANIFEST]) | changes).encode()

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edited(format=99), "format 99"),
        (edited(format=None), "format None"),
        (edited(unheard_of=1), "unheard_of"),
        (edited(plan=[]), "Plan is not an object"),
        (edited(weights=[{"name": "w", "offset": -64, "nbytes": 4}]), "a weight is outside"),
        (lambda m: m.update({MANIFEST: b"[]"}), "manifest"),
        (lambda m: m.update({MANIFEST: b"\xff{"}), "manifest"),
        (lambda m: m.update({MANIFEST: b"{"}), "manifest"),
    ],
)
def test_a_manifest_that_cannot_be_used(saved, change, message):
    rewrite(saved, change)
    assert message in error_of(saved).message


@pytest.mark.parametrize("index", ["buffers", "storages", "reads"])
def test_a_plan_that_points_outside_of_itself(saved, index):
    def change(m):
        record = json.loads(m[MANIFEST])
        plan = record["plan"]
        if index == "buffers":
            plan["outputs"] = [999]
        elif index == "storages":
            plan["buffers"][0]["storage"] = 999
        else:
            plan["steps"][0]["reads"] = [999]
        m[MANIFEST] = json.dumps(record).encode()

    rewrite(saved, change)
    error_of(saved)


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "src/../../evil", "a\\..\\evil", "C:evil"])
def test_a_member_path_that_leaves_the_artifact_is_refused(built, tmp_path, name):
    path = built.save(tmp_path / "m.occ")
    rewrite(path, lambda m: m.update({name: b"evil"}))
    assert "path" in error_of(path).message
    assert [p.name for p in tmp_path.iterdir()] == ["m.occ"]


def test_a_folder_member_that_is_a_link_to_outside_is_refused(built, tmp_path):
    path = built.save(tmp_path / "m.occ", folder=True)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (path / "src").mkdir(exist_ok=True)
    (path / "src" / "link").symlink_to(secret)
    assert "path" in error_of(path).message


STEP = {"kind": "copy", "name": "copy", "reads": [0], "writes": [0]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, ""),
        ({"nodes": ["n"]}, ""),
        ({"kind": "kernel", "tasks": 4, "dims": [1], "operations": 9}, ""),
        ({"kind": "teleport"}, "there are no steps of kind 'teleport'"),
        ({"attrs": {"stream": 1}}, "a step of kind 'copy' has no attrs"),
        ({"kind": "foreign", "binds": [[0, 0, "n"]]}, "a step of kind 'foreign' has no binds"),
        ({"kind": "host", "tasks": 4}, "a step of kind 'host' has no tasks"),
    ],
)
def test_steps_have_what_their_kind_has(change, said):
    record = json.loads(occ.build(mlp(), "interp").manifest.to_json())
    buffer = {"dtype": "f32", "shape": [1], "storage": 0}
    record["plan"] |= {"steps": [STEP | change], "storages": [{"kind": "arena"}], "buffers": [buffer]}
    record["plan"] |= {"inputs": [0], "outputs": [0]}
    record |= {"engine": "native", "library": LIBRARY}
    if not said:
        assert len(Manifest.from_json(json.dumps(record)).plan.steps) == 1
        return
    with pytest.raises(RunError, match=said):
        Manifest.from_json(json.dumps(record))


def test_a_size_that_nothing_gives_is_an_error():
    artifact = occ.build(model_of("g (float[n] x) => (float[k] y) { y = Unique(x) }"), "cpu-jit")
    record = json.loads(artifact.manifest.to_json())
    (buffer,) = [b for b in record["plan"]["buffers"] if b["storage"] == 0]
    buffer["shape"] = ["ghost"]
    artifact.manifest = Manifest.from_json(json.dumps(record))
    with pytest.raises(RunError, match="the manifest does not match the code"):
        open_session(artifact, 1)
    with pytest.raises(RunError, match="the size `ghost` is not defined"):
        evaluate("ghost", {"n": 3})
