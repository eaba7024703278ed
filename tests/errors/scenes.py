"""Where a diagnostic code is brought about: a folder, a command, and the table of the cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import model_of

CASES: dict[str, Callable[[Scene], list[str]]] = {}
RELU = "g (float[n, 2] x) => (float[n, 2] y) { y = Relu(x) }"


@dataclass
class Scene:
    """Where a case plays."""

    folder: Path
    patch: pytest.MonkeyPatch

    def model(self, text: str, weights: dict[str, np.ndarray] | None = None, **how: int) -> str:
        """The path of a model with the given graph."""
        return self.save(model_of(text, weights, **how))

    def save(self, model: onnx.ModelProto) -> str:
        path = self.folder / "model.onnx"
        path.write_bytes(model.SerializeToString())
        return str(path)

    def text(self, text: str) -> str:
        path = self.folder / "model.occ"
        path.write_text(text)
        return str(path)

    def array(self, name: str, value: np.ndarray) -> str:
        np.save(self.folder / f"{name}.npy", value)
        return f"--input={name}={self.folder / name}.npy"


def case(code: str):
    """Enter a function of a scene, which returns the arguments of a command, as the case of a code."""

    def add(fn: Callable[[Scene], list[str]]) -> None:
        assert code not in CASES
        CASES[code] = fn

    return add
