"""I/O binding of the provider in onnxruntime: values on the device are not copied."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
from building import model_of
from ort_device import RNG, copies, session

import occ

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytestmark = pytest.mark.toolchain


def test_bound_values_are_not_copied(device):
    occ.onnxruntime.register("ascend310p")
    model = model_of(
        "g (float[2,3] x, float[2,3] z) => (float[2,3] y, float[2,3] w) { c = Add(x, z)  y = Relu(c)  w = Neg(c) }"
    )
    opened = session(model)
    x, z = (RNG.standard_normal((2, 3), dtype=np.float32) for _ in range(2))
    made = [onnxruntime.OrtValue.ortvalue_from_shape_and_type((2, 3), np.float32, "cann", 0) for _ in range(3)]
    onnxruntime.copy_tensors([onnxruntime.OrtValue.ortvalue_from_numpy(v) for v in (x, z)], made[:2])
    binding = opened.io_binding()
    binding.bind_ortvalue_input("x", made[0])
    binding.bind_ortvalue_input("z", made[1])
    binding.bind_ortvalue_output("y", made[2])
    binding.bind_output("w", "cann", 0)
    before = copies(device)
    for _ in range(3):
        opened.run_with_iobinding(binding)
    assert copies(device) == before
    np.testing.assert_allclose(made[2].numpy(), np.maximum(x + z, 0), rtol=1e-5)
    np.testing.assert_allclose(binding.get_outputs()[1].numpy(), -x - z, rtol=1e-5)
    assert made[2].device_name() in ("npu", "cann")
    with closing(occ.DeviceTensor.from_numpy(x)) as own:
        binding.bind_input("x", "cann", 0, np.float32, (2, 3), own.address)  # memory of others, by its address
        before = copies(device)
        opened.run_with_iobinding(binding)
        assert copies(device) == before
        np.testing.assert_allclose(made[2].numpy(), np.maximum(x + z, 0), rtol=1e-5)
    del binding, made


def test_results_of_one_run_go_into_the_next_on_the_device(device):
    occ.onnxruntime.register("ascend310p")
    opened = session(model_of("g (float[4] s) => (float[4] t) { t = Add(s, s) }"))
    values = [onnxruntime.OrtValue.ortvalue_from_shape_and_type((4,), np.float32, "cann", 0) for _ in range(2)]
    onnxruntime.copy_tensors([onnxruntime.OrtValue.ortvalue_from_numpy(np.float32([1, 2, 3, 4]))], values[:1])
    before = copies(device)
    for k in range(5):
        binding = opened.io_binding()
        binding.bind_ortvalue_input("s", values[k % 2])
        binding.bind_ortvalue_output("t", values[1 - k % 2])
        opened.run_with_iobinding(binding)
    assert copies(device) == before
    assert values[1].numpy().tolist() == [32, 64, 96, 128]
    del binding, values
