"""Every snippet of the guides is run, in order, in a folder of its own; what the guides show is what comes out."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDES = ("guide-fusion.md", "guide-operator.md", "guide-target.md", "tour.md")


_PIP = "--no-build-isolation --no-deps --target"  # into the folder of the guide, without a network


def blocks(text: str) -> list[tuple[str, str]]:
    """Fenced blocks: (language, contents)."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S)


def steps(session: str) -> list[tuple[str, str]]:
    """(command, what it prints) of a console block."""
    parts = re.split(r"^\$ (.*)\n", session, flags=re.M)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def shown(expected: str, output: str) -> bool:
    """Whether an output is what a guide shows, `...` standing for anything."""
    pieces = [re.escape(p) for p in expected.strip("\n").split("...")]
    return re.search(".*?".join(pieces), output, re.S) is not None


def run(command: str, folder: Path) -> tuple[int, str]:
    tools = folder / "bin"
    if not tools.exists():
        tools.mkdir()
        for name, text in (
            ("occ", f'exec "{sys.executable}" -m occ.cli "$@"'),
            ("python", f'exec "{sys.executable}" "$@"'),
            ("pip", f'exec "{sys.executable}" -m pip -q --disable-pip-version-check "$@" {_PIP} "{folder}/site"'),
        ):
            (tools / name).write_text(f"#!/bin/sh\n{text}\n")
            (tools / name).chmod(0o755)
    paths = [str(folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = dict(os.environ, PATH=f"{tools}:{os.environ['PATH']}", PYTHONPATH=os.pathsep.join(paths))
    done = subprocess.run(
        ["sh", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_works_from_start_to_end(guide: str, tmp_path: Path) -> None:
    ran = 0
    for language, text in blocks((ROOT / "docs" / guide).read_text()):
        if language in ("python", "c", "toml"):
            name = re.match(r"(?:#|//) file: (\S+)\n", text)
            assert name, f"a snippet without a file name:\n{text}"
            (tmp_path / name[1]).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name[1]).write_text(text)
        elif language == "console":
            for command, expected in steps(text):
                code, output = run(command, tmp_path)
                assert code == 0, f"$ {command}\n{output}"
                assert shown(expected, output), f"$ {command}\n{output}\nis not\n{expected}"
                ran += 1
    assert ran >= 3


def test_the_guide_to_targets_shows_the_plugin_of_the_tests() -> None:
    shown_files = {
        name: text
        for language, block in blocks((ROOT / "docs/guide-target.md").read_text())
        for name, text in re.findall(r"\A# file: (\S+)\n(.*)\Z", block, re.S)
        if (ROOT / "tests/plugin" / name).exists()
    }
    plugin = ROOT / "tests/plugin"
    files = [*plugin.glob("*.toml"), *plugin.glob("occ_toy/*.py")]
    assert {name: text.strip() for name, text in shown_files.items()} == {
        f.relative_to(plugin).as_posix(): f.read_text().strip() for f in files
    }


def test_the_rule_of_the_guide_is_short() -> None:
    rule = next(t for _, t in blocks((ROOT / "docs/guide-fusion.md").read_text()) if t.startswith("# file: rules.py"))
    assert len(rule.splitlines()) <= 20
