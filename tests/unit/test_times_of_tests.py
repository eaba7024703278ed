"""No test depends on a time shorter than a minute of wall clock: on a busy machine all takes long."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LEAST = 60  # seconds
# Calls that wait, and stop after the seconds of their first argument.
WAITS = {"wait", "join", "result", "communicate", "alarm", "settimeout"}
CLOCKS = {"perf_counter", "monotonic", "time"}


def short_times(tree: ast.AST) -> Iterator[ast.AST]:
    """Calls that stop after less than that, and comparisons of less than that with what a clock says.

    What is not awaited on purpose, as in `assert not event.wait(0.1)`, is none.
    """
    negated = {id(n.operand) for n in ast.walk(tree) if isinstance(n, ast.UnaryOp) and isinstance(n.op, ast.Not)}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=name), args=[first, *_]) if name in WAITS and id(node) not in negated:
                found = [first]
            case ast.Compare(left=left, comparators=[limit]) if _reads_clock(left):
                found = [limit]
            case _:
                found = []
        if isinstance(node, ast.Call):
            found += [k.value for k in node.keywords if k.arg and k.arg.endswith("timeout")]
        yield from (node for f in found if isinstance(f, ast.Constant) and _is_short(f.value))


def _is_short(value: object) -> bool:
    return isinstance(value, int | float) and 0 < value < LEAST


def _reads_clock(e: ast.AST) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr in CLOCKS for n in ast.walk(e))


def test_none_is_short_of_a_minute() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{getattr(node, 'lineno', 0)}: {ast.unparse(node)}"
        for path in sorted(TESTS.rglob("*.py"))
        for node in short_times(ast.parse(path.read_text("utf-8")))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("process.wait(20)", 1),
        ("run(command, timeout=59.5)", 1),
        ("assert time.perf_counter() - start < 0.5", 1),
        ("assert not entered.wait(0.1)", 0),
        ("thread.join()", 0),
        ("', '.join(names)", 0),
        ("run(command, timeout=60)", 0),
    ],
)
def test_what_is_short(text: str, count: int) -> None:
    assert len(list(short_times(ast.parse(text)))) == count
