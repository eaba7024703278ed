"""`occ warm` without a model, and builds that find its kernels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import model_of, reference

from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings
from occ.compiler.passes.lower.lower_te import kernel_name
from occ.compiler.tuning import common_nets
from occ.compiler.tuning.common_layers import LAYERS

_RNG = np.random.default_rng(0)


def _mlp(rows, inner):
    """Two layers with as many columns as vectors and as rows of a tile divide on every processor."""
    weights = {
        "a": _RNG.standard_normal((96, inner), dtype=np.float32),
        "b": _RNG.standard_normal((inner, 96), dtype=np.float32),
    }
    text = f"g (float[{rows},96] x) => (float[{rows},96] y) {{ h = MatMul(x, a) r = Relu(h) y = MatMul(r, b) }}"
    return model_of(text, weights)


def test_kernels_of_usual_networks_are_found_by_builds_of_others(occ_cli, monkeypatch, tmp_path):
    monkeypatch.setenv("OCC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(common_nets, "common_layers", lambda: iter(()))
    monkeypatch.setattr(common_nets, "NETS", {"bert": lambda batch: _mlp(24 if batch == 1 else 48, 192)})
    first = json.loads(occ_cli("warm", "--json").out.splitlines()[-1])
    assert first["models"] == 3  # and the trial of doctor
    assert first["compiled"] > 0
    again = json.loads(occ_cli("warm", "--json").out.splitlines()[-1])
    assert (again["compiled"], again["cached"]) == (0, first["compiled"] + first["cached"])

    other = _mlp(48, 384)
    onnx.save(other, tmp_path / "other.onnx")
    made = occ_cli("build", tmp_path / "other.onnx", "-t", "cpu", "-O2", "-o", tmp_path / "other.occ", "--json")
    facts = json.loads(made.out.splitlines()[-1])
    assert facts["kernels"] == facts["compiled"] + facts["reused"]
    assert facts["reused"] > 0

    import occ

    x = _RNG.standard_normal((48, 96), dtype=np.float32)
    (y,) = occ.load(tmp_path / "other.occ")(x)
    (wanted,) = reference(other, {"x": x})
    np.testing.assert_allclose(y, wanted, rtol=1e-3, atol=1e-3)


def test_kernels_of_the_example_are_usual_ones():
    """With them, the README's commands run on a machine without a C++ compiler."""

    def kernels(model):
        m = Compilation(model, Settings("cpu", options={"optimize": "2"})).advance("scheduled")
        return {kernel_name("f", f)[1] for f in m.te.values()}

    example = Path(__file__).parents[2] / "examples/digits.onnx"
    assert kernels(example) <= kernels(common_nets.NETS["digits"]("batch"))


@pytest.mark.parametrize("name", common_nets.NETS)
def test_usual_networks_are_models(name):
    model = common_nets.NETS[name](1)
    onnx.checker.check_model(model, full_check=True)


@pytest.mark.parametrize("group", LAYERS, ids=lambda g: g.__name__.strip("_"))
def test_usual_layers_are_models_with_kernels_of_any_size(group):
    for net in group():
        model = net.model()
        onnx.checker.check_model(model, full_check=True)
        m = Compilation(model, Settings("cpu", options={"optimize": "2"})).advance("scheduled")
        any_size = sum(bool(f.dims) for f in m.te.values())
        assert 2 * any_size > len(m.te), f"{net.name}: {any_size} of {len(m.te)} kernels are of any size"


def test_a_kernel_that_stays_as_it_is_is_shared_with_one_that_is_made_equal_to_it():
    """Rows of one size are rows of any; nine rows for each of a batch become so."""
    found = [
        set(Compilation(model_of(text), Settings("cpu", options={"optimize": "2"})).advance("scheduled").te)
        for text in (
            "g (float[n,208] x, float[n,208] y) => (float[n,416] z) { z = Concat <axis = 1> (x, y) }",
            "g (float[n,9,208] x, float[n,9,208] y) => (float[n,9,416] z) { z = Concat <axis = 2> (x, y) }",
        )
    ]
    assert found[0] == found[1]
