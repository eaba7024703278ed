"""What tests of native code share: artifacts that are built once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from building import mlp

import occ
from occ.compiler.cache.cache import cache_dir


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Paths of artifacts, by model and target."""
    folder, made = tmp_path_factory.mktemp("artifacts"), dict[Any, Path]()

    def build(model: onnx.ModelProto, target: str = "cpu-jit", as_folder: bool = False) -> Path:
        key = (model.SerializeToString(), target, as_folder)
        if key not in made:
            made[key] = folder / f"{len(made)}.occ"
            occ.build(model, target, out=str(made[key]), folder=as_folder)
        return made[key]

    return build


@pytest.fixture
def tools_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """`tools_only(NAME)` makes a build cache the current one that has nothing but the programs, which take long."""
    occ.build(mlp(), "cpu")
    tools = cache_dir() / "tool"

    def begin(name: str) -> Path:
        shutil.copytree(tools, tmp_path / name / "tool", ignore=_of_models)
        monkeypatch.setenv("OCC_CACHE_DIR", str(tmp_path / name))
        return tmp_path / name

    return begin


def _of_models(_: str, names: list[str]) -> list[str]:
    """Native entries, which have a text each, and installed runtimes."""
    entries = {n.removesuffix(".ll") for n in names if n.endswith(".ll")}
    return [n for n in names if n.partition(".")[0] in entries or ".libocc" in n]
