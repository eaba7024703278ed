"""Words: the first line of a docstring has at most 20, and names have the field's.

An expression in backquotes counts as one word.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
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


# Words that say nothing to a reader of compilers, with what the field says.
BANNED = {
    "apart": "split, distinct, disjoint",
    "alike": "equal, isomorphic",
    "asked": "requested, request",
    "few": "skinny (of a matrix), small",
    "finds": "defines, computes",
    "foresees": "prefetches",
    "found": "result, match, candidate",
    "gives": "returns, yields",
    "lies": "is",
    "stumbles": "fails",
    "tell": "report, set, define",
    "tells": "reports, defines",
    "together": "batched, fused, interleaved",
    "told": "defined, reported",
    "turns": "iterations, rounds, double buffers",
    "untold": "undefined",
}


def public_names() -> Iterator[tuple[str, str]]:
    """Where each public name is, and the name: files, classes, and functions of modules and of classes."""
    for path in sources():
        yield str(path.relative_to(ROOT)), path.stem if path.stem != "__init__" else path.parent.name
        todo: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
        while todo:
            for node in getattr(todo.pop(), "body", []):
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_":
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node.name
                    todo += [node] if isinstance(node, ast.ClassDef) else []


def test_names_have_the_words_of_the_field():
    wrong = [
        f"{at}: `{name}` has the word `{word}`: say {BANNED[word]}"
        for at, name in public_names()
        for word in re.sub("([A-Z])", r"_\1", name).lower().split("_")
        if word in BANNED
    ]
    assert wrong == []


# Turns of phrase that native readers stumble over, with what to write, and how many docstrings and comments have them still.
# Counts may fall, and are then to be lowered here.
PHRASES = {
    r"gives?\b": ("returns, yields, produces", 26),
    r"besides\b": ("also, in addition to", 4),
    r"told\b": ("given, known, reported", 6),
    r"tells?\b": ("reports, defines", 9),
    r"asked\b": ("requested, tried", 6),
    r"lies?\b": ("is", 3),
    r"(that|those) of\b": ("X's", 118),
    r"in (the )?place of\b": ("instead of", 4),
    r"hangs? on\b": ("depends on", 0),
    r"so many\b": ("a name for the number", 3),
    r"the most that\b": ("the upper bound of", 0),
    r"surely\b": ("certainly, provably", 0),
    r"as they come\b": ("in order, as generated", 1),
    r"what is (there|left|wrong|new)\b": ("a noun", 4),
}


def prose() -> Iterator[tuple[str, str]]:
    """Where each docstring and comment of the sources is, and its text."""
    for path in sources():
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", ast.get_docstring(node) or ""
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield f"{path.relative_to(ROOT)}:{token.start[0]}", token.string


def test_turns_of_phrase_do_not_come_back():
    texts = [(at, re.sub("`[^`]*`", "", text)) for at, text in prose()]
    for phrase, (better, most) in PHRASES.items():
        found = [f"{at}: ..{m[0]}.." for at, text in texts for m in re.finditer(rf"\b{phrase}", text, re.IGNORECASE)]
        assert len(found) <= most, f"say {better}:\n" + "\n".join(found)
