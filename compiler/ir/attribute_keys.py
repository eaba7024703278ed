"""Attributes as keys: hashable and comparable, also those with millions of elements."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from functools import lru_cache
from typing import Any, Generic, TypeVar

import numpy as np

T = TypeVar("T")
_PLAIN = frozenset((int, float, str, bool))
_LARGE = 256  # elements of a tuple from which its hash is cached: trees and vocabularies have millions


class Identity(Generic[T]):
    """An object that is compared by identity, as a key of cached results."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and other.value is self.value  # pyright: ignore[reportUnknownMemberType]


def is_plain(values: tuple[Any, ...]) -> bool:
    """Whether a tuple holds only numbers and texts."""
    return _has_plain(Identity(values)) if len(values) >= _LARGE else _PLAIN.issuperset(map(type, values))


@lru_cache(maxsize=16)  # of the last few, which this keeps alive
def _has_plain(large: Identity[tuple[Any, ...]]) -> bool:
    return _PLAIN.issuperset(map(type, large.value))


@lru_cache(maxsize=16)
def _digest(large: Identity[tuple[Any, ...]]) -> Hashable:
    text = repr(large.value).encode("utf-8", "surrogatepass")
    return len(large.value), hashlib.sha256(text).hexdigest()


def frozen(value: Any) -> Hashable:
    """An attribute in a hashable, comparable form; different types stay different."""
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, tuple):
        if not is_plain(value):
            return tuple(frozen(v) for v in value)
        return _digest(Identity(value)) if len(value) >= _LARGE else repr(value)
    return (type(value).__name__, repr(value))
