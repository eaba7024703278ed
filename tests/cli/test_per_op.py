"""`occ bench --per-op`: kernels beside onnxruntime's profile, by the nodes of the model; and what notebooks show."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import mlp, model_of

import occ
from occ.analysis import report as report_module
from occ.analysis.per_op import PerOp, Row, node_of, per_op
from occ.compiler.driver.source import load_module
from occ.runtime.profile import Event, Profile, profile, spread_of, timed_blocks

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "examples/digits.onnx"


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("conv", "conv"),
        ("y_nchwc", "conv"),
        ("y0_nchwc", "conv"),
        ("dense/MatMulAddFusion", "dense"),
        ("dense_token_12", "dense"),
        ("ReorderInput_token_6", ""),
        ("conv_9", "conv_9"),
        ("", ""),
    ],
)
def test_nodes_of_onnxruntime_are_known_by_their_names_and_results(name, node):
    assert node_of(name, ["conv", "conv_9", "dense"], {"y": "conv", "z": "dense"}) == node


@pytest.mark.toolchain
def test_both_sides_are_joined_by_the_nodes_that_they_compute():
    pytest.importorskip("onnxruntime")
    session = occ.compile(DIGITS, threads=1)
    made = per_op(session, str(DIGITS), {"picture": np.load(ROOT / "examples/three.npy")}, runs=3)
    assert made is not None
    nodes = [n.name for n in onnx.load(DIGITS).graph.node]
    both = [r for r in made.rows if r.kernels and r.theirs]
    assert {n for r in both for n in r.nodes} >= {n for n in nodes if "conv" in n or "linear" in n.lower()}
    listed = [n for r in made.rows for n in r.nodes]
    assert len(listed) == len(set(listed)), "a node is in one row"
    assert set(listed) <= set(nodes)
    assert sum(len(r.kernels) for r in made.rows) == sum(
        s.kind == "kernel" for s in session.artifact.manifest.plan.steps
    )
    assert all(r.ms > 0 and r.theirs_ms > 0 for r in both)


def test_the_table_and_its_data(tmp_path, monkeypatch, occ_cli):
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    unnamed = mlp()
    for node in unnamed.graph.node:
        node.name = ""
    onnx.save(unnamed, "m.onnx")
    ran = occ_cli("bench", "m.onnx", "-t", "cpu-jit", "--per-op")
    lines = ran.out.splitlines()
    assert ran.code == 0
    assert lines[0].split() == ["occ", "ms", "ort", "ms", "ratio", "nodes"]
    assert all(len(line) <= 80 for line in lines)
    data = json.loads(occ_cli("bench", "m.onnx", "-t", "cpu-jit", "--per-op", "--json").out)
    assert {"nodes", "kernels", "ms", "theirs", "theirs_ms"} == set(data["rows"][0])
    assert any(r["ms"] and r["theirs_ms"] for r in data["rows"]), "a node without a name is joined too"
    assert occ_cli("bench", "m.onnx", "-t", "interp", "--per-op").code == 2
    onnx.save(model_of("g (float[2] x) => (float[2] y) { y = Exp(x) }"), "other.onnx")
    assert occ_cli("build", "m.onnx", "-t", "cpu-jit").code == 0
    assert "--onnx FILE" in occ_cli("bench", "m.occ", "--per-op").err
    assert "onnxruntime does not run" in occ_cli("bench", "m.occ", "--per-op", "--onnx", "other.onnx").err


def test_sessions_and_modules_show_themselves_in_notebooks():
    model = model_of("g (float[n,4] x) => (float[n,4] y) { a = Exp(x)  y = Neg(a) }")
    model.graph.input[0].name = model.graph.node[0].input[0] = "<b>x"
    shown = occ.compile(model, "cpu-jit")._repr_html_()
    assert "<td>&lt;b&gt;x</td><td><code>f32[n,4]</code></td>" in shown
    assert "for cpu-jit: 1 kernel," in shown
    module = load_module(model)._repr_html_()
    assert module.startswith("<pre>")
    assert "Exp(" in module
    assert "<b>x" not in module
    text = (
        "g (float[4] x) => (float[4] y) { "
        + " ".join(f"v{k} = Exp({f'v{k - 1}' if k else 'x'})" for k in range(500))
        + " y = Neg(v499) }"
    )
    assert "more lines</pre>" in load_module(model_of(text))._repr_html_()


@pytest.mark.parametrize(("spread", "steady"), [(0.1, True), (0.4, False)])
def test_times_of_a_busy_machine_have_no_ratios(spread, steady):
    made = PerOp(2, (Row(("conv",), ("k",), 1.0, ("conv",), 3.0),), spread)
    assert ("3.00x" in made.table()) == steady
    assert ("unsteady (spread 40%): " in made.table()) == (not steady)
    shown = Profile("m", 2, 1e-3, 0.0, (Event("k", ("conv",), 0.0, 1e-3, 1.0, 1.0, None),), spread).table()
    assert ("unsteady (" in shown) == (not steady)


def test_the_page_of_a_busy_machine_has_no_ratios_and_says_so(monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(report_module, "profile", lambda *a: replace(profile(*a), spread=0.5))
    data = json.loads(
        re.findall(r'type="application/json" id="data">(.*?)</script>', occ.report(DIGITS, target="cpu-jit"), re.S)[0]
    )
    assert data["against"]["unsteady"]
    assert "unsteady (spread 50%)" in data["facts"]
    assert data["against"]["note"].startswith("unsteady (spread ")


def test_spreads_and_blocks():
    assert spread_of([1.0] * 7) == 0
    assert spread_of([]) == spread_of([1.0]) == spread_of([0.0] * 5) == 0
    assert spread_of([1, 1, 1, 2, 2, 2, 2]) == 0.5
    runs: list[int] = []
    assert len(timed_blocks(lambda: runs.append(1), 3)) == 3
    assert len(runs) > 3, "short runs are repeated"
    took = profile(occ.compile(mlp(), "cpu-jit"), {"x": np.ones((3, 8), np.float32)})
    assert took is not None
    assert took.spread >= 0
