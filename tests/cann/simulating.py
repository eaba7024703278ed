"""Builds models for Ascend and runs them on the simulator."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.driver.sessions import open_session
from occ.runtime.artifact import Artifact

TARGET = "ascend910b"  # the chip whose matrix unit has fp32, so that results are exact


def built(model: onnx.ModelProto, target: str = TARGET, **options: str) -> Artifact:
    """The artifact of a model; CPU parts go through LLVM, so that no C++ compiler is needed."""
    return Compilation(model, Settings(target, options={"cpu_fallback": "cpu-jit", **options})).artifact()


def simulated(artifact: Artifact, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return list(open_session(artifact, 1, simulate=True).run(dict(inputs)).values())


def airs(path: Path) -> dict[str, bytes]:
    """The `.air` members of a saved artifact."""
    with zipfile.ZipFile(path) as z:
        return {n: z.read(n) for n in z.namelist() if n.endswith(".air")}


def worst(got: list[np.ndarray], want: list[np.ndarray]) -> float:
    """The largest difference, as a part of the largest value."""
    differences = [0.0]
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape
        assert g.dtype == w.dtype
        if w.size:
            scale = max(float(np.abs(w.astype(np.float64)).max()), 1e-30)
            differences.append(float(np.abs(g.astype(np.float64) - w.astype(np.float64)).max()) / scale)
    return max(differences)
