"""`bench/operators.py`: its rows are models that onnxruntime runs, and its figures become a page."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import operators  # noqa: E402
from operator_page import page  # noqa: E402
from operator_reasons import REASONS  # noqa: E402
from operator_rows import ROWS  # noqa: E402

onnxruntime = pytest.importorskip("onnxruntime")


def test_rows_are_models_that_onnxruntime_runs():
    failed: dict[str, str] = {}
    for case in (c for row in ROWS for c in operators.cases(row) if c.size == "small" or c.kind != row.types[0]):
        data, inputs = case.model()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, inputs)
        except Exception as e:
            failed[case.name] = str(e)
    assert not failed


def test_names_of_rows_are_unique():
    names = [c.name for row in ROWS for c in operators.cases(row)]
    assert len(names) == len(set(names))


def test_reasons_are_those_of_slow_rows():
    assert {*REASONS} <= {row.operator for row in ROWS}
    times = {"1": {"occ": 3.0, "onnxruntime": 1.0, "ratio": 1 / 3}}
    text = page({"cpu|DFT|float|medium|symbolic": times, "cpu|Compress|float|small|fixed": times})
    assert f"- DFT: {REASONS['DFT']}" in text
    assert "- Compress" not in text


def test_outputs_that_differ_are_named():
    x = np.ones(3, np.float32)
    assert operators.differs({"y": x}, {"y": x}) == ""
    assert "differs by" in operators.differs({"y": x * 2}, {"y": x})
    assert "not float32[3]" in operators.differs({"y": x[:2]}, {"y": x})
    codes = np.array([7, 9], np.uint8)
    assert operators.differs({"y": codes + np.uint8(1)}, {"y": codes}) == ""
    assert operators.differs({"y": codes.astype(np.int64) + 1}, {"y": codes.astype(np.int64)}) == "`y` differs by 1"


def test_a_run_goes_on_where_the_last_one_stopped(tmp_path):
    file, drawn = tmp_path / "figures.json", tmp_path / "page.md"
    known = {"cpu-jit|Neg|float|small|fixed": {"1": {"occ": 1.0, "onnxruntime": 2.0, "ratio": 2.0}}}
    file.write_text(json.dumps(known))
    command = [
        sys.executable,
        str(ROOT / "bench/operators.py"),
        "--json",
        file,
        "--target",
        "cpu-jit",
        "--threads",
        "1",
    ]
    done = subprocess.run([*command, "--only", "^(Neg|Abs).*small", "--page", drawn], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    assert found.items() >= known.items()
    assert found["cpu-jit|Abs|float|small|fixed"]["1"]["ratio"] > 0
    assert "| Neg | float | 🟦 2.00 |" in drawn.read_text()


def test_a_page_says_what_was_not_measured():
    assert "- Neg float small fixed: no" in page({"cpu|Neg|float|small|fixed": {"error": "no"}})
