"""The first line of a docstring is short: at most 20 words, an expression in backquotes counting as one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST = 20


def sources() -> Iterator[Path]:
    for top in ("compiler", "occ", "runtime"):
        yield from (p for p in sorted((ROOT / top).rglob("*.py")) if not any(q.is_symlink() for q in p.parents))


def first_lines() -> Iterator[tuple[str, str]]:
    """Where each docstring is, and its first line."""
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", text.splitlines()[0]


def test_first_lines_are_short():
    long = [f"{at}: {line}" for at, line in first_lines() if len(re.sub("`[^`]*`", "code", line).split()) > MOST]
    assert long == []
