"""LabelEncoder, CategoryMapper and dictionaries of ai.onnx.ml."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import numpy as np

from occ.runtime.hostops.attribute_cache import once

_FEW = 64  # elements up to which a loop is faster than array routines


def _text(x: Any) -> str:
    return x.decode("utf-8", "surrogateescape") if isinstance(x, bytes) else str(x)


def _first(*given: Any) -> Any:
    """The one of several alternative attributes that is present."""
    return next((g for g in given if g is not None), None)


class _Keys:
    """Keys, prepared for searching elements of a type."""

    def __init__(self, keys: Sequence[Any] | np.ndarray, dtype: np.dtype) -> None:
        self._text = dtype.kind in "OUST"
        self._places: dict[Any, int] | None = None
        self._listed = np.asarray(keys, object if self._text else None)
        if not self._text and len(self._listed):
            self._listed = self._listed.astype(dtype)
            self._order = np.argsort(self._listed, kind="stable")
            self._sorted = self._listed[self._order]
        if dtype.kind not in "fc":
            listed = [_text(k) if self._text else k for k in self._listed.tolist()]
            self._places = {k: n for n, k in reversed(list(enumerate(listed)))}

    def find(self, x: np.ndarray) -> np.ndarray:
        """The position of each element in the keys, -1 if it is not there.

        The first of equal keys counts; NaN equals NaN.
        """
        if self._places is not None and (self._text or x.size <= _FEW):
            given = x.reshape(-1).tolist()
            if self._text and set(map(type, given)) != {str}:
                given = list(map(_text, given))
            found = list(map(self._places.get, given, repeat(-1)))
            return np.array(found, np.int64).reshape(x.shape)
        if not len(self._listed):
            return np.full(x.shape, -1, np.int64)
        order = self._order
        at = np.minimum(np.searchsorted(self._sorted, x), len(order) - 1)
        near = self._sorted[at]
        same = (near == x) | ((near != near) & (x != x))
        return np.where(same, order[at], -1)


def _table(values: Sequence[Any] | np.ndarray, default: Any, dtype: np.dtype) -> np.ndarray:
    """The values with the default appended, where position -1 finds it."""
    made = np.empty(len(values) + 1, dtype)
    made[:-1] = [_text(v) for v in values] if dtype.kind == "O" else np.asarray(values)
    made[-1] = _text(default) if dtype.kind == "O" else default
    return made


class _Encoder:
    """Keys and their values; the default is appended, where position -1 finds it."""

    def __init__(self, keys: Sequence[Any] | np.ndarray, values: np.ndarray, given: np.dtype) -> None:
        self._keys, self._values = _Keys(keys, given), values

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self._values[self._keys.find(x)]


def label_encoder(x: np.ndarray, *, a: SimpleNamespace) -> np.ndarray:
    return once(a, ("encoder", x.dtype), lambda: _label_encoder(x.dtype, a))(x)


def _label_encoder(given: np.dtype, a: SimpleNamespace) -> _Encoder:
    classes = getattr(a, "classes_strings", None)
    if classes:
        return _between(given, classes, range(len(classes)), a)
    keys = _first(a.keys_tensor, a.keys_strings, a.keys_int64s, a.keys_floats)
    if keys is None:
        raise ValueError("`LabelEncoder` has no keys")
    for values, dtype in (
        (a.values_tensor, None), (a.values_strings, object), (a.values_int64s, np.int64), (a.values_floats, np.float32),
    ):  # fmt: skip
        if values is None:
            continue
        if dtype is None:
            dtype = object if values.dtype.kind in "OUST" else values.dtype
        if len(keys) != len(values):
            raise ValueError(f"`LabelEncoder` has {len(keys)} keys and {len(values)} values")
        return _Encoder(keys, _table(values, default_label(a, np.dtype(dtype)), np.dtype(dtype)), given)
    raise ValueError("`LabelEncoder` has no values")


def default_label(a: SimpleNamespace, dtype: np.dtype) -> Any:
    """The value of elements that are no key, for values of a type; `default_tensor` comes before the other defaults."""
    if getattr(a, "default_tensor", None) is not None:
        return np.asarray(a.default_tensor).reshape(-1)[0]
    return {"O": a.default_string, "f": a.default_float}.get(dtype.kind, a.default_int64)


def _between(given: np.dtype, strings: Sequence[str], numbers: Sequence[int], a: SimpleNamespace) -> _Encoder:
    """Of equal keys the last counts, as in onnxruntime."""
    strings, numbers = strings[::-1], numbers[::-1]
    if given.kind in "OUST":
        return _Encoder(strings, _table(numbers, a.default_int64, np.dtype(np.int64)), given)
    return _Encoder(np.array(numbers, np.int64), _table(strings, a.default_string, np.dtype(object)), given)


def category_mapper(x: np.ndarray, *, a: SimpleNamespace) -> np.ndarray:
    strings, numbers = a.cats_strings or (), a.cats_int64s or ()
    if len(strings) != len(numbers):
        raise ValueError(f"`CategoryMapper` has {len(strings)} strings and {len(numbers)} numbers")
    return once(a, ("encoder", x.dtype), lambda: _between(x.dtype, strings, numbers, a))(x)


def one_hot_encoder(x: np.ndarray, *, a: SimpleNamespace) -> np.ndarray:
    """Numbers are cut to integers before they are looked up; of equal categories the last counts, as in onnxruntime."""
    categories = a.cats_strings if x.dtype.kind in "OUST" else a.cats_int64s
    if not categories:
        raise ValueError(f"`OneHotEncoder` has no categories for {x.dtype}")
    x = x if x.dtype.kind in "OUST" else x.astype(np.int64)
    back = once(a, ("categories", x.dtype), lambda: _Keys(categories[::-1], x.dtype)).find(x)
    if not a.zeros and (back < 0).any():
        raise ValueError(f"{x[back < 0].reshape(-1)[0]!r} is not a category of `OneHotEncoder`")
    at = np.where(back < 0, -1, len(categories) - 1 - back)
    return (at[..., None] == np.arange(len(categories))).astype(np.float32)


def zip_map(x: np.ndarray, *, a: SimpleNamespace) -> tuple[list[dict[Any, float]]]:
    keys = a.classlabels_strings or a.classlabels_int64s or ()
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    if rows.shape[1] != len(keys):
        raise ValueError(f"`ZipMap` has {len(keys)} classes for {rows.shape[1]} scores")
    return ([dict(zip(keys, row)) for row in rows.tolist()],)  # noqa: B905 - as many, as the shape says


def dict_vectorizer(x: Mapping[Any, Any], *, a: SimpleNamespace) -> np.ndarray:
    words = _first(a.string_vocabulary, a.int64_vocabulary) or ()
    given = np.array(list(x.values()))
    strings = given.dtype.kind == "U"
    dtype = object if strings else given.dtype if len(given) else np.float32
    return np.array([x.get(w, "" if strings else 0) for w in words], dtype).reshape(1, -1)


def cast_map(x: Mapping[int, Any], *, a: SimpleNamespace) -> np.ndarray:
    dtype, convert, missing = {
        "TO_FLOAT": (np.float32, float, 0.0), "TO_INT64": (np.int64, int, 0), "TO_STRING": (object, _string, "0.f"),  # as onnxruntime spells them
    }[a.cast_to]  # fmt: skip
    keys = sorted(x)
    if a.map_form != "SPARSE":
        return np.array([convert(x[k]) for k in keys], dtype).reshape(1, -1)
    if keys and keys[0] < 0:
        raise ValueError(f"`CastMap` has the negative key {keys[0]}")
    made = np.full((1, a.max_map), missing, dtype)
    for k in keys:
        if k < a.max_map:
            made[0, k] = convert(x[k])
    return made


def _string(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:f}"


ROUTINES: dict[str, Callable[..., Any]] = {
    "LabelEncoder": label_encoder, "CategoryMapper": category_mapper, "OneHotEncoder": one_hot_encoder,
    "ZipMap": zip_map,
    "DictVectorizer": dict_vectorizer, "CastMap": cast_map,
}  # fmt: skip
