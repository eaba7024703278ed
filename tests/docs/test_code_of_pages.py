"""Every block of code of the pages has a test: what a shell would run is understood, and code is run by the test named here."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from building import mlp

from occ.cli import cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CODE = ("python", "c", "cpp", "lua", "js", "json", "toml", "cmake")
# What runs the code of a page from its first block to its last.
RUN_BY = {
    "README.md": "packaging/test_install.py",
    "ascend-onnxruntime.md": "acl/test_ort_page.py",
    "ascend-running.md": "acl/test_whole_path.py",
    "c.md": "native/test_standalone.py",
    "guide-fusion.md": "docs/test_guides.py",
    "guide-operator.md": "docs/test_guides.py",
    "guide-schedule.md": "docs/test_guides.py",
    "guide-target.md": "docs/test_guides.py",
    "index.md": "docs/test_code_of_pages.py",
    "language-models.md": "docs/test_language_models_page.py",
    "native.md": "native/test_entry_from_c.py",
    "onnxifi.md": "native/test_onnxifi_clients.py",
    "onnxruntime.md": "docs/test_code_of_pages.py",
    "serving.md": "serve/test_serving_page.py",
    "torch.md": "pytorch/test_torch_page.py",
    "tour.md": "docs/test_guides.py",
    "tutorial.md": "docs/test_tutorial_page.py",
    "webassembly.md": "native/test_webassembly.py",
}


def blocks(page: Path) -> list[tuple[str, str]]:
    return re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.M | re.S)


def commands() -> list[str]:
    found = []
    for page in PAGES:
        for language, text in blocks(page):
            if language in ("", "sh", "console"):
                lines = text.replace("\\\n", " ").splitlines()
                found += [
                    f"{page.name}: {line.removeprefix('$ ')}" for line in lines if re.match(r"(\$ )?occ \w", line)
                ]
    return found


@pytest.mark.parametrize("line", commands())
def test_a_command_of_a_page_is_understood(line, tmp_path, monkeypatch):
    (tmp_path / "texts.txt").write_text("a text\n")  # is opened as soon as it is named
    for beside in ("examples", "docs"):
        (tmp_path / beside).symlink_to(ROOT / beside)
    monkeypatch.chdir(tmp_path)
    words = shlex.split(re.split(r" [|>;&]", line.partition(": ")[2])[0], comments=True)[1:]
    command = cli.get_command(cli.make_context("occ", ["targets"]), words[0])
    assert command is not None
    with command.make_context(words[0], words[1:]):  # refuses unknown options and values
        pass


def test_every_page_with_code_names_what_runs_it():
    pages = {p.name for p in PAGES if any(language in CODE for language, _ in blocks(p))}
    assert pages == set(RUN_BY)
    for page, test in RUN_BY.items():
        assert page in (ROOT / "tests" / test).read_text(), test


def run(code: str, folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def python_of(page: str) -> str:
    return "".join(text for language, text in blocks(ROOT / "docs" / page) if language == "python")


@pytest.mark.toolchain
def test_the_first_page(tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    assert run(python_of("index.md"), tmp_path) == "3\n"


@pytest.mark.toolchain
def test_the_page_on_onnxruntime(tmp_path):
    pytest.importorskip("onnxruntime")
    onnx.save(mlp(), tmp_path / "model.onnx")
    again = "\nprint(session.get_providers()[0], len(occ.onnxruntime.claimed()))"
    assert run(python_of("onnxruntime.md") + again, tmp_path).split()[0] == "OccExecutionProvider"
