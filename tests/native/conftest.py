"""What tests of native code share: artifacts that are built once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

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
