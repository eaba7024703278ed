"""The page of `occ report`: whole without a network, and, where Chromium is installed, opened in it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from building import mlp, model_of

import occ
from occ.analysis.report import html

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture
def model(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(mlp().SerializeToString())
    return Path("m.onnx")


def data_of(page: str) -> dict:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


@pytest.mark.parametrize("stage", ["imported", "fused", "scheduled"])
@pytest.mark.parametrize("target", ["cpu-jit", "interp"])
def test_a_page_of_each_stage(stage, target, model, occ_cli):
    if target == "interp" and stage != "imported":
        pytest.skip("the interpreter has no such stage")
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


PROBE = """<script>
window.addEventListener("load", () => {
  const search = document.getElementById("search");
  search.value = "%s"; search.dispatchEvent(new Event("input"));
  search.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter"}));
  const shown = document.querySelectorAll(".node").length, chosen = document.getElementById("chosen");
  document.title = "nodes " + shown + " chosen " + (chosen ? chosen.textContent : "none") + " " + document.querySelectorAll("pre").length + " errors " + errors;
});
</script>"""


def opened(page: str, folder: Path, word: str) -> str:
    """The title that a probe in the page gives it, in a browser without a window."""
    counting = "<script>let errors = 0; window.addEventListener('error', () => { errors += 1; });</script>"
    (folder / "probe.html").write_text(
        page.replace("<head>", "<head>" + counting, 1).replace("</body>", PROBE % word + "</body>")
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
    title = opened(page, tmp_path, "matmul")
    nodes = len(data_of(page)["nodes"])
    assert re.fullmatch(rf"nodes {nodes} chosen \S.* [1-9] errors 0", title), title


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_two_thousand_nodes(tmp_path):
    chain = "  ".join(f"v{k + 1} = {'Exp' if k % 2 else 'Neg'}(v{k})" for k in range(2000))
    page = occ.report(model_of(f"g (float[2] v0) => (float[2] v2000) {{ {chain} }}"), target="interp", stage="imported")
    assert opened(page, tmp_path, "Exp").startswith("nodes 2002 chosen Exp")
