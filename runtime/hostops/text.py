"""String operators."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from occ.runtime.hostops.attribute_cache import once


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


def _pattern(text: str) -> re.Pattern[str]:
    r"""An expression of RE2, whose `\w`, `\d`, `\s` and `\b` know ASCII alone.

    Raises:
        ValueError: it is invalid, or Python's `re` would interpret it differently.
    """
    if "[:" in text:
        raise ValueError(f"the pattern {text!r} has a class such as `[:alpha:]`: write its ranges, `a-zA-Z`")
    if not text.isascii() and re.search(r"\(\?[a-zA-Z]*i", text):
        raise ValueError(f"the pattern {text!r} ignores the case of letters beyond ASCII: write both")
    try:
        return re.compile(text, re.ASCII)
    except re.error as e:
        raise ValueError(f"the pattern {text!r} is not a regular expression: {e}") from None


def regex_full_match(x: np.ndarray, *, a: SimpleNamespace) -> np.ndarray:
    pattern = once(a, "pattern", lambda: _pattern(a.pattern))
    return np.array([pattern.fullmatch(_text(s)) is not None for s in x.reshape(-1)], np.bool_).reshape(x.shape)


def tokenizer(x: np.ndarray, *, a: SimpleNamespace) -> np.ndarray:
    """Tokens of at least `mincharnum` characters, [*shape of x, max tokens]; `mark` adds characters 2 and 3 around."""
    cut = once(a, "cutter", lambda: _cutter(a))
    rows = [cut(_text(s)) for s in x.reshape(-1)]
    width = max(map(len, rows), default=0)
    if a.mark and width:
        rows, width = [["\x02", *row, "\x03"] for row in rows], width + 2
    padded = [t for row in rows for t in [*row, *[a.pad_value] * (width - len(row))]]
    return _strings(padded, (*x.shape, width))


def _cutter(a: SimpleNamespace) -> Callable[[str], list[str]]:
    """The function that splits a string into tokens."""

    def long_enough(tokens: Iterable[str]) -> list[str]:
        return [t for t in tokens if len(t) >= a.mincharnum]

    if a.tokenexp is not None:
        token = _pattern(a.tokenexp)
        return lambda s: long_enough(m.group() for m in token.finditer(s))
    if list(a.separators) == [""]:
        return list
    between = [_pattern(p) for p in a.separators]

    def cut(s: str) -> list[str]:
        pieces = [s]
        for p in between:
            pieces = long_enough(t for piece in pieces for t in _between(p, piece))
        return pieces

    return cut


def _between(separator: re.Pattern[str], s: str) -> Iterable[str]:
    start = 0
    while start <= len(s) and (m := separator.search(s, start)):
        yield s[start : m.start()]
        start = max(m.end(), m.start() + 1)  # an empty one consumes a character, as in onnxruntime
    yield s[start:]


def string_normalizer(x: np.ndarray, *, a: SimpleNamespace) -> np.ndarray:
    """Strings, str[n] or str[1, n]; if nothing is left, one empty string."""
    change = {"LOWER": str.lower, "UPPER": str.upper}.get(a.case_change_action, str)
    fold = str if a.is_case_sensitive else str.lower
    stop = once(a, "stopwords", lambda: {fold(w) for w in a.stopwords or ()})
    kept = [change(s) for s in map(_text, x.reshape(-1)) if fold(s) not in stop]
    if not kept and a.stopwords:
        kept = [""]
    return _strings(kept, (len(kept),) if x.ndim == 1 else (1, len(kept)))


def tf_idf(x: np.ndarray, *, a: SimpleNamespace) -> np.ndarray:
    """Counts (TF), presence (IDF) or weighted counts (TFIDF) of n-grams with up to `max_skip_count` gaps."""
    grams, columns, weights = once(a, "grams", lambda: _vocabulary(a))
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    counts = np.zeros((len(rows), columns), np.float32)
    for r, row in enumerate(rows):
        tokens = [_text(t) for t in row] if row.dtype == object else row.tolist()
        for k in _found(tokens, grams, a):
            counts[r, a.ngram_indexes[k]] += 1
    if weights is not None:
        counts = ((counts > 0) if a.mode == "IDF" else counts) * weights
    return counts[0] if x.ndim == 1 else counts


def _vocabulary(a: SimpleNamespace) -> tuple[dict[tuple[Any, ...], int], int, np.ndarray | None]:
    """The n-grams, the number of result columns, and the weight of each unless counts are requested."""
    grams = _grams(a.pool_strings if a.pool_strings else a.pool_int64s, a.ngram_counts)
    columns = max(a.ngram_indexes, default=-1) + 1
    if a.mode == "TF":
        return grams, columns, None
    weights = np.ones(columns, np.float32)
    if a.weights:
        weights[list(a.ngram_indexes)] = a.weights
    return grams, columns, weights


def _grams(pool: Sequence[Any], starts: Sequence[int]) -> dict[tuple[Any, ...], int]:
    """n-gram -> its index, in the order of the pool."""
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


ROUTINES: dict[str, Callable[..., Any]] = {
    "StringConcat": string_concat, "StringSplit": string_split, "RegexFullMatch": regex_full_match,
    "StringNormalizer": string_normalizer, "TfIdfVectorizer": tf_idf, "Tokenizer": tokenizer,
}  # fmt: skip
