"""The ONNX backend API by name: its devices, and what each function says of them."""

from __future__ import annotations

import numpy as np
import onnx.backend.base
import pytest
from building import mlp, model_of, reference
from onnx import helper
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

import occ
from occ.compiler.objects.processors import ARCHES
from occ.compiler.standalone.emulated import missing

pytestmark = pytest.mark.toolchain
X = np.random.default_rng(0).standard_normal((3, 8), np.float32)
ARM = next(a for a in ARCHES if a.name == "aarch64")


def need(device: str) -> None:
    if device == "CPU:arm-64" and (lacks := missing(ARM)):
        pytest.skip(f"apt install {lacks}")


def test_it_is_a_backend():
    assert issubclass(occ.backend.Backend, onnx.backend.base.Backend)


@pytest.mark.parametrize("device", ["CPU", "CPU:0", "CPU:arm-64", "NPU", "NPU:ascend910b"])
def test_a_model_on_each_device(device: str):
    need(device)
    model = mlp() if device.startswith("CPU") else model_of("g (float[3, 8] x) => (float[3, 8] y) { y = Softmax(x) }")
    assert occ.backend.supports_device(device)
    assert occ.backend.is_compatible(model, device)
    (want,) = reference(model, {"x": X})
    tolerance = 1e-5 if device.startswith("CPU") else 2e-3
    np.testing.assert_allclose(occ.backend.prepare(model, device).run([X])[0], want, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(occ.backend.run_model(model, {"x": X}, device).y, want, rtol=tolerance, atol=tolerance)


@pytest.mark.thinned
@pytest.mark.parametrize("device", ["CPU", "CPU:arm-64"])
def test_a_node_on_each_device(device: str):
    need(device)
    node = helper.make_node("TopK", ["x", "k"], ["v", "i"], axis=1)
    if device == "CPU:arm-64":
        node = helper.make_node("Split", ["x"], ["v", "i"], axis=1, num_outputs=2)
    given = [X] if device == "CPU:arm-64" else [X, np.array([2])]
    values, rest = occ.backend.run_node(node, given, device)
    want = np.split(X, 2, 1)[0] if device == "CPU:arm-64" else -np.sort(-X, 1)[:, :2]
    np.testing.assert_array_equal(values, want)
    assert rest.shape == values.shape


@pytest.mark.parametrize("device", ["CUDA", "CPU:z80", "NPU:ascend1", "cpu"])
def test_devices_that_are_none(device: str):
    assert not occ.backend.supports_device(device)
    assert not occ.backend.is_compatible(mlp(), device)
    with pytest.raises(BackendIsNotSupposedToImplementIt):
        occ.backend.prepare(mlp(), device)
