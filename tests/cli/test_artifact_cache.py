"""`occ build` of what was built before: the same bytes from the cache, and a new build after every change that matters."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import mlp, reference

from occ.compiler.cache import artifact_cache
from occ.compiler.cache import file_stamps as stamps_module
from occ.compiler.cache.cache import Cache
from occ.compiler.cache.file_stamps import Stamps
from occ.compiler.cache.sources import files_of


@pytest.fixture
def model(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OCC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("OCC_CACHE_ARTIFACTS")
    path = tmp_path / "m.onnx"
    path.write_bytes(mlp().SerializeToString())
    return path


def build(occ_cli, model, *options) -> bool:
    """Build with the JIT; returns whether the artifact came from the cache."""
    ran = occ_cli("build", model, "-t", "cpu-jit", "--json", *options)
    assert ran.code == 0, ran.err
    return json.loads(ran.out)["unchanged"]


def test_an_unchanged_model_gives_the_same_bytes_and_facts(occ_cli, model, tmp_path):
    first = json.loads(occ_cli("build", model, "-t", "cpu-jit", "--json", "-o", "a.occ").out)
    second = json.loads(occ_cli("build", model, "-t", "cpu-jit", "--json", "-o", "deep/b.occ").out)
    assert (first["unchanged"], second["unchanged"]) == (False, True)
    assert Path("a.occ").read_bytes() == Path("deep/b.occ").read_bytes()
    differ = {"out", "seconds", "phases", "unchanged", "compiled", "reused"}
    assert {k: v for k, v in first.items() if k not in differ} == {k: v for k, v in second.items() if k not in differ}
    assert "nothing changed" in occ_cli("build", model, "-t", "cpu-jit").err
    assert occ_cli("run", "deep/b.occ").code == 0


@pytest.mark.thinned
@pytest.mark.parametrize(
    "options",
    [["-t", "interp"], ["--dim", "n=3"], ["-C", "deferred=off"], ["--save-stages"], ["--verify"], ["--no-cache"], ["--time-passes"], ["--dir", "-o", "folder"]],
)  # fmt: skip
def test_other_options_build_anew(occ_cli, model, options):
    assert not build(occ_cli, model)
    assert not build(occ_cli, model, *options)
    assert build(occ_cli, model)


def test_another_processor_builds_anew(occ_cli, model, monkeypatch):
    for name in ("x86-64-v2", "x86-64-v3"):
        monkeypatch.setenv("OCC_TARGET_CPU", name)
        assert not build(occ_cli, model)
        assert build(occ_cli, model)


def test_a_changed_model_builds_anew(occ_cli, model):
    assert not build(occ_cli, model)
    changed = mlp()
    weight = next(i for i in changed.graph.initializer if len(i.dims) == 2)
    weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) * 2, weight.name))
    model.write_bytes(changed.SerializeToString())
    assert not build(occ_cli, model)


def test_a_changed_file_of_an_option_builds_anew(occ_cli, model):
    Path("keep.txt").write_text("OpType::Relu\n")
    arguments = ["build", model, "-t", "ascend910b", "--dim", "n=2", "-C", "keep_dtype=keep.txt", "--json"]
    assert [json.loads(occ_cli(*arguments).out)["unchanged"] for _ in range(2)] == [False, True]
    Path("keep.txt").write_text("OpType::MatMulV2\n")
    assert not json.loads(occ_cli(*arguments).out)["unchanged"]


def test_changed_external_data_build_anew(occ_cli, model):
    message = mlp()
    onnx.save(message, model, save_as_external_data=True, location="data.bin", size_threshold=0)
    assert not build(occ_cli, model)
    assert build(occ_cli, model)
    data = bytearray(Path("data.bin").read_bytes())
    data[3] ^= 1
    Path("data.bin").write_bytes(data)
    assert not build(occ_cli, model)
    Path("data.bin").unlink()
    assert occ_cli("build", model, "-t", "cpu-jit").code == 1


def test_a_model_that_is_written_to_while_it_is_built_is_not_kept(occ_cli, model, monkeypatch, tmp_path):
    from occ.compiler.driver import compilation as driver

    load = driver.load_module

    def slow(*args, **how):
        made = load(*args, **how)
        later = time.time_ns() + 10**9
        os.utime(model, ns=(later, later))
        return made

    monkeypatch.setattr(driver, "load_module", slow)
    assert not build(occ_cli, model)
    assert not list(tmp_path.glob("cache/artifact/*/*"))


def test_rules_build_anew(occ_cli, model):
    Path("r.py").write_text(
        "import occ\n\n@occ.rewrite\ndef r(p, x):\n    return p.Relu(p.Relu(x))\n\n@r.into\ndef _(b, x):\n    return b.Relu(x)\n"
    )
    assert not build(occ_cli, model)
    assert not build(occ_cli, model, "--rules", "r.py")
    Path("pyproject.toml").write_text('[tool.occ]\nrules = ["r.py"]\n')
    assert not build(occ_cli, model)


def test_a_changed_compiler_builds_anew(occ_cli, model, monkeypatch, tmp_path):
    assert not build(occ_cli, model)
    edited = tmp_path / "edited.py"
    edited.write_text("x = 1\n")
    monkeypatch.setattr(artifact_cache, "files_of", lambda package: iter([edited]))
    assert not build(occ_cli, model)


def test_the_key_covers_every_package_and_starts_no_process():
    assert set(files_of("occ")) >= {*files_of("occ.compiler"), *files_of("occ.runtime")}
    code = """
import sys
from occ.compiler.cache.artifact_cache import _surroundings
sys.addaudithook(lambda event, args: sys.exit(f"it starts {args}") if event == "subprocess.Popen" else None)
assert any(line.startswith("artifact_cache.py: ") for line in _surroundings())
assert list(_surroundings())
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_damaged_note_is_a_miss(occ_cli, model, tmp_path):
    assert not build(occ_cli, model)
    (note,) = (tmp_path / "cache" / "artifact").glob("*/*.json")
    note.write_text("{")
    assert not build(occ_cli, model)
    assert build(occ_cli, model)


@pytest.mark.thinned
@pytest.mark.parametrize(
    "damage", [lambda data: data[:-100], lambda data: b"", lambda data: data[:99] + b"!" + data[100:]]
)
def test_a_damaged_artifact_is_built_and_kept_again(occ_cli, model, tmp_path, damage):
    assert not build(occ_cli, model)
    Path("m.occ").unlink()
    (kept,) = (tmp_path / "cache" / "artifact").glob("*/*.occ")
    whole = kept.read_bytes()
    kept.write_bytes(damage(whole))
    assert not build(occ_cli, model)
    assert kept.read_bytes() == whole
    assert build(occ_cli, model)


def test_what_was_not_used_for_longest_goes_first(occ_cli, model, monkeypatch, tmp_path):
    sizes: dict[str, int] = {}
    for n in ("1", "2", "3"):
        build(occ_cli, model, "--dim", f"n={n}", "-o", "m.occ")
        sizes[n] = Path("m.occ").stat().st_size
    assert build(occ_cli, model, "--dim", "n=1")  # used again, so 2 has not been used for longest
    monkeypatch.setenv("OCC_CACHE_ARTIFACTS", str(sum(sizes.values()) + min(sizes.values()) // 2))
    assert not build(occ_cli, model, "--dim", "n=4")
    assert not build(occ_cli, model, "--dim", "n=2")
    assert build(occ_cli, model, "--dim", "n=1")
    assert len(list((tmp_path / "cache" / "artifact").glob("*/*.json"))) == 3


@pytest.mark.parametrize(("size", "kept"), [("0", False), ("1000", False), ("100000000", True)])
def test_the_size_is_a_matter_of_the_environment(occ_cli, model, monkeypatch, size, kept):
    monkeypatch.setenv("OCC_CACHE_ARTIFACTS", size)
    build(occ_cli, model)
    assert build(occ_cli, model) == kept


def test_a_size_that_is_no_number_is_refused(occ_cli, model, monkeypatch):
    monkeypatch.setenv("OCC_CACHE_ARTIFACTS", "2GB")
    ran = occ_cli("build", model, "-t", "cpu-jit")
    assert (ran.code, "OCC_CACHE_ARTIFACTS is '2GB'" in ran.err) == (2, True)


def test_a_cache_that_cannot_be_written_is_no_error(model, monkeypatch):
    request = artifact_cache.Request(model, {}, Stamps(Cache()))
    Path("cache").write_text("a file where the folder should be")
    cache = artifact_cache.ArtifactCache(Cache())
    assert cache.find(request) is None
    Path("a.occ").write_bytes(b"x")
    cache.keep(request, Path("a.occ"), [], {})
    found = cache.find(request)  # in a folder of this process
    assert found is not None
    assert found.path.read_bytes() == b"x"
    assert Path("cache").is_file()


def test_results_of_a_kept_artifact(occ_cli, model):
    x = np.ones((5, 8), np.float32)
    np.save("x.npy", x)
    (want,) = reference(mlp(), {"x": x})
    for unchanged in (False, True):
        assert build(occ_cli, model, "-o", "m.occ") == unchanged
        assert occ_cli("run", "m.occ", "--input", "x=x.npy", "--output", "out").code == 0
        np.testing.assert_allclose(np.load("out/y.npy"), want, rtol=1e-5)


def test_an_artifact_that_is_in_place_is_left_alone(occ_cli, model):
    assert not build(occ_cli, model, "-o", "m.occ")
    first, data = Path("m.occ").stat(), Path("m.occ").read_bytes()
    assert build(occ_cli, model, "-o", "m.occ")
    assert Path("m.occ").stat().st_ino == first.st_ino
    Path("m.occ").unlink()
    assert build(occ_cli, model, "-o", "m.occ")
    assert Path("m.occ").read_bytes() == data


@pytest.mark.parametrize("links", [True, False])
def test_an_artifact_that_is_changed_in_place_is_built_again(occ_cli, model, tmp_path, monkeypatch, links):
    """An artifact and its entry in the cache are one file, or two where there are no links."""

    def refuse(source, target):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    assert not build(occ_cli, model, "-o", "m.occ")
    data = Path("m.occ").read_bytes()
    (kept,) = (tmp_path / "cache" / "artifact").glob("*/*.occ")
    assert kept.samefile("m.occ") == links
    with open("m.occ", "r+b") as f:
        f.write(b"not a zip file")
    assert build(occ_cli, model, "-o", "m.occ") != links
    assert Path("m.occ").read_bytes() == kept.read_bytes() == data


def test_a_file_is_read_again_only_if_it_may_have_changed(tmp_path, monkeypatch):
    read: list[str] = []
    digest = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda f, how: read.append(f.name) or digest(f, how))
    stamps, file = Stamps(Cache(tmp_path / "cache")), tmp_path / "m.onnx"
    file.write_bytes(b"one")
    first = stamps.digest_of(file)
    assert (stamps.digest_of(file), len(read)) == (first, 2)  # it is too young for its times to be trusted
    monkeypatch.setattr(stamps_module, "_SETTLED", -(10**9))
    assert [stamps.digest_of(file) for _ in range(3)] == [first] * 3
    assert len(read) == 3
    file.write_bytes(b"two")
    assert stamps.digest_of(file) == hashlib.sha256(b"two").hexdigest()
    file.unlink()
    with pytest.raises(FileNotFoundError):
        stamps.digest_of(file)
