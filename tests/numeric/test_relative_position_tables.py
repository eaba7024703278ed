"""Tables of numbers that depend on sizes, such as relative positions: they are computed, not chosen one by one."""

from __future__ import annotations

import numpy as np
import pytest
from building import model_of

import occ

TABLE = "g (float[n] x, int64[32, 32] k) => (int64[32, 32] y) { s = Shape (x) t = Add (s, k0) y = Sub (t, k) }"


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["interp", "cpu-jit", "cpu"])
def test_a_long_table_that_a_size_is_added_to(target: str) -> None:
    places = ", ".join(map(str, range(1024)))
    text = TABLE.replace("s = Shape", f"k0 = Constant <value = int64[32, 32] {{{places}}}> () s = Shape")
    session = occ.compile(model_of(text, opset=18), target)
    for n in (3, 40):
        y = session.run({"x": np.zeros(n, np.float32), "k": np.ones((32, 32), np.int64)})["y"]
        np.testing.assert_array_equal(y.reshape(-1), np.arange(1024) + n - 1, strict=True)
