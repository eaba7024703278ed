"""Dataclasses from JSON, by their type hints."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


@cache
def _hints(kind: type) -> dict[str, Any]:
    """Types of the fields of a dataclass; finding them out takes as long as decoding ten records."""
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind)}


def decode(kind: Any, value: Any) -> Any:
    """Rebuild dataclasses from JSON by their type hints; unknown and ill-typed fields are errors."""
    if is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, dict):
            raise TypeError(f"{kind.__name__} is not an object")
        hints = _hints(kind)
        if unknown := set(value) - set(hints):
            raise ValueError(f"{kind.__name__} has the unknown fields {sorted(unknown)}")
        return kind(**{k: decode(hints[k], v) for k, v in value.items()})
    origin, parts = get_origin(kind), get_args(kind)
    if origin is list:
        if not isinstance(value, list):
            raise TypeError(f"{value!r} is not a list")
        return [decode(parts[0], v) for v in value]
    if origin is dict:
        if not isinstance(value, dict):
            raise TypeError(f"{value!r} is not an object")
        return value if parts[1] is Any else {k: decode(parts[1], v) for k, v in value.items()}
    if origin in (Union, UnionType):  # of a type and None
        return None if value is None else decode(parts[0], value)
    if kind in (int, str, bool) and type(value) is not kind:
        raise TypeError(f"{value!r} is not {kind.__name__}")
    return value
