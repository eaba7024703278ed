"""JSON encoding of dataclasses, by their type hints."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

Decoder = Callable[[Any], Any]

encode = json.JSONEncoder(default=vars, ensure_ascii=True, separators=(",", ":"), sort_keys=True).encode
_AT_A_TIME = 64  # elements of a list


def encoded(value: Any) -> Iterator[str]:
    """The encoded text, piece by piece: as a whole it takes 3 MiB for a model with 30 layers."""
    value = vars(value) if is_dataclass(value) else value
    if isinstance(value, list) and len(value) > _AT_A_TIME:
        for k in range(0, len(value), _AT_A_TIME):
            yield ("," if k else "[") + encode(value[k : k + _AT_A_TIME])[1:-1]
        yield "]"
    elif isinstance(value, dict) and value:
        for k, name in enumerate(sorted(value)):
            yield ("," if k else "{") + encode(name) + ":"
            yield from encoded(value[name])
        yield "}"
    else:
        yield encode(value)


def decode(kind: Any, value: Any) -> Any:
    """Rebuild dataclasses from JSON by their type hints; unknown and ill-typed fields are errors.

    The lists of `value` are emptied: a language model's manifest is megabytes of small objects, which should not exist
    twice.

    Raises:
        TypeError: a value has another type than its field.
        ValueError: a record has a field that its dataclass lacks.
    """
    return _decoder(kind)(value)


@cache
def _decoder(kind: Any) -> Decoder:
    """The decoder of a type, cached, since inspecting the type takes longest."""
    if is_dataclass(kind) and isinstance(kind, type):
        return _record(kind)
    origin, parts = get_origin(kind), get_args(kind)
    if origin is list:
        return _list(_decoder(parts[0]))
    if origin is dict:
        return _dict(parts[1])
    if origin in (Union, UnionType):  # of a type and None
        some = _decoder(parts[0])
        return lambda value: None if value is None else some(value)
    if kind is str:
        return _take_text
    return _exactly(kind) if kind in (int, bool) else lambda value: value


@cache
def _fields(kind: type) -> dict[str, Decoder]:
    hints = get_type_hints(kind)
    return {f.name: _decoder(hints[f.name]) for f in fields(kind)}


def _record(kind: type) -> Decoder:
    def take(value: Any) -> Any:
        if not isinstance(value, dict):
            raise TypeError(f"{kind.__name__} is not an object")
        known = _fields(kind)  # here, and not above: a dataclass may contain its own type
        if unknown := value.keys() - known.keys():
            raise ValueError(f"{kind.__name__} has the unknown fields {sorted(unknown)}")
        return kind(**{k: known[k](v) for k, v in value.items()})

    return take


def _list(part: Decoder) -> Decoder:
    def take(value: Any) -> Any:
        if not isinstance(value, list):
            raise TypeError(f"{value!r} is not a list")
        value.reverse()
        return [part(value.pop()) for _ in range(len(value))]  # the result reuses the memory of its source

    return take


def _dict(kind: Any) -> Decoder:
    part = None if kind is Any else _decoder(kind)

    def take(value: Any) -> Any:
        if not isinstance(value, dict):
            raise TypeError(f"{value!r} is not an object")
        return value if part is None else {k: part(v) for k, v in value.items()}

    return take


def _exactly(kind: type) -> Decoder:
    def take(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"{value!r} is not {kind.__name__}")
        return value

    return take


def _take_text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{value!r} is not str")
    return sys.intern(value)  # there are many names of kernels and types, but few distinct ones
