"""Traversal and substitution of te expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter, is_
from typing import Any, NamedTuple, TypeVar

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

N = TypeVar("N", bound=Expr)

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


_REBUILT: dict[type[Expr], Callable[[Any, tuple[Expr, ...]], Expr]] = {
    Load: lambda e, new: Load(e.source, new, e.dtype),
    Binary: lambda e, new: binary(e.op, *new),
    Call: lambda e, new: call(e.fn, *new),
    Select: lambda _, new: where(*new),
    Cast: lambda e, new: cast(e.dtype, new[0]),
    Bitcast: lambda e, new: Bitcast(new[0], e.dtype),
    Reduce: lambda e, new: Reduce(e.kind, e.axes, new[0], e.dtype),
}


def with_children(e: Expr, new: tuple[Expr, ...]) -> Expr:
    """A copy of the node with other sub-expressions, simplified by the constructors; a leaf itself."""
    return _REBUILT[type(e)](e, new) if new else e


def walk(e: Expr) -> Iterator[Expr]:
    """Each distinct node once, children before parents."""
    if type(e) in _LEAVES:
        return iter((e,))
    return iter(_walk_of(e).nodes)


def of_kind(kind: type[N], e: Expr) -> list[N]:
    """The distinct nodes of a class, in the order of `walk`; the list is shared, not to be changed."""
    if type(e) in _LEAVES:
        return [e] if type(e) is kind else []
    known = _walk_of(e)
    found = known.kinds.get(kind)
    if found is None:
        found = known.kinds[kind] = [n for n in known.nodes if type(n) is kind]
    return found


class _Walk(NamedTuple):
    """The nodes of an expression, which is the last of them; `kinds` lists the nodes of some classes."""

    nodes: list[Expr]
    kinds: dict[type[Expr], list[Any]]


def _walk_of(e: Expr) -> _Walk:
    found = _walked.get(id(e))
    if found is None:
        if len(_walked) >= _MOST_WALKED:
            _walked.clear()
        found = _walked[id(e)] = _Walk(_nodes(e), {})  # which keeps `e`, so its id stays in use
    return found


_LEAVES = frozenset((Const, Index, Size, Carried))
_MOST_WALKED = 4096
_walked: dict[int, _Walk] = {}  # by the id of a root: passes walk the same expressions repeatedly


def _nodes(e: Expr) -> list[Expr]:
    made: list[Expr] = []
    seen: set[int] = set()
    done: set[int] = set()
    stack = [e]
    while stack:
        node = stack[-1]
        name = id(node)
        if name not in seen:
            seen.add(name)
            below = _CHILDREN[type(node)](node)
            if below:
                stack.extend(reversed(below))
                continue
        stack.pop()
        if name not in done:
            done.add(name)
            made.append(node)
    return made


def transform(e: Expr, fn: Callable[[Expr], Expr | None]) -> Expr:
    """Bottom-up replacement: `fn` sees each node with rewritten children and returns its replacement or None.

    A node that becomes one of its rewritten children, as `x + r` does if `r` becomes 0, is not rewritten again.
    """
    changed: dict[int, Expr] = {}  # by the id of a node, where it became another one
    rewritten: set[int] = set()
    for node in walk(e):
        built = node
        if changed:
            old = _CHILDREN[type(node)](node)
            new = [changed.get(id(c), c) for c in old]
            if not all(map(is_, new, old)):
                built = with_children(node, tuple(new))
        made = None if built is not node and id(built) in rewritten else fn(built)
        if made is None:
            made = built
        if made is not node:
            changed[id(node)] = made
        rewritten.add(id(made))
    return changed.get(id(e), e)


# What nodes with the same children differ in; leaves are equal as they are.
_OWN: dict[type[Expr], Callable[[Any], Any]] = {
    Load: attrgetter("source", "dtype"),
    Binary: attrgetter("op"),
    Call: attrgetter("fn"),
    Select: lambda _: None,
    Cast: attrgetter("dtype"),
    Bitcast: attrgetter("dtype"),
    Reduce: attrgetter("kind", "axes", "dtype"),
}


def with_shared_parts(e: Expr) -> Expr:
    """The expression with equal parts as one node, as in `x * sigmoid(x)`, whose `x` text and rewrites write twice."""
    known: dict[Any, Expr] = {}  # by class, children and the rest: a structural hash visits all below

    def visit(n: Expr) -> Expr:
        own = n if type(n) in _LEAVES else _OWN[type(n)](n)
        return known.setdefault((type(n), own, *map(id, children(n))), n)

    return transform(e, visit)


def replace_indices(e: Expr, values: dict[str, Expr]) -> Expr:
    """Substitute axis positions by expressions."""
    return transform(e, lambda n: values.get(n.name) if isinstance(n, Index) else None)
