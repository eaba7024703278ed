"""Wheel and sdist, built without a warning, work in an empty environment far from the checkout."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import onnx
import pytest
from building import mlp

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

RUN = """
import sys, numpy as np, occ
assert not occ.__file__.startswith(sys.argv[2]), occ.__file__
x = np.full((3, 8), 0.5, np.float32)
want = occ.compile(sys.argv[1], "interp")(x)[0]
occ.build(sys.argv[1], "cpu-jit", "m.occ")
np.testing.assert_allclose(occ.load("m.occ")(x)[0], want, rtol=1e-5)
print(occ.__version__)
"""


def ran(*command: object, where: Path) -> str:
    """What a command prints; Python finds nothing but what is installed."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "OCC_"))}
    env["OCC_CACHE_DIR"] = str(where / "cache")
    done = subprocess.run(list(map(str, command)), cwd=where, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what git tracks: a build leaves files where it runs."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("the files of a checkout are listed by git")
    copied = tmp_path_factory.mktemp("sources")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file() or (ROOT / name).is_symlink():
            (copied / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copied / name, follow_symlinks=False)
    return copied


def members(sources: Path) -> set[str]:
    """The files of the packages under the names that they are imported by."""
    listed = (f.relative_to(sources) for top in ("occ", "compiler", "runtime") for f in (sources / top).rglob("*"))
    return {str(f if f.parts[0] == "occ" else "occ" / f) for f in listed if (sources / f).is_file()}


def built(sources: Path, kind: str, folder: Path) -> Path:
    """A distribution, made by the backend itself, which needs no network."""
    code = f"import setuptools.build_meta as b; print(b.build_{kind}({str(folder)!r}))"
    said = ran(sys.executable, "-W", "error", "-c", code, where=sources)
    assert "Warning" not in said, said
    assert "deprecated" not in said.lower(), said
    (made,) = [p for p in folder.iterdir() if p.suffix in (".whl", ".gz")]
    return made


def environment(made: Path, where: Path) -> Path:
    """The folder of the programs of an empty environment in which a distribution is installed.

    The libraries are those of this environment: installing them again takes minutes and a network.
    """
    ran(sys.executable, "-m", "venv", "--without-pip", "new", where=where)
    site = next((where / "new").glob("lib/python*/site-packages"))
    libraries = Path(onnx.__file__).parents[1]
    for entry in libraries.iterdir():
        if not entry.name.startswith(("occ", "__editable__")) and entry.suffix != ".pth":
            (site / entry.name).symlink_to(entry)
    python = where / "new" / "bin" / "python"
    ran(python, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index", made, where=where)
    return python.parent


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_a_distribution_works_in_an_empty_environment(kind: str, sources: Path, tmp_path: Path):
    made = built(sources, kind, tmp_path)
    if kind == "wheel":
        names = zipfile.ZipFile(made).namelist()
        assert "occ/py.typed" in names
        assert {n for n in names if ".dist-info/" not in n} == members(sources), "every file of a package, and no other"
    new = environment(made, tmp_path)
    onnx.save(mlp(), str(tmp_path / "m.onnx"))
    ran(new / "python", "-I", "-c", RUN, "m.onnx", ROOT, where=tmp_path)
    assert "wrote" in ran(new / "occ", "build", "m.onnx", "-t", "cpu", where=tmp_path)
    assert "y" in ran(new / "occ", "run", "m.occ", where=tmp_path)


def test_the_commands_of_the_readme_work_word_for_word(sources: Path, tmp_path: Path):
    programs = environment(built(sources, "wheel", tmp_path), tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    text = (ROOT / "README.md").read_text()
    first, use = (part.split("\n## ")[0] for part in text.split("\n## A first result")[1].split("\n## Use"))
    blocks = [b for part in (first, use) for b in re.findall(r"^```\n(.*?)^```$", part, re.M | re.S)]
    lines = [line.split("  #")[0] for b in blocks for line in b.splitlines() if line.startswith("occ ")]
    assert len(lines) == 8
    said = [ran(programs / "occ", *shlex.split(line)[1:], where=tmp_path) for line in lines]
    shown = re.search(r"^digit: .*\n.*$", text, re.M)
    assert shown is not None
    assert re.sub(r"min \S+", "", shown[0]) in re.sub(r"min \S+", "", said[0]), (
        "what the README shows is what is printed"
    )
    (code,) = re.findall(r"^```python\n(.*?)^```$", use, re.M | re.S)
    ran(programs / "python", "-I", "-c", code, where=tmp_path)
    ran(programs / "python", "-c", code, where=sources)  # where whoever follows the README is
