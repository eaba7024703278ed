"""What is installed is whole: every folder, every file that is not Python, one version."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from building import mlp

import occ
from occ.compiler.cache.sources import files_of

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_compiler_and_the_runtime_are_links_in_a_checkout():
    """What makes `occ.compiler` of the folder `compiler`; a checkout without links is refused here and not by a riddle."""
    for name in ("compiler", "runtime"):
        assert (ROOT / "occ" / name).resolve() == ROOT / name, (
            f"`occ/{name}` is not a link to `{name}`: git config core.symlinks true"
        )


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
    """The outputs or the error of an artifact where only numpy is installed."""
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


def test_keys_of_the_cache_look_at_all_of_the_compiler():
    found = {f.parent.relative_to(ROOT / "occ").parts[:1] for f in files_of("occ")}
    assert found >= {(), ("compiler",), ("runtime",), ("cli",)}
    assert ("tests",) not in found
