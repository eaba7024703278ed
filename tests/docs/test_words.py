"""Words: the first line of a docstring has at most 20, and names have the field's.

An expression in backquotes counts as one word.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

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
    r"gives?\b": ("returns, yields, produces", 20),
    r"besides\b": ("also, in addition to", 3),
    r"told\b": ("given, known, reported", 3),
    r"tells?\b": ("reports, defines", 7),
    r"asked\b": ("requested, tried", 5),
    r"lies?\b": ("is", 0),
    r"(that|those) of\b": ("X's", 124),
    r"in (the )?place of\b": ("instead of", 4),
    r"hangs? on\b": ("depends on", 0),
    r"so many\b": ("a name for the number", 3),
    r"the most that\b": ("the upper bound of", 0),
    r"surely\b": ("certainly, provably", 0),
    r"as they come\b": ("in order, as generated", 1),
    r"what is (there|left|wrong|new)\b": ("a noun", 4),
}


def sources_in_c() -> Iterator[Path]:
    for top in ("compiler", "runtime"):
        yield from (p for s in ("*.h", "*.hpp", "*.c", "*.cpp") for p in sorted((ROOT / top).rglob(s)))


def prose(paths: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Where each docstring and comment is, and its text."""
    for path in paths:
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", ast.get_docstring(node) or ""
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield f"{path.relative_to(ROOT)}:{token.start[0]}", token.string


def found(phrase: str, texts: Iterable[tuple[str, str]]) -> list[str]:
    """Where a phrase is, outside of code in backquotes."""
    plain = [(at, re.sub("`[^`]*`", "", text)) for at, text in texts]
    return [f"{at}: ..{m[0]}.." for at, text in plain for m in re.finditer(rf"\b{phrase}", text, re.IGNORECASE)]


def test_turns_of_phrase_do_not_come_back():
    texts = list(prose(sources()))
    for phrase, (better, most) in PHRASES.items():
        places = found(phrase, texts)
        assert len(places) <= most, f"say {better}:\n" + "\n".join(places)


# The same for tests, tools and benchmarks, and for the pages of the documentation.
ELSEWHERE = {
    "tests, tools, bench, examples": {
        r"gives?\b": 18, r"besides\b": 0, r"told\b": 2, r"asked\b": 5, r"lies?\b": 2, r"in (the )?place of\b": 0,
        r"hangs? on\b": 0, r"so many\b": 2,
    },
    "pages": {
        r"gives?\b": 4, r"besides\b": 0, r"told\b": 0, r"asked\b": 0, r"lies?\b": 0, r"in (the )?place of\b": 0,
        r"hangs? on\b": 0, r"so many\b": 0,
    },
    "comments in C and C++": {
        r"gives?\b": 0, r"besides\b": 0, r"told\b": 0, r"asked\b": 0, r"lies?\b": 0, r"in (the )?place of\b": 0,
        r"hangs? on\b": 0, r"so many\b": 0,
    },
    "texts for users": {
        r"gives?\b": 6, r"besides\b": 0, r"told\b": 0, r"asked\b": 1, r"lies?\b": 1, r"in (the )?place of\b": 0,
        r"hangs? on\b": 0, r"so many\b": 0, r"(is|are) no (?!longer|less|larger|such)": 3,
    },
}  # fmt: skip


def pages() -> Iterator[tuple[str, str]]:
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        blocks = path.read_text("utf-8").split("```")  # code is every second one
        yield path.name, "".join(blocks[::2])


def comments_in_c() -> Iterator[tuple[str, str]]:
    for path in sources_in_c():
        for m in re.finditer(r"//[^\n]*|/\*.*?\*/", path.read_text("utf-8"), re.DOTALL):
            yield str(path.relative_to(ROOT)), m[0]


def texts_for_users() -> Iterator[tuple[str, str]]:
    """Where each text of several words is that is not a docstring: errors, help, options."""
    for path in sources():
        tree = ast.parse(path.read_text("utf-8"))
        docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        for n in ast.walk(tree):
            if (
                isinstance(n, ast.Constant)
                and isinstance(n.value, str)
                and id(n) not in docs
                and " " in n.value.strip()
            ):
                yield (
                    f"{path.relative_to(ROOT)}:{n.lineno}",
                    n.value.replace("here is no", "").replace("here are no", ""),
                )


@pytest.mark.parametrize("area", ELSEWHERE)
def test_turns_of_phrase_stay_out_of(area: str) -> None:
    others = (p for top in ("tests", "tools", "bench", "examples") for p in sorted((ROOT / top).rglob("*.py")))
    texts = {
        "tests, tools, bench, examples": lambda: prose(p for p in others if p != Path(__file__)),
        "pages": pages,
        "comments in C and C++": comments_in_c,
        "texts for users": texts_for_users,
    }
    read = list(texts[area]())
    for phrase, most in ELSEWHERE[area].items():
        places = found(phrase, read)
        assert len(places) <= most, f"say {PHRASES.get(phrase, ('is not a',))[0]}:\n" + "\n".join(places)
