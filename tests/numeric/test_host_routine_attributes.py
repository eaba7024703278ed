"""Host routines make what follows from their attributes once, not in each run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from occ.runtime.hostops import routines


class Counted(list[Any]):
    """A list that counts how often it is read."""

    times = 0

    def __iter__(self) -> Any:
        self.times += 1
        return super().__iter__()

    def __getitem__(self, at: Any) -> Any:
        self.times += 1
        return super().__getitem__(at)


WORDS = np.array(["a", "b", "b", "c"], object)
CASES = {
    "TfIdfVectorizer": ("pool_strings", {
        "mode": "TFIDF", "min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0, "ngram_counts": [0],
        "ngram_indexes": [2, 0], "pool_int64s": None, "weights": [0.5, 2.0]}, ["a", "b"], [4.0, 0.0, 0.5]),
    "StringNormalizer": ("stopwords", {"case_change_action": "UPPER", "is_case_sensitive": 1}, ["b"], ["A", "C"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_attributes_are_read_once(name: str) -> None:
    counted, attributes, given, want = CASES[name]
    read = Counted(given)
    a = SimpleNamespace(**attributes, **{counted: read}, n_results=1)
    times: list[int] = []
    for _ in range(3):
        np.testing.assert_array_equal(routines()[name](WORDS, a=a), want)
        times.append(read.times)
    assert times[0] == times[-1] > 0
