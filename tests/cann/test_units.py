"""What runs each node: in the summary of a build, `occ check`, `occ inspect --json` and `occ report`, and by the tables of a toolkit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from building import model_of
from simulating import built

from occ.compiler.codegen_cann.graph.installed import kernels_for
from occ.compiler.codegen_cann.graph.kernels import builtin
from occ.compiler.diagnostics import CompileError

MIXED = """g (float[2, 4] x, int64[2, 4] i) => (float[2, 4] y, double[2, 4] d, float[2, 2] p) {
    a = Relu (x)
    v, j = TopK (a, k)
    y = ScatterElements <axis = 1> (v, i, a)
    d = Cast <to = 11> (y)
    p = MatMul (a, w)
}"""
WEIGHTS = {"k": np.array([4]), "w": np.ones((4, 2), np.float32)}


@pytest.fixture
def mixed(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "m.onnx"
    path.write_bytes(model_of(MIXED, WEIGHTS).SerializeToString())
    return path


def build(occ_cli, path: Path, target: str = "ascend310p") -> str:
    done = occ_cli("build", path, "-t", target, "-C", "cpu_fallback=cpu-jit", "-o", "m.occ")
    assert done.code == 0, done.err
    return " ".join(done.err.split())


def test_the_summary_of_a_build_names_units(mixed: Path, occ_cli):
    text = build(occ_cli, mixed)
    assert "AI CPU 2" in text
    assert "AI Core 1" in text  # the product
    assert "kernels of CANN 8.1.RC1, as occ knows them" in text
    assert (
        "1 Cast (Cast#4): AI Core has no kernel for FLOAT giving DOUBLE; with FLOAT or INT32 instead of DOUBLE" in text
    )


def test_check_warns_of_each_kind_of_node_on_the_ai_cpu(mixed: Path, occ_cli):
    done = occ_cli("check", mixed, "-t", "ascend310p", "--json")
    assert done.code == 0
    warnings = json.loads(done.out)["warnings"]
    assert [w["code"] for w in warnings] == ["OCC0311"] * 2
    assert all(w["helps"] for w in warnings)
    assert (
        "1 ScatterElements"
        in json.loads(occ_cli("check", mixed, "-t", "ascend310p", "--json").out)["warnings"][0]["message"]
    )
    assert (
        len(json.loads(occ_cli("check", mixed, "-t", "ascend910b", "--json").out)["warnings"]) == 1
    )  # AI Core scatters there


def test_inspect_has_every_node_with_its_unit(mixed: Path, occ_cli):
    build(occ_cli, mixed)
    facts = json.loads(occ_cli("inspect", "m.occ", "--json").out)
    placed = facts["placed"]["part0"]
    assert {p["operator"]: p["unit"] for p in placed} == {
        "Relu": "vector", "TopK": "vector", "Cast": "AI CPU", "Less": "vector", "Add": "vector", "SelectV2": "vector",
        "ScatterElements": "AI CPU", "MatMulV2": "AI Core",
    }  # fmt: skip
    assert all(p["why"] for p in placed)
    assert sum(facts["units"].values()) == len(placed) == sum(facts["ge_operators"].values())
    assert "placed" not in occ_cli("inspect", "m.occ").out


def test_a_report_says_what_runs_a_node(mixed: Path, occ_cli):
    done = occ_cli("report", mixed, "-t", "ascend310p", "-o", "r.html")
    assert done.code == 0, done.err
    page = Path("r.html").read_text()
    assert "ScatterElements ScatterElements#3: AI CPU, AI Core has no kernel" in page


def toolkit(home: Path, chip: str, tables: dict[str, Any], release: str = "9.9.1") -> None:
    """A folder as a toolkit has it, with some tables of AI Core kernels of a chip, and one of the AI CPU."""
    folder = home / "opp" / "built-in" / "op_impl" / "ai_core" / "tbe" / "config" / f"ascend{chip}"
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in tables.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"aic-ascend{chip}-ops-info{name}.json").write_text(text)
    cpu = home / "opp" / "built-in" / "op_impl" / "aicpu" / "config"
    cpu.mkdir(parents=True, exist_ok=True)
    both = {"opInfo": {"opKernelLib": "AICPUKernel"}, "input0": {"name": "x", "type": "DT_FLOAT,DT_BOOL"}, "output0": {"name": "y", "type": "DT_FLOAT,DT_BOOL"}}  # fmt: skip
    (cpu / "aicpu_kernel.json").write_text(json.dumps({"Tanh": both}))
    (home / "opp" / "version.info").write_text(f"Version={release}\n")


def unary(types: str, *, dynamic: bool = True) -> dict[str, Any]:
    tensor = {"dtype": types, "format": "ND", "paramType": "required"}
    return {
        "input0": {"name": "x", **tensor}, "output0": {"name": "y", **tensor}, "dynamicShapeSupport": {"flag": str(dynamic).lower()},
    }  # fmt: skip


TABLES = {
    "": {"Relu": unary("float16,float"), "Sigmoid": unary("float16", dynamic=False)},
    "-math": {"Abs": unary("int32")},
}
CHAIN = "g (float[2] x) => (float[2] y) { a = Relu (x) b = Sigmoid (a) c = Tanh (b) d = Exp (c) y = Relu (d) }"


def test_the_tables_of_an_installed_toolkit_decide(tmp_path: Path, monkeypatch, occ_cli):
    toolkit(tmp_path / "cann", "310p", TABLES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path / "cann"))
    path = tmp_path / "m.onnx"
    path.write_bytes(model_of(CHAIN).SerializeToString())
    text = build(occ_cli, path)
    assert "kernels of CANN 9.9.1, installed here" in text
    assert "1 Tanh" in text  # on its AI CPU
    facts = json.loads(occ_cli("inspect", "m.occ", "--json").out)
    assert facts["on_the_cpu"] == ["Exp"]
    assert {p["operator"]: p["unit"] for part in facts["placed"].values() for p in part} == {
        "Relu": "vector", "Sigmoid": "vector", "Tanh": "AI CPU",
    }  # fmt: skip
    done = occ_cli("check", path, "-t", "ascend310p", "--json")
    assert "no kernel of GE `Exp` for FLOAT" in done.out
    # Another chip has no table there: what occ knows is taken.
    assert "as occ knows them" in build(occ_cli, path, "ascend910b")


def test_a_newer_table_is_seen(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    toolkit(tmp_path, "310p", TABLES)
    assert not kernels_for("310p").has("Exp")
    toolkit(tmp_path, "310p", {**TABLES, "-legacy": {"Exp": unary("float16")}})
    assert kernels_for("310p").has("Exp")
    monkeypatch.delenv("ASCEND_HOME_PATH")
    assert kernels_for("310p") is builtin("310p")


def test_a_table_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    toolkit(tmp_path, "310p", {"": "{"})
    with pytest.raises(CompileError, match=r"aic-ascend310p-ops-info\.json") as e:
        built(model_of(CHAIN), "ascend310p")
    assert e.value.diagnostics[0].code == "OCC0404"


@pytest.mark.parametrize(
    "text",
    ["[]", '{"Relu": 3}', '{"Relu": {"input0": []}}', '{"Relu": {"input0": {"dtype": 7}, "dynamicShapeSupport": 3}}'],
)
def test_a_table_of_something_else_says_nothing(tmp_path: Path, monkeypatch, text: str):
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    toolkit(tmp_path, "310p", {"": text})
    assert "cpu_operators" in built(model_of(CHAIN), "ascend310p").manifest.summary


def test_the_whole_table_of_a_toolkit_is_ours(tmp_path: Path, monkeypatch):
    """What `tools/ge_kernels.py` wrote, as a toolkit has it, gives the same units."""
    kernels = builtin("310p")
    table = {
        op: _record(kernels.kernels(op)[0]) for op in kernels.operators if kernels.kernels(op)[0].unit == "AI Core"
    }
    toolkit(tmp_path, "310p", {"": table})
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    found = kernels_for("310p")
    assert found.installed
    for op in table:
        first, same = kernels.kernels(op)[0], found.kernels(op)[0]
        assert (first.dynamic, first.inputs, first.outputs) == (same.dynamic, same.inputs, same.outputs), op


def _record(kernel) -> dict[str, Any]:
    made: dict[str, Any] = {"dynamicShapeSupport": {"flag": "true" if kernel.dynamic else "false"}}
    for side, operands in (("input", kernel.inputs), ("output", kernel.outputs)):
        for k, o in enumerate(operands):
            types = ",".join({"FLOAT": "float", "BF16": "bfloat16"}.get(t, t.lower()) for t in o.types)
            made[f"{side}{k}"] = {"name": o.name, "dtype": types, "paramType": "dynamic" if o.repeated else "required"}
    return made
