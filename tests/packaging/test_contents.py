"""What is installed is whole: every folder, every file that is not Python, one version."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest
from building import mlp

import occ
from occ.compiler.cache.sources import files_of

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PROJECT["tool"]["setuptools"]
ROOTS = {"occ": "occ", "compiler": "occ.compiler", "runtime": "occ.runtime"}  # folder -> name of the package


def sources() -> dict[Path, str]:
    """The files of the packages, and the package that each belongs to."""
    listed = subprocess.run(["git", "ls-files", *ROOTS], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("the files of a checkout are listed by git")
    found = {}
    for path in map(Path, listed.stdout.split()):
        top, *inner = path.parent.parts
        found[path] = ".".join([ROOTS[top], *inner])
    return found


def test_the_list_of_packages_has_every_folder():
    assert set(SETUPTOOLS["packages"]) == set(sources().values())


def test_every_file_that_is_not_python_is_package_data():
    data = SETUPTOOLS["package-data"]
    others = {path: package for path, package in sources().items() if path.suffix != ".py"}
    assert others
    assert [str(p) for p, package in others.items() if not any(fnmatch(p.name, g) for g in data.get(package, ()))] == []


def test_the_version_is_stated_once():
    assert occ.__version__ == PROJECT["project"]["version"]
    assert "__version__" in dir(occ)


# with numpy alone

ALONE = """
import sys
class Refuse:
    def find_spec(self, name, *_):
        if name.split(".")[0] in {"onnx", "google", "llvmlite", "lark", "halide", "click", "rich", "ml_dtypes"}:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
sys.meta_path.insert(0, Refuse())
import numpy as np, occ
try:
    print(float(occ.load(sys.argv[1])(np.full((1, 8), 0.5, np.float32))[0].sum()))
except occ.RunError as e:
    print(e)
"""


def alone(artifact: Path) -> str:
    """What an artifact gives, or is refused for, where only numpy is installed."""
    done = subprocess.run([sys.executable, "-c", ALONE, artifact], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_numpy_is_enough_to_load_and_run_an_artifact(tmp_path: Path):
    occ.build(mlp(), "cpu-jit", tmp_path / "m.occ")
    expected = float(occ.load(tmp_path / "m.occ")(np.full((1, 8), 0.5, np.float32))[0].sum())
    assert float(alone(tmp_path / "m.occ")) == pytest.approx(expected, rel=1e-6)


def test_an_artifact_that_is_interpreted_says_what_it_lacks(tmp_path: Path):
    occ.build(mlp(), "interp", tmp_path / "m.occ")
    said = alone(tmp_path / "m.occ")
    assert "OCC0502" in said
    assert "needs the compiler" in said
    assert "is not installed" in said


def test_keys_of_the_cache_look_at_the_compiler_alone():
    """`occ.__path__` leads to all of a checkout, whose tests and builds change while a program runs."""
    found = {f.parent for p in ("occ", "occ.compiler", "occ.runtime") for f in files_of(p)}
    roots = {ROOT / "occ", ROOT / "compiler", ROOT / "runtime"}
    assert {f for f in found if not roots & {f, *f.parents}} == set()
    assert found >= roots
