"""Strings and text features (ONNX operators of the same names)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np


def _strings(values: Iterable[str], shape: Sequence[int]) -> np.ndarray:
    listed = list(values)
    made = np.empty(len(listed), object)
    made[:] = listed
    return made.reshape(shape)


def _text(x: Any) -> str:
    return x.decode("utf-8", "surrogateescape") if isinstance(x, bytes) else str(x)


def string_concat(x: np.ndarray, y: np.ndarray, *, a: SimpleNamespace) -> np.ndarray:
    left, right = np.broadcast_arrays(x, y)
    pairs = zip(left.reshape(-1), right.reshape(-1), strict=True)
    return _strings((_text(p) + _text(q) for p, q in pairs), left.shape)


def string_split(x: np.ndarray, *, a: SimpleNamespace) -> tuple[np.ndarray, np.ndarray]:
    """An empty or absent delimiter means white space; `maxsplit` limits the number of cuts."""
    most = -1 if a.maxsplit is None else a.maxsplit
    pieces = [_text(s).split(a.delimiter or None, most) for s in x.reshape(-1)]
    width = max(map(len, pieces), default=0)
    padded = [p for row in pieces for p in [*row, *[""] * (width - len(row))]]
    counts = np.array([len(row) for row in pieces], np.int64).reshape(x.shape)
    return _strings(padded, (*x.shape, width)), counts


def regex_full_match(x: np.ndarray, *, a: SimpleNamespace) -> np.ndarray:
    try:
        pattern = re.compile(a.pattern)
    except re.error as e:
        raise ValueError(f"the pattern {a.pattern!r} is not a regular expression: {e}") from None
    return np.array([pattern.fullmatch(_text(s)) is not None for s in x.reshape(-1)], np.bool_).reshape(x.shape)


def string_normalizer(x: np.ndarray, *, a: SimpleNamespace) -> np.ndarray:
    """Strings, str[n] or str[1, n]; nothing left gives one empty string."""
    change = {"LOWER": str.lower, "UPPER": str.upper}.get(a.case_change_action, str)
    stop = set(a.stopwords or ())
    fold = str if a.is_case_sensitive else str.lower
    stop = {fold(w) for w in stop}
    kept = [change(s) for s in map(_text, x.reshape(-1)) if fold(s) not in stop]
    if not kept and a.stopwords:
        kept = [""]
    return _strings(kept, (len(kept),) if x.ndim == 1 else (1, len(kept)))


def tf_idf(x: np.ndarray, *, a: SimpleNamespace) -> np.ndarray:
    """Counts (TF), presence (IDF) or weighted counts (TFIDF) of n-grams with up to `max_skip_count` gaps."""
    pool = a.pool_strings if a.pool_strings else a.pool_int64s
    grams = _grams(pool, a.ngram_counts)
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    counts = np.zeros((len(rows), max(a.ngram_indexes, default=-1) + 1), np.float32)
    for r, row in enumerate(rows):
        tokens = [_text(t) for t in row] if row.dtype == object else row.tolist()
        for k in _found(tokens, grams, a):
            counts[r, a.ngram_indexes[k]] += 1
    result = _weighted(counts, a)
    return result[0] if x.ndim == 1 else result


def _grams(pool: Sequence[Any], starts: Sequence[int]) -> dict[tuple[Any, ...], int]:
    """n-gram -> its number, in the order of the pool."""
    found: dict[tuple[Any, ...], int] = {}
    bounds = [*starts, len(pool)]
    number = 0
    for n in range(1, len(starts) + 1):
        for at in range(bounds[n - 1], bounds[n], n):
            found[tuple(pool[at : at + n])] = number
            number += 1
    return found


def _found(tokens: list[Any], grams: dict[tuple[Any, ...], int], a: SimpleNamespace) -> Iterable[int]:
    for n in range(a.min_gram_length, a.max_gram_length + 1):
        for step in range(1, (a.max_skip_count if n > 1 else 0) + 2):
            for start in range(len(tokens) - (n - 1) * step):
                gram = tuple(tokens[start : start + (n - 1) * step + 1 : step])
                if gram in grams:
                    yield grams[gram]


def _weighted(counts: np.ndarray, a: SimpleNamespace) -> np.ndarray:
    if a.mode == "TF":
        return counts
    weights = np.ones(counts.shape[1], np.float32)
    if a.weights:
        weights[list(a.ngram_indexes)] = a.weights
    return ((counts > 0) if a.mode == "IDF" else counts) * weights


ROUTINES: dict[str, Callable[..., Any]] = {
    "StringConcat": string_concat, "StringSplit": string_split, "RegexFullMatch": regex_full_match,
    "StringNormalizer": string_normalizer, "TfIdfVectorizer": tf_idf,
}  # fmt: skip
