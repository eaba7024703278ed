"""Traversal and substitution of te expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter, is_
from typing import Any

from occ.compiler.ir.te.expr import (
    Binary,
    Bitcast,
    Call,
    Carried,
    Cast,
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    Select,
    Size,
    binary,
    call,
    cast,
    where,
)

_CHILDREN: dict[type[Expr], Callable[[Any], tuple[Expr, ...]]] = {
    Const: lambda _: (),
    Index: lambda _: (),
    Size: lambda _: (),
    Carried: lambda _: (),
    Load: attrgetter("index"),
    Binary: attrgetter("lhs", "rhs"),
    Call: attrgetter("args"),
    Select: attrgetter("cond", "then", "other"),
    Cast: lambda e: (e.arg,),
    Bitcast: lambda e: (e.arg,),
    Reduce: lambda e: (e.body,),
}  # a table, because walks dominate the time of te passes


def children(e: Expr) -> tuple[Expr, ...]:
    """Direct sub-expressions."""
    return _CHILDREN[type(e)](e)


def with_children(e: Expr, new: tuple[Expr, ...]) -> Expr:
    """A copy of the node with other sub-expressions, simplified by the constructors."""
    match e:
        case Load():
            return Load(e.source, new, e.dtype)
        case Binary():
            return binary(e.op, *new)
        case Call():
            return call(e.fn, *new)
        case Select():
            return where(*new)
        case Cast():
            return cast(e.dtype, new[0])
        case Bitcast():
            return Bitcast(new[0], e.dtype)
        case Reduce():
            return Reduce(e.kind, e.axes, new[0], e.dtype)
        case _:
            return e


def walk(e: Expr) -> Iterator[Expr]:
    """Each distinct node once, children before parents."""
    if type(e) in _LEAVES:
        return iter((e,))
    found = _walked.get(id(e))
    if found is None:
        if len(_walked) >= _MOST_WALKED:
            _walked.clear()
        found = _walked[id(e)] = _nodes(e)  # the last of them is `e`, so its id stays in use
    return iter(found)


_LEAVES = frozenset((Const, Index, Size, Carried))
_MOST_WALKED = 4096
_walked: dict[int, list[Expr]] = {}  # id of a root -> its nodes: passes walk the same expressions repeatedly


def _nodes(e: Expr) -> list[Expr]:
    made: list[Expr] = []
    seen: set[int] = set()
    done: set[int] = set()
    stack = [e]
    while stack:
        node = stack[-1]
        if id(node) not in seen:
            seen.add(id(node))
            below = _CHILDREN[type(node)](node)
            if below:
                stack.extend(reversed(below))
                continue
        stack.pop()
        if id(node) not in done:
            done.add(id(node))
            made.append(node)
    return made


def transform(e: Expr, fn: Callable[[Expr], Expr | None]) -> Expr:
    """Bottom-up replacement: `fn` sees each node with rewritten children and returns its replacement or None.

    A node that becomes one of its rewritten children, as `x + r` does if `r` becomes 0, is not rewritten again.
    """
    memo: dict[int, Expr] = {}
    rewritten: set[int] = set()
    for node in walk(e):
        old = children(node)
        new = tuple([memo[id(c)] for c in old])
        built = node if all(map(is_, new, old)) else with_children(node, new)
        replacement = None if built is not node and id(built) in rewritten else fn(built)
        memo[id(node)] = made = built if replacement is None else replacement
        rewritten.add(id(made))
    return memo[id(e)]


def replace_indices(e: Expr, values: dict[str, Expr]) -> Expr:
    """Substitute axis positions by expressions."""
    return transform(e, lambda n: values.get(n.name) if isinstance(n, Index) else None)
