"""Nodes that stay FLOAT in modes with half precision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from building import model_of, reference
from simulating import built, simulated, worst

from occ.compiler.diagnostics import CompileError
from occ.compiler.ge_simulator.reader import read

RNG = np.random.default_rng(7)
LOUDNESS = """g (float[4, 32] x) => (float[4, 16] y) {
    w = Relu(x)
    a = MatMul(w, bands)
    p = Mul(a, a)
    c = Clip(p, floor)
    y = Log(c)
}"""
SUMS = """g (uint8[4, 256] x) => (float[4, 8] y) {
    a = MatMulInteger(x, w)
    f = Cast <to = 1> (a)
    y = Mul(f, scale)
}"""


def loudness() -> onnx.ModelProto:
    bands = np.abs(RNG.standard_normal((32, 16), dtype=np.float32)) * np.logspace(-5, 0, 16, dtype=np.float32)
    return model_of(LOUDNESS, {"bands": bands, "floor": np.array(1e-10, np.float32)})


def sound() -> dict[str, np.ndarray]:
    return {"x": RNG.standard_normal((4, 32), dtype=np.float32)}


def marked(model: onnx.ModelProto, target: str = "ascend310p", **options: str) -> set[str]:
    made = built(model, target, **options)
    graph = next(iter(read(made.files[made.manifest.parts[0].air]).values()))
    return {n.type for n in graph.nodes if n.attrs.get("_keep_dtype")}


def test_what_leads_to_a_logarithm_is_kept_up_to_the_activation():
    kept = {"Relu", "MatMulV2", "Mul", "Maximum", "ClipByValue", "Log"}
    found = marked(loudness(), precision_mode_v2="fp16")
    assert found <= kept
    assert {"Relu", "MatMulV2", "Mul", "Log"} <= found
    assert marked(loudness(), "ascend910b") == set()
    assert marked(loudness(), precision_mode_v2="fp16", keep_dtype="off") == set()


def test_it_gives_logarithms_that_half_precision_has_not():
    model, x = loudness(), sound()
    want = reference(model, x)
    errors = [
        worst(simulated(built(model, "ascend910b", precision_mode_v2="fp16", keep_dtype=k), x), want)
        for k in ("auto", "off")
    ]
    assert errors[0] < 2e-3
    assert errors[1] > 0.1


def test_a_matrix_unit_without_fp32_is_simulated_and_told():
    made = built(loudness(), "ascend310p", precision_mode_v2="fp16")
    assert any("half precision: small values next to large ones" in r for r in made.manifest.summary["remarks"])
    new = built(loudness(), "ascend910b", precision_mode_v2="fp16")
    assert not any("small values" in r for r in new.manifest.summary["remarks"])
    x = sound()
    want = reference(loudness(), x)
    assert worst(simulated(new, x), want) < worst(simulated(made, x), want)


@pytest.mark.parametrize("mode", ["fp16", "mixed_float16"])
def test_sums_of_integer_products_exceed_half_precision(mode: str):
    weights = {"w": RNG.integers(-128, 128, (256, 8)).astype(np.int8), "scale": np.array(1e-4, np.float32)}
    model = model_of(SUMS, weights)
    x = {"x": RNG.integers(100, 256, (4, 256)).astype(np.uint8)}
    want = reference(model, x)
    assert np.abs(want[0]).max() > 6.6
    assert worst(simulated(built(model, precision_mode_v2=mode), x), want) < 1e-3


def test_a_file_names_nodes_and_operators(tmp_path: Path):
    file = tmp_path / "keep.cfg"
    file.write_text("OpType::Relu\n\n# a comment\nOpType::Log\n")
    assert marked(loudness(), precision_mode_v2="fp16", keep_dtype=str(file)) == {"Relu", "Log"}
    with pytest.raises(CompileError, match="cannot be read") as e:
        built(loudness(), precision_mode_v2="fp16", keep_dtype=str(tmp_path / "none.cfg"))
    assert e.value.diagnostics[0].code == "OCC0603"
