"""TfIdfVectorizer: n-grams as onnxruntime counts them, and attributes that list none are refused with the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from building import onnxruntime_of
from onnx import helper

import occ

X = np.array([[0, 1, 0, 2, 3], [3, 3, 1, 0, 1]])
VALID: dict[str, Any] = {
    "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 1, "mode": "TFIDF", "ngram_counts": [0, 3],
    "ngram_indexes": [4, 1, 2, 3, 0], "pool_int64s": [0, 1, 2, 0, 1, 2, 3], "weights": [1.0, 2.0, 0.5, 0.3, 4.0],
}  # fmt: skip
WRONG = {
    "fewer indices": ({"ngram_indexes": [0, 1, 2, 3]}, "`ngram_indexes` has 4 indices from 0 on for 5 n-grams"),
    "negative": ({"ngram_indexes": [0, 1, 2, 3, -1]}, "`ngram_indexes` has 5 indices from 0 on for 5 n-grams"),
    "an odd pair": ({"pool_int64s": [0, 1, 2, 0, 1, 2]}, "n-grams of 2 elements has an incomplete one"),
    "beyond the pool": ({"ngram_counts": [0, 9]}, "do not divide a pool of 7 elements"),
    "backwards": ({"ngram_counts": [3, 0]}, "do not divide a pool of 7 elements"),
    "weights": ({"weights": [1.0]}, "`weights` has 1 elements for 5 n-grams"),
    "lengths": ({"min_gram_length": 3}, "n-grams of 3 to 2 elements with 1 skipped are impossible"),
    "skips": ({"max_skip_count": -1}, "n-grams of 1 to 2 elements with -1 skipped are impossible"),
}


def model(**changed: Any) -> onnx.ModelProto:
    node = helper.make_node("TfIdfVectorizer", ["x"], ["y"], **(VALID | changed))
    ports = [
        helper.make_tensor_value_info("x", 7, ["n", "m"]), helper.make_tensor_value_info("y", 1, ["n", "k"])
    ]  # fmt: skip
    graph = helper.make_graph([node], "g", ports[:1], ports[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("skips", [0, 1, 2])
def test_counts(mode: str, skips: int) -> None:
    made = model(mode=mode, max_skip_count=skips)
    (wanted,) = onnxruntime_of(made).run(None, {"x": X})
    for target in ("interp", "cpu-jit"):
        np.testing.assert_allclose(occ.compile(made, target).run({"x": X})["y"], np.asarray(wanted), rtol=1e-6)


@pytest.mark.parametrize("case", WRONG)
def test_attributes_that_list_no_ngrams(case: str) -> None:
    """They had ended in a Python error at the run, or in columns of zeros."""
    changed, said = WRONG[case]
    with pytest.raises(occ.CompileError, match=f"OCC0107.*TfIdfVectorizer.*{said}"):
        occ.build(model(**changed), "interp")
