"""JSON encoding of the attributes of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from types import SimpleNamespace
from typing import Any

import numpy as np


def encode(value: Any) -> Any:
    """An attribute as JSON data: arrays and tuples get a tag, element types become their names."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return {"float": repr(value)}  # JSON has neither inf nor nan
        case np.ndarray():
            if value.dtype == object:
                return {"strings": [_text(v) for v in value.reshape(-1)], "shape": list(value.shape)}
            return {"array": value.tobytes().hex(), "dtype": value.dtype.name, "shape": list(value.shape)}
        case tuple() | list():
            return _encoded_items(value)
        case _:
            return getattr(value, "name", None)  # an element type by name; only the compiler uses it as a type


def _encoded_items(values: Sequence[Any]) -> Any:
    """Items that are JSON data already, all at once: trees have millions of numbers."""
    kinds = set(map(type, values))
    plain = kinds <= {int, str, bool} or (kinds == {float} and all(map(isfinite, values)))
    return {"list": list(values) if plain else [encode(v) for v in values]}


def decode(value: Any) -> Any:
    """An attribute from JSON data."""
    if not isinstance(value, dict):
        return value
    match value:
        case {"float": text}:
            return float(text)
        case {"strings": texts, "shape": shape}:
            array = np.empty(len(texts), object)
            array[:] = texts
            return array.reshape(shape)
        case {"array": data, "dtype": name, "shape": shape}:
            return np.frombuffer(bytes.fromhex(data), _dtype(name)).reshape(shape)
        case {"list": items}:
            return tuple(decode(v) for v in items) if dict in set(map(type, items)) else tuple(items)
        case _:
            raise ValueError(f"the attribute {value!r} cannot be read")


def encode_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """All attributes of a step."""
    return {k: encode(v) for k, v in attrs.items()}


def decode_attrs(attrs: Mapping[str, Any]) -> SimpleNamespace:
    """All attributes of a step, as fields."""
    return SimpleNamespace(**{k: decode(v) for k, v in attrs.items()})


def _text(value: Any) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def _dtype(name: str) -> np.dtype:
    from occ.runtime.signature import dtype_of_numpy_name

    return dtype_of_numpy_name(name)
