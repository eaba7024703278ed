"""What tests of native code share: artifacts that are built once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from building import mlp
from onnxifi_api import graph
from onnxifi_parts import KEEP
from onnxifi_samples import RELU

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


@pytest.fixture(scope="module")
def keep_artifacts() -> Iterator[None]:
    """The cache of artifacts, which other tests do without."""
    with pytest.MonkeyPatch.context() as m:
        for name, value in KEEP.items():
            m.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def relu(keep_artifacts: None) -> int:
    """The handle of a graph of one Relu."""
    return graph(RELU)


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


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)
