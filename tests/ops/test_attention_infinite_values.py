"""Attention to keys whose values are infinite or NaN: keys beyond the last count for nothing, not 0 times the value.

A few rows of queries read keys in chunks, the last of which is longer than there are keys. The oracle is onnx.reference.
"""

from __future__ import annotations

import numpy as np
import pytest
from building import TARGETS, model_of, reference

import occ

ROWS = ("1", "3", "s")  # of queries
TEXT = """g (float[2, 4, {rows}, 16] q, float[2, 4, 16, n] k, float[2, 4, n, 16] v) => (float[2, 4, {rows}, 16] y) {{
    scores = MatMul(q, k)
    shares = Softmax<axis = -1>(scores)
    y = MatMul(shares, v)
}}"""


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", ROWS)
def test_infinite_values_of_any_key_reach_the_result(rows: str, target: str) -> None:
    """It was NaN where the last value was infinite."""
    model = model_of(TEXT.format(rows=rows))
    session = occ.compile(model, target)
    rng = np.random.default_rng(0)
    for keys in (1, 15, 16, 17, 33, 257, 300, 1025):
        count = int(rows) if rows.isdigit() else 2
        feeds = {
            name: rng.standard_normal(shape, dtype=np.float32)
            for name, shape in (("q", (2, 4, count, 16)), ("k", (2, 4, 16, keys)), ("v", (2, 4, keys, 16)))
        }
        v = feeds["v"]
        v[0, 0, -1, 3], v[0, 1, keys // 2, 4], v[1, 2, 0, 5], v[1, 3, -1] = np.inf, -np.inf, np.inf, np.nan
        v[1, 0, -1, 0] = -np.inf
        (want,) = reference(model, feeds)
        (got,) = session.run(feeds).values()
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5, err_msg=f"{keys} keys")
