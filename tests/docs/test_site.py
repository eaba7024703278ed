"""The site of the documentation: every page has a place in it, and it builds without a warning or a network."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

import occ

ROOT = Path(__file__).parents[2]
CONFIG = (ROOT / "mkdocs.yml").read_text()


def test_every_page_is_in_the_navigation_once():
    listed = re.findall(r": ([\w/-]+\.md)$", CONFIG, re.M)
    assert sorted(listed) == sorted(str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md"))


def test_the_reference_of_python_has_every_public_name():
    text = (ROOT / "docs/api.md").read_text()
    shown = set(re.findall(r"^::: ([\w.]+)$", text, re.M))
    missing = []
    for name in set(occ.__all__) - {"__version__", "backend"}:
        value = getattr(occ, name)
        where = getattr(value, "__module__", "")
        found = f"{where}.{value.__name__}" in shown if where else any(s.startswith(f"occ.{name}") for s in shown)
        if not found:
            missing.append(name)
    assert missing == []


def test_links_to_pages_have_their_titles_on_the_site():
    hooks = runpy.run_path(str(ROOT / "docs/site_hooks.py"))
    page = SimpleNamespace(file=SimpleNamespace(abs_src_path=str(ROOT / "docs/why.md")))
    text = "see [numerics.md](numerics.md), [`cli.md`](cli.md#x), [them](c.md), [README.md](https://a.b/README.md)"
    shown = hooks["on_page_markdown"](text, page=page, config=None, files=None)
    titles = [(ROOT / "docs" / n).read_text().partition("\n")[0].removeprefix("# ") for n in ("numerics.md", "cli.md")]
    assert shown == (
        f"see [{titles[0]}](numerics.md), [{titles[1]}](cli.md#x), [them](c.md), [README.md](https://a.b/README.md)"
    )


@pytest.mark.slow
def test_the_site_builds_and_takes_nothing_from_the_network(tmp_path):
    if find_spec("mkdocs") is None or find_spec("mkdocstrings") is None:
        pytest.skip("mkdocs-material and mkdocstrings are not installed")
    whole, tmp_path = tmp_path, tmp_path / occ.__version__
    (whole / "0.0.9").mkdir()
    (whole / "0.0.9" / "index.html").touch()
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    env = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    }  # ruff prints signatures
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        text = page.read_text()
        taken = re.findall(r'<(?:script|link rel="stylesheet"|img)[^>]*(?:src|href)="?(https?://[^" >]*)', text)
        assert taken == [], page.name
        for target in re.findall(r'src="([^":]*iframe-worker\.js)"', text):
            assert (page.parent / target).is_file()
    assert "Compile a model for this machine" in (tmp_path / "api.html").read_text()
    assert "occ_batch_rows" in (tmp_path / "search" / "search_index.js").read_text()
    versions = [v["version"] for v in json.loads((whole / "versions.json").read_text())]
    assert versions == [occ.__version__, "0.0.9"]
    assert f"{occ.__version__}/index.html" in (whole / "index.html").read_text()
