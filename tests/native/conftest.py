"""What tests of native code share: artifacts that are built once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnxifi_api import graph
from onnxifi_parts import KEEP
from onnxifi_samples import RELU

import occ


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
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)
