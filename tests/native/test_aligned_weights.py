"""Weights that a build has just made lie at multiples of 64 bytes for kernels, as those of a file do."""

from __future__ import annotations

import numpy as np
import pytest
from building import mlp, onnxruntime_of

import occ
from occ.runtime.buffers import ALIGNMENT, aligned_bytes
from occ.runtime.open import open_artifact, used_whole


def moved(w: np.ndarray) -> np.ndarray:
    """A copy that is 16 bytes from a multiple of 64, where numpy often has large arrays."""
    room = aligned_bytes(w.nbytes + ALIGNMENT)[16 : 16 + w.nbytes]
    made = room.view(w.dtype).reshape(w.shape)
    made[...] = w
    return made


@pytest.mark.parametrize("target", ["cpu-jit", pytest.param("cpu", marks=pytest.mark.toolchain)])
def test_weights_are_moved_to_whole_lines(target: str) -> None:
    model = mlp(sizes=(64, 96, 40))
    artifact = occ.build(model, target)
    artifact.weights = [moved(w) for w in artifact.weights]
    assert all(w.ctypes.data % ALIGNMENT == 16 for w in artifact.weights)
    session = open_artifact(artifact, 1)
    whole = used_whole(artifact.manifest)
    assert len(whole) >= 2
    assert all(artifact.weights[k].ctypes.data % ALIGNMENT == 0 for k in whole)
    (name,) = (i.name for i in model.graph.input)
    x = np.random.default_rng(0).standard_normal((5, 64), np.float32)
    want = np.asarray(onnxruntime_of(model).run(None, {name: x})[0])
    np.testing.assert_allclose(next(iter(session.run({name: x}).values())), want, rtol=1e-4, atol=1e-5)
