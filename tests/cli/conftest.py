"""What the tests of commands share: a small model with its input, in the folder where they run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from building import mlp


@pytest.fixture
def model(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "m.onnx"
    path.write_bytes(mlp().SerializeToString())
    sample = np.random.default_rng(3).standard_normal((5, 8), dtype=np.float32)
    np.save("x.npy", sample)
    np.savez("all.npz", x=sample)
    return path
