"""Rank functions of operators with data-dependent shapes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from occ.compiler.ir.te.function import Tensor

Rank = Callable[..., int | None]


def same(x: Tensor, *_: Tensor | None, a: SimpleNamespace) -> int:
    """The rank of the first operand."""
    return x.rank


def fixed(rank: int) -> Rank:
    """A fixed rank."""
    return lambda *_, a: rank


def length_of(k: int) -> Rank:
    """The rank given by the length of the k-th operand, a vector."""
    return lambda *operands, a: length(operands[k]) if len(operands) > k else None


def length(x: Tensor | None) -> int | None:
    """The length of a vector, if it is constant."""
    if x is None or x.rank > 1:
        return None
    return 1 if x.rank == 0 else x.shape[0] if isinstance(x.shape[0], int) else None


def plus(rank: int, more: int | None) -> int | None:
    """Their sum, if both are known."""
    return None if more is None else rank + more


def without(x: Tensor, axes: Tensor | None) -> int | None:
    """The rank of a tensor without the axes that an operand lists."""
    removed = length(axes)
    return None if removed is None else x.rank - removed
