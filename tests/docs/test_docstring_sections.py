"""Sections of docstrings (Args, Attributes, Raises) are written so that the site of the documentation can read them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from pydoc import ErrorDuringImport, locate
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SECTION = re.compile(r"^(Args|Attributes|Raises):\n((?:    .*\n|\n(?=    ))*)", re.M)
ERRORS = re.compile(r"(?:\w+\.)?[A-Z]\w*(?:, (?:\w+\.)?[A-Z]\w*)*: ")
NAMES = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: \(.*?\))?: ")


def entries(doc: str) -> Iterator[tuple[str, str]]:
    """The lines that begin an entry of a section, each with the name of the section; further lines are indented more."""
    for found in SECTION.finditer(inspect.cleandoc(doc) + "\n"):
        for line in found[2].splitlines():
            if line[4:5] not in ("", " "):
                yield found[1], line[4:]


def faults(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> list[str]:
    wrong = []
    for section, line in entries(ast.get_docstring(node) or ""):
        names = (ERRORS if section == "Raises" else NAMES).match(line)
        if names and section == "Args" and not isinstance(node, ast.ClassDef):
            a = node.args
            known = {p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg) if p}
            names = {n.strip("* ") for n in names[1].split(",")} <= known
        if not names:
            wrong.append(f"{node.name}, {section}: {line[:60]}")
    return wrong


@pytest.mark.parametrize("top", ["compiler", "runtime", "occ"])
def test_an_entry_begins_with_its_name_and_goes_on_indented(top):
    wrong = []
    for path in sorted((ROOT / top).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                wrong += [f"{path.relative_to(ROOT)}: {w}" for w in faults(node)]
    assert wrong == []


def documented() -> Iterator[tuple[str, Any]]:
    """What the pages document by its docstring, with the methods of classes."""
    for page in (ROOT / "docs").rglob("*.md"):
        for name in re.findall(r"^::: ([\w.]+)$", page.read_text(), re.M):
            try:
                found = locate(name)
            except ErrorDuringImport:  # of a library that is not installed
                continue
            yield name, found
            for method, value in vars(found).items() if inspect.isclass(found) else ():
                if inspect.isfunction(value) and not method.startswith("_"):
                    yield f"{name}.{method}", value


def test_an_entry_of_the_site_has_one_name():
    wrong = []
    for name, value in documented():
        doc = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
        wrong += [f"{name}: {line}" for s, line in entries(doc or "") if s == "Args" and re.match(r"\w+, ", line)]
    assert wrong == []
