"""Every diagnostic code: a command that causes it, its exit code, and its text, which is next to this file.

`pytest tests/errors --update` writes the texts again; read the difference before you keep it.
"""

from __future__ import annotations

import re
from pathlib import Path

import cases_of_builds  # noqa: F401
import cases_of_models  # noqa: F401
import cases_of_runs  # noqa: F401
import pytest
from scenes import CASES, Scene

from occ.compiler.codes import CODES

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def source(*packages: str) -> str:
    """The text of all modules but the table of codes."""
    files = [p for name in packages for p in (ROOT / name).rglob("*.py")]
    return "\n".join(p.read_text() for p in files if p.name != "codes.py")


def test_every_code_that_is_raised_is_in_the_table():
    assert set(re.findall(r"OCC\d{4}", source("compiler", "runtime", "occ"))) <= set(CODES)


def test_every_code_has_a_test():
    """A case and a text here, or, where it takes more than a command to bring it about, a test that names it."""
    raised = source("compiler", "runtime", "occ")
    others = "\n".join(p.read_text() for p in HERE.parent.rglob("test_*.py") if p.parent != HERE)
    assert [c for c in CODES if c in raised and c not in CASES and c not in others] == []
    assert sorted(p.stem for p in HERE.glob("*.txt")) == sorted(CASES)
    assert set(CASES) <= set(CODES)


def plain(text: str, folder: Path) -> str:
    """A message without what differs from machine to machine."""
    text = text.replace(str(folder), "FOLDER")
    text = re.sub(r"/\S*/(occ-\w+-)\w+", r"TMP/\1X", text)
    text = re.sub(r"\w+\.py:\d+", "FILE.py:LINE", text)
    text = re.sub(r"command: .*", "command: ...", text)
    return re.sub(r"\d\.\d+e-\d+|\d+\.\d{4,}(e[-+]\d+)?", "NUMBER", text)


@pytest.fixture
def fresh_toolchain():
    from occ.compiler.codegen_halide.toolchain import toolchain

    yield
    toolchain.cache_clear()


@pytest.mark.parametrize("code", sorted(CASES))
def test_code(code, tmp_path, monkeypatch, occ_cli, request, fresh_toolchain):
    monkeypatch.chdir(tmp_path)
    args = CASES[code](Scene(tmp_path, monkeypatch))
    ran = occ_cli(*args)
    got = f"exit {ran.code}\n{plain(ran.err, tmp_path)}"
    file = HERE / f"{code}.txt"
    if request.config.getoption("--update"):
        file.write_text(got)
    assert f"error[{code}]: " in ran.err
    assert "Traceback" not in ran.err
    assert got == file.read_text()
    for line in ran.err.splitlines():
        if line.startswith("error["):
            assert not line.endswith("."), "a message has no final period"


@pytest.mark.parametrize("code", sorted(CODES))
def test_explain(code, occ_cli):
    ran = occ_cli("explain", code.lower())
    assert ran.code == 0
    assert ran.out.startswith(f"{code}: {CODES[code].title}\n\n")
    assert CODES[code].explanation.split()[0] in ran.out
