"""`occ diff` where onnxruntime differs: from itself, by its optimiser; from ONNX; or because occ is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from building import model_of
from onnx import TensorProto, helper, numpy_helper

import occ
from occ.analysis import diff as module
from occ.analysis import oracles


def quantised() -> onnx.ModelProto:
    """Two pairs in a row, of which onnxruntime's optimiser makes one: values are rounded once where the model says twice."""
    nodes, held, last = [], [], "x"
    for k, (scale, zero) in enumerate([(0.02, 128), (0.033, 120)]):
        held += [numpy_helper.from_array(np.float32(scale), f"s{k}"), numpy_helper.from_array(np.uint8(zero), f"z{k}")]
        nodes.append(helper.make_node("QuantizeLinear", [last, f"s{k}", f"z{k}"], [f"q{k}"]))
        last = f"d{k}"
        nodes.append(helper.make_node("DequantizeLinear", [f"q{k}", f"s{k}", f"z{k}"], [last]))
    nodes.append(helper.make_node("Sigmoid", [last], ["y"]))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 64]) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def of_onnxruntime(path: Path, inputs: dict[str, np.ndarray], *, optimised: bool) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, inputs)[0]


def test_a_difference_of_its_optimiser_is_no_difference_of_ours(tmp_path, monkeypatch, occ_cli) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(quantised(), "m.onnx")
    x = {"x": 2 * np.random.default_rng(0).standard_normal((32, 64), dtype=np.float32)}
    np.savez("x.npz", **x)
    plain, fast = (of_onnxruntime(Path("m.onnx"), x, optimised=o) for o in (False, True))
    off = float(np.abs(fast - plain).max() / np.abs(fast).max())
    if off < 1e-4:
        pytest.skip(f"onnxruntime {onnxruntime.__version__} does not join these pairs")
    ran = occ_cli("diff", "m.onnx", "-t", "cpu-jit", "--inputs", "x.npz")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("same     y: [32, 64]")
    assert "with onnxruntime's optimiser off; with it onnxruntime differs by" in ran.out
    (row,) = map(json.loads, occ_cli("diff", "m.onnx", "-t", "cpu-jit", "--inputs", "x.npz", "--json").out.splitlines())
    assert row["ok"]
    assert row["optimiser"] == pytest.approx(off, rel=0.1)
    assert row["difference"] < 1e-5


def test_where_no_output_differs_nothing_runs_twice(tmp_path, monkeypatch) -> None:
    runs: list[str] = []
    run = module.oracle
    monkeypatch.setattr(module, "oracle", lambda *a: runs.append(a[1]) or run(*a))
    found = occ.diff(model_of("g (float[4] x) => (float[4] y) { y = Exp(x) }"), "cpu-jit")
    assert (found.ok, found.verdict, runs) == (True, "", ["onnxruntime"])


@pytest.mark.parametrize("exact", [True, False])
def test_the_interpreter_says_whose_a_difference_is(
    exact: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """onnxruntime is made to be wrong in both runs; or a rule of the user makes occ wrong."""
    text = "g (float[4] x) => (float[4] y) { h = Neg(x)  y = Exp(h) }"
    rules: list[Any] = []
    if exact:
        run = oracles._onnxruntime
        monkeypatch.setattr(oracles, "_onnxruntime", lambda *a, **k: [y + 1 for y in run(*a, **k)])
    else:
        (tmp_path / "wrong.py").write_text(
            "from occ import rewrite\n@rewrite\ndef no_neg(p, x):\n    return p.Neg(x)\n"
            "@no_neg.into\ndef _(b, x):\n    return b.Abs(x)\n"
        )
        rules = [tmp_path / "wrong.py"]
    found = occ.diff(model_of(text), "cpu-jit", rules=rules)
    assert not found.ok
    assert found.verdict.startswith("the interpreter, which computes each operator as ONNX defines it, ")
    assert ("agrees with occ" in found.verdict) == exact
    assert ("`occ bisect`" in found.verdict) == (not exact)
