"""Every step of docs/tutorial.md, in order, with the network that it names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_guides import blocks, run, shown, steps

PAGE = (Path(__file__).parents[2] / "docs/tutorial.md").read_text()
pytestmark = [pytest.mark.slow, pytest.mark.toolchain]


def test_every_step_works_and_prints_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("PIL", reason="Pillow draws the picture")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    code = ""
    for language, text in blocks(PAGE):
        if language == "python":
            code += text
            done = subprocess.run(
                [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
        elif language == "c":
            (tmp_path / "main.c").write_text(text)
        else:
            assert language == "console"
            for command, expected in steps(text):
                if command.startswith("python -m pip download"):
                    fetch(command, tmp_path)
                    continue
                status, output = run(command.replace("python ", f"{sys.executable} ", 1), tmp_path)
                assert status == 0, f"{command}\n{output}"
                assert shown(expected, output), f"{command}\nshown: {expected}\nprinted: {output}"


def fetch(command: str, folder: Path) -> None:
    words = [sys.executable, *command.split()[1:]]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("the network of the tutorial cannot be fetched")
