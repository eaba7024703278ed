"""bench/plot.py: the SVG of the figures of bench/speed.py."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
PLOT = runpy.run_path(str(ROOT / "bench/plot.py"))


def draw(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["plot.py", *map(str, arguments)])
    return PLOT["main"]()


def test_the_picture_of_the_readme_is_that_of_the_figures(monkeypatch, tmp_path):
    assert draw(monkeypatch, ROOT / "bench/figures/zen3.json", tmp_path / "speed.svg") == 0
    assert (tmp_path / "speed.svg").read_text() == (ROOT / "docs/assets/speed.svg").read_text(), "run `make bench-plot`"


def figures(*, times: dict[str, float], reasons: dict[str, str] | None = None, threads: int = 1) -> dict[str, object]:
    comparison = {"threads": threads, "times": {k: {"ms": v} for k, v in times.items()}, "reasons": reasons or {}}
    return {"model": "a <net>", "form": "open", "comparisons": [comparison]}


def test_a_runtime_whose_outputs_differ_has_no_bar():
    times = {"occ": 2.0, "onnxruntime": 4.0, "openvino": 1.0}
    assert PLOT["relative_speeds"]([figures(times=times, reasons={"openvino": "differs"})], 1) == {
        "a <net>": {"occ": 2.0, "onnxruntime": 1.0}
    }


def test_a_model_that_failed_is_left_out(monkeypatch, tmp_path, capsys):
    file = tmp_path / "figures.json"
    file.write_text(json.dumps({"results": [{"model": "m", "error": "exit code 1", "comparisons": []}]}))
    assert draw(monkeypatch, file, tmp_path / "out.svg") == 1
    assert "no model with onnxruntime on 1 threads" in capsys.readouterr().err


def test_names_of_models_are_escaped(monkeypatch, tmp_path):
    file = tmp_path / "figures.json"
    file.write_text(json.dumps({"results": [figures(times={"occ": 2.0, "onnxruntime": 1.0}, threads=2)]}))
    assert draw(monkeypatch, file, tmp_path / "out.svg", "--threads", 2) == 0
    texts = [e.text for e in ElementTree.parse(tmp_path / "out.svg").iter() if e.tag.endswith("text")]
    assert "a <net>" in texts
    assert "0.50" in texts
