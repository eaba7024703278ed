"""The page of `occ report`: whole without a network, and, where Chromium is installed, opened in it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from building import mlp, model_of

import occ
from occ.analysis.report import html
from occ.analysis.report_graph import graph_data
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DIGITS = Path(__file__).parents[2] / "examples/digits.onnx"


@pytest.fixture
def model(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(mlp().SerializeToString())
    return Path("m.onnx")


def data_of(page: str) -> dict:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


@pytest.mark.parametrize(
    ("target", "stage"), [("interp", "imported"), *(("cpu-jit", s) for s in ("imported", "fused", "scheduled"))]
)
def test_a_page_of_each_stage(stage, target, model, occ_cli):
    ran = occ_cli("report", model, "-t", target, "--stage", stage, "-o", "r.html", "--dim", "n=3")
    assert ran.code == 0, ran.err
    page = Path("r.html").read_text()
    assert not re.search(r'(src|href)="?https?:', page), "nothing is fetched"
    data = data_of(page)
    assert {n["label"] for n in data["nodes"]} >= {"x", "y"}
    ids = {n["id"] for n in data["nodes"]}
    assert all(e["from"] in ids and e["to"] in ids for e in data["edges"])
    timed = [n for n in data["nodes"] if n["ms"]]
    assert bool(timed) == (stage == "scheduled" and target == "cpu-jit")
    assert all(n["te"].startswith("te @") for n in timed)


@pytest.mark.toolchain
def test_kernels_have_their_halide_source_and_memory_its_picture(model, occ_cli):
    assert occ_cli("report", model, "--shape", "x=4,8", "-o", "r.html").code == 0
    data = data_of(Path("r.html").read_text())
    assert any("Generator<" in n["source"] for n in data["nodes"])
    assert all(m["bytes"] >= 0 and m["last"] >= m["first"] for m in data["memory"])
    assert data["passes"]


def test_names_of_a_model_do_not_end_the_page(model):
    page = html("</title><script>bad", {"nodes": [{"label": "</script><script>bad"}], "x": "<!--"})
    assert page.count("<script") == 3
    assert data_of(page)["nodes"][0]["label"] == "</script><script>bad"


def test_the_function(model):
    assert occ.report(model, target="cpu-jit", dims={"n": 2}).startswith("<!doctype html>")


@pytest.mark.parametrize(("stage", "expected"), [("fused", ["Conv", "Relu"]), ("scheduled", ["pad", "conv", "relu"])])
def test_fused_regions_and_kernels_have_the_parts_that_they_unfold_into(stage, expected):
    compilation = Compilation(DIGITS, Settings(target="cpu"))
    graph = graph_data(compilation.advance(stage), compilation)
    first = next(n for n in graph["nodes"] if n["parts"])
    labels = [p["label"] for p in first["parts"]]
    assert [name for name in labels if name in expected] == expected
    assert first["gives"] == [len(labels) - 1]
    before = [r for p in first["parts"] for r in p["reads"] if isinstance(r, str)]
    assert before == [e["value"] for e in graph["edges"] if e["to"] == first["id"]]


def test_kernels_are_compared_with_onnxruntime_where_it_is(model, monkeypatch):
    pytest.importorskip("onnxruntime")
    page = data_of(occ.report(model, target="cpu-jit", dims={"n": 2}))
    rows = page["against"]["rows"]
    assert any(r["ids"] and r["ms"] > 0 and r["theirs"] > 0 for r in rows)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    page = data_of(occ.report(model, target="cpu-jit", dims={"n": 2}))
    assert not page["against"]["rows"]
    assert "is not installed" in page["against"]["note"]


def test_memory_is_that_of_the_run_where_sizes_are_symbolic(model):
    small, large = (
        data_of(occ.report(model, target="cpu-jit", dims={"n": n}, against="none"))["memory"] for n in (2, 64)
    )
    assert len(small) == len(large) > 0
    assert sum(s["bytes"] for s in large) == 32 * sum(s["bytes"] for s in small)


PROBE = """<script>
window.addEventListener("load", () => {
  const search = document.getElementById("search");
  search.value = "%s"; search.dispatchEvent(new Event("input"));
  search.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter"}));
  const shown = document.querySelectorAll(".node").length, chosen = document.getElementById("chosen");
  document.title = "nodes " + shown + " chosen " + (chosen ? chosen.textContent : "none") + " " + document.querySelectorAll("pre").length + " errors " + errors;
});
</script>"""


def opened(page: str, folder: Path, probe: str) -> str:
    """The title that a probe in the page gives it, in a browser without a window."""
    counting = "<script>let errors = 0; window.addEventListener('error', () => { errors += 1; });</script>"
    (folder / "probe.html").write_text(
        page.replace("<head>", "<head>" + counting, 1).replace("</body>", probe + "</body>")
    )
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom"]
    home = {"HOME": str(folder), "PATH": "/usr/bin:/bin"}
    ran = subprocess.run(
        [*command, f"file://{folder}/probe.html"], capture_output=True, text=True, timeout=120, env=home, check=False
    )
    return re.findall(r"<title>(.*?)</title>", ran.stdout)[0]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_it_opens_and_a_kernel_is_found_and_opened(model, tmp_path):
    page = occ.report(model, target="cpu-jit", dims={"n": 2})
    title = opened(page, tmp_path, PROBE % "matmul")
    nodes = len(data_of(page)["nodes"])
    assert re.fullmatch(rf"nodes {nodes} chosen \S.* [1-9] errors 0", title), title


UNFOLDS = """<script>
window.addEventListener("load", () => {
  const count = () => [...document.querySelectorAll(".node, .box")].length;
  const before = count(), signs = document.querySelectorAll(".fold").length;
  document.querySelector(".fold").dispatchEvent(new Event("click"));
  const one = count();
  document.getElementById("unfold").click();
  const boxes = document.querySelectorAll(".box").length;
  document.getElementById("unfold").click();
  for (const option of document.querySelectorAll("#colors option")) {
    document.getElementById("colors").value = option.value;
    document.getElementById("colors").dispatchEvent(new Event("change"));
  }
  document.title = [before < one, signs === boxes, count() === before, errors].join(" ");
});
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_nodes_unfold_and_fold_and_colours_change(tmp_path):
    page = occ.report(DIGITS, target="cpu-jit", stage="fused")
    assert opened(page, tmp_path, UNFOLDS) == "true true true 0"


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_two_thousand_nodes(tmp_path):
    chain = "  ".join(f"v{k + 1} = {'Exp' if k % 2 else 'Neg'}(v{k})" for k in range(2000))
    page = occ.report(model_of(f"g (float[2] v0) => (float[2] v2000) {{ {chain} }}"), target="interp", stage="imported")
    assert opened(page, tmp_path, PROBE % "Exp").startswith("nodes 2002 chosen Exp")
