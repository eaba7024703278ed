"""Every snippet of the guides is run, in order, in a folder of its own; what the guides show is what comes out."""

import os
import re
import shlex
import subprocess
import sys
import traceback
import warnings
from dataclasses import fields
from pathlib import Path

import pytest

import occ.plugin
from occ.cli import main

ROOT = Path(__file__).parents[2]
GUIDES = ("guide-fusion.md", "guide-operator.md", "guide-schedule.md", "guide-target.md", "tour.md")


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
    """Exit code and output of a command. Those of occ run in a child of this process, which has all modules already."""
    words = shlex.split(command)
    if words[0] == "occ" and not (folder / "site").exists() and not set("|&;<>$`") & set(command):
        return _forked(words, folder)
    return _in_shell(command, folder)


def _forked(words: list[str], folder: Path) -> tuple[int, str]:
    output = folder / ".output"
    with output.open("wb") as out, open(os.devnull, "rb") as nothing:
        child = os.fork()
        if child == 0:
            _as_a_process(words, folder, nothing.fileno(), out.fileno())
        _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), output.read_text()


def _as_a_process(words: list[str], folder: Path, given: int, out: int) -> None:
    code = 70
    try:
        os.chdir(folder)
        for here, there in ((given, 0), (out, 1), (out, 2)):
            os.dup2(here, there)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        sys.argv, sys.path[0] = words, ""
        warnings.resetwarnings()
        main()
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _in_shell(command: str, folder: Path) -> tuple[int, str]:
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


def test_the_guide_to_targets_lists_what_nodes_have() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `([\w ]+)` \|", (ROOT / "docs/guide-target.md").read_text(), re.M)
    assert len(rows) >= 14
    for name, attributes in rows:
        assert attributes.split() == [f.name for f in fields(getattr(occ.plugin, name))], name
