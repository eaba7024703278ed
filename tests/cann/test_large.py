"""A model whose weights exceed what one protobuf message can hold."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import model_of
from simulating import simulated

import occ
from occ.compiler.ge_simulator.reader import read
from occ.runtime.artifact import Artifact

N, LAYERS = 10_240, 6  # 400 MiB a layer
TEXT = "g (float[1, {n}] x) => (float[1, {n}] y) {{ {body} }}"


def model(folder: Path) -> Path:
    """Layers that read the same 400 MiB at different offsets of one file, so that the model takes little of the disk."""
    nodes = [f"h{k + 1} = MatMul({f'h{k}' if k else 'x'}, w{k})" for k in range(LAYERS)]
    made = model_of(TEXT.format(n=N, body="\n".join([*nodes, f"y = Identity(h{LAYERS})"])))
    size = N * N * 4
    row = np.random.default_rng(0).standard_normal(N + 4 * LAYERS, dtype=np.float32) / N
    with open(folder / "weights.bin", "wb") as f:
        for k in range(N):
            f.write(np.roll(row, k)[:N].tobytes())
        f.write(row.tobytes())
    for k in range(LAYERS):
        w = made.graph.initializer.add(name=f"w{k}", data_type=onnx.TensorProto.FLOAT, dims=[N, N])
        w.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", "weights.bin"), ("offset", str(16 * k)), ("length", str(size))):
            w.external_data.add(key=key, value=value)
    path = folder / "model.onnx"
    path.write_bytes(made.SerializeToString())
    return path


@pytest.mark.slow
def test_weights_beyond_two_gib(tmp_path: Path):
    path = model(tmp_path)
    made = occ.build(path, "ascend910b", tmp_path / "model.occ")
    (part,) = made.manifest.parts
    assert part.weights == LAYERS * N * N * 4 > 2**31
    assert len(made.files[part.air]) < 2**20
    assert len(part.files) == LAYERS
    x = {"x": np.random.default_rng(1).standard_normal((1, N), dtype=np.float32)}
    del made
    loaded = Artifact.load(tmp_path / "model.occ")
    (got,) = simulated(loaded, x)
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert taken < 6 << 20, "KiB: the files of weights once, and the mapped model"
    names = {n.rpartition("/")[2]: loaded.files[n] for n in part.files}
    assert {n.type for n in read(loaded.files[part.air], names)["part0"].nodes} >= {"FileConstant", "MatMulV2"}
    want = x["x"].astype(np.float64)
    for k in range(LAYERS):
        want = want @ np.memmap(tmp_path / "weights.bin", np.float32, "r", 16 * k, (N, N))
    np.testing.assert_allclose(got, want, atol=1e-5 * float(np.abs(want).max()))
