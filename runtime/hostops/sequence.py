"""Sequences, as lists, and optionals, as None or the value."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np


def _position(position: np.ndarray | None, length: int, *, insert: bool = False) -> int:
    """A position counted from the front; for an insertion the end is valid too.

    Raises:
        IndexError: it is outside of the sequence.
    """
    if position is None:
        return length if insert else length - 1
    k = int(np.asarray(position).reshape(()))
    if not -length <= k < length + insert:
        raise IndexError(f"position {k} is outside of a sequence of {length}")
    return k + length if k < 0 else k


def sequence_empty(*, a: SimpleNamespace) -> list[Any]:
    return [[]]


def sequence_construct(*values: Any, a: SimpleNamespace) -> list[Any]:
    return [list(values)]


def sequence_insert(
    sequence: list[Any], value: Any, position: np.ndarray | None = None, *, a: SimpleNamespace
) -> list[Any]:
    k = _position(position, len(sequence), insert=True)
    return [[*sequence[:k], value, *sequence[k:]]]


def sequence_erase(sequence: list[Any], position: np.ndarray | None = None, *, a: SimpleNamespace) -> list[Any]:
    k = _position(position, len(sequence))
    return [[*sequence[:k], *sequence[k + 1 :]]]


def sequence_at(sequence: list[Any], position: np.ndarray, *, a: SimpleNamespace) -> Any:
    return sequence[_position(position, len(sequence))]


def sequence_length(sequence: list[Any], *, a: SimpleNamespace) -> np.ndarray:
    return np.array(len(sequence), np.int64)


def concat_from_sequence(sequence: list[Any], *, a: SimpleNamespace) -> np.ndarray:
    if not sequence:
        raise ValueError("an empty sequence cannot be concatenated")
    return np.stack(sequence, a.axis) if a.new_axis else np.concatenate(sequence, a.axis)


def split_to_sequence(x: np.ndarray, split: np.ndarray | None = None, *, a: SimpleNamespace) -> list[Any]:
    """Pieces of one size (the last may be smaller), of given sizes, or of extent 1.

    The last with or without the axis.
    """
    length = x.shape[a.axis]
    if split is None:
        pieces = np.split(x, length, a.axis) if length else []
        return [pieces if a.keepdims else [np.squeeze(p, a.axis) for p in pieces]]
    if split.ndim == 0:
        if int(split) <= 0:
            raise ValueError(f"pieces of {int(split)} elements")
        cuts = list(range(int(split), length, int(split)))
    else:
        if split.sum() != length or (split < 0).any():
            raise ValueError(f"pieces of {split.tolist()} elements do not make an axis of {length}")
        cuts = np.cumsum(split)[:-1].tolist()
    return [list(np.split(x, cuts, a.axis))]


def optional(x: Any = None, *, a: SimpleNamespace) -> list[Any]:
    return [x]


def optional_get_element(x: Any, *, a: SimpleNamespace) -> list[Any]:
    if x is None:
        raise ValueError("the optional has no element")
    return [x]


def optional_has_element(x: Any = None, *, a: SimpleNamespace) -> np.ndarray:
    return np.array(x is not None)


def _one(routine: Callable[..., list[Any]]) -> Callable[..., tuple[Any, ...]]:
    """A routine that returns one value, which may itself be a list."""
    return lambda *operands, a: tuple(routine(*operands, a=a))


ROUTINES: dict[str, Callable[..., Any]] = {
    "SequenceEmpty": _one(sequence_empty), "SequenceConstruct": _one(sequence_construct),
    "SequenceInsert": _one(sequence_insert), "SequenceErase": _one(sequence_erase),
    "SequenceAt": lambda *operands, a: (sequence_at(*operands, a=a),), "SequenceLength": sequence_length,
    "ConcatFromSequence": concat_from_sequence, "SplitToSequence": _one(split_to_sequence), "Optional": _one(optional),
    "OptionalGetElement": _one(optional_get_element), "OptionalHasElement": optional_has_element,
}  # fmt: skip
