"""`atc` is found and called, and its failures are reported."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import plans
import pytest
from ascend_standin import Standin

from occ.compiler.cache.cache import Cache
from occ.compiler.codegen_cann.output.toolkit import compile_parts
from occ.compiler.diagnostics import CompileError
from occ.runtime.artifact import Artifact
from occ.runtime.errors import RunError
from occ.runtime.release import is_older, read_release


def uncompiled(made: Artifact) -> Artifact:
    """An artifact of which no part is compiled, with what the script instead of atc copies as `.air`."""
    parts = [
        replace(p, om="", command=["atc", f"--model={p.name}.air", f"--output={p.name}"]) for p in made.manifest.parts
    ]
    files = {p.air: made.files[f"device/{p.name}.om"] for p in parts}
    return replace(made, manifest=replace(made.manifest, parts=parts), files=files)


def install(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch, release: str = "") -> Path:
    """Put a program `atc` in PATH, in a folder like that of a toolkit."""
    path = folder / "toolkit" / "bin" / "atc"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    if release:
        (folder / "toolkit" / "compiler").mkdir(exist_ok=True)
        (folder / "toolkit" / "compiler" / "version.info").write_text(f"Version={release}\nversion_dir=7.6.0\n")
    monkeypatch.setenv("PATH", f"{path.parent}:/bin:/usr/bin")
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    return path


COPY = 'for a; do case $a in --model=*) m=${a#*=};; --output=*) o=${a#*=};; esac; done; echo run >> "$LOG"; cp "$m" "$o.om"'


def test_parts_are_compiled_once(standin: Standin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    install(tmp_path, COPY, monkeypatch, "7.6.0.1.220")
    made, cache = uncompiled(plans.chain(standin)), Cache(tmp_path / "cache")
    for _ in range(2):
        compiled = compile_parts(made, cache, 2)
    assert (tmp_path / "log").read_text().count("run") == 3
    assert [(p.om, p.toolkit) for p in compiled.manifest.parts] == [
        (f"device/p{k}.om", "7.6.0.1.220") for k in range(3)
    ]
    plans.session(compiled).close()


def test_names_that_atc_changes(standin: Standin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOG", "/dev/null")
    install(tmp_path, COPY.replace("$o.om", "${o}_linux_x86_64.om"), monkeypatch)
    compiled = compile_parts(uncompiled(plans.chain(standin, 1)), Cache(tmp_path / "cache"))
    plans.session(compiled).close()


def test_the_toolkit_under_ascend_home_path(standin: Standin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOG", "/dev/null")
    path = install(tmp_path, COPY, monkeypatch)
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(path.parents[1]))
    assert compile_parts(uncompiled(plans.chain(standin, 1)), Cache(tmp_path / "cache")).manifest.parts[0].om


def test_no_atc(standin: Standin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "", monkeypatch).unlink()
    with pytest.raises(CompileError, match="`atc`, the compiler of the CANN toolkit, is not in PATH") as e:
        compile_parts(uncompiled(plans.chain(standin)), Cache(tmp_path / "cache"))
    assert (e.value.exit_code, e.value.diagnostics[0].code) == (4, "OCC0404")
    assert "set_env.sh" in e.value.diagnostics[0].helps[0]


@pytest.mark.parametrize("script", ["echo 'ATC run failed'; echo 'E19010: no parser is registered'; exit 1", "exit 0"])
def test_atc_fails(standin: Standin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    install(tmp_path, script, monkeypatch)
    with pytest.raises(CompileError, match=r"`atc` failed on part `p0` with exit code [01]") as e:
        compile_parts(uncompiled(plans.chain(standin, 1)), Cache(tmp_path / "cache"))
    assert (e.value.exit_code, e.value.diagnostics[0].code) == (4, "OCC0405")
    if "E19010" in script:
        assert e.value.diagnostics[0].notes[0] == "E19010: no parser is registered"
    assert not os.listdir(tmp_path / "cache" / "tmp")


def test_a_part_that_is_not_compiled(standin: Standin) -> None:
    with pytest.raises(RunError, match="GE graph IR that is not compiled for the device yet") as e:
        plans.session(uncompiled(plans.chain(standin)))
    assert e.value.code == "OCC0502"


def test_a_part_that_the_script_of_the_artifact_compiled(standin: Standin) -> None:
    made = plans.chain(standin, 1)
    parts = [replace(p, om="") for p in made.manifest.parts]
    plans.session(replace(made, manifest=replace(made.manifest, parts=parts))).close()


@pytest.mark.parametrize(
    ("installed", "fits"), [("7.5.0.9", False), ("7.6.0.1.220", True), ("7.10.0.1", True), ("", True)]
)
def test_release(standin: Standin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: str, fits: bool) -> None:
    home = tmp_path / "cann"
    (home / "lib64").mkdir(parents=True)
    (home / "runtime").mkdir()
    os.link(standin.path, home / "lib64" / "libascendcl.so")  # the same file, so the same library to the loader
    if installed:
        (home / "runtime" / "version.info").write_text(f"Version={installed}\n")
    monkeypatch.delenv("OCC_ASCENDCL")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(home))
    made = plans.chain(standin, 1)
    made = replace(
        made, manifest=replace(made.manifest, parts=[replace(made.manifest.parts[0], toolkit="7.6.0.1.220")])
    )
    if fits:
        plans.session(made).close()
    else:
        with pytest.raises(RunError, match=r"by CANN 7\.6\.0\.1\.220, this machine has CANN 7\.5\.0\.9") as e:
            plans.session(made)
        assert e.value.code == "OCC0510"


def test_releases_are_compared_by_number(tmp_path: Path) -> None:
    assert is_older("7.6.0", "7.10.0")
    assert not is_older("8.0", "7.10.0")
    assert not is_older("", "7.10.0")
    assert read_release(tmp_path / "bin" / "atc", "compiler") == ""
