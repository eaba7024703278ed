"""What a run says of sizes that the build assumed: not how it wrote that down, but what has to be of which size."""

from __future__ import annotations

import numpy as np
import pytest
from building import model_of

import occ
from occ.runtime.dims import in_order

LAST = """g (float[k, m] x, float[5] z) => (float[5] y) {
    start = Constant<value_ints = [-1]>()  end = Constant<value_ints = [9223372036854775807]>()
    flat = Reshape(x, start)
    last = Slice(flat, start, end)
    y = Add(last, z)
}"""


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_size_of_at_least_one(target: str) -> None:
    """It said `min(1, k*m) = 0 and 1 = 1`."""
    session = occ.compile(model_of(LAST), target)
    x, z = np.arange(8, dtype=np.float32).reshape(2, 4), np.ones(5, np.float32)
    np.testing.assert_array_equal(session.run({"x": x, "z": z})["y"], np.full(5, 8, np.float32))
    with pytest.raises(occ.RunError, match=r"needs k\*m to be at least 1, but for these inputs it is 0"):
        session.run({"x": x[:0], "z": z})


@pytest.mark.parametrize(
    ("a", "b", "ordered"),
    [
        (["min", 1, "k"], 1, (1, "k")),
        (1, ["min", "k", 1], (1, "k")),
        (["max", 1, "k"], "k", (1, "k")),
        (["min", ["+", "n", 1], "k"], ["+", "n", 1], (["+", "n", 1], "k")),
        (["min", "n", "k"], "m", None),
        ("n", "k", None),
    ],
)
def test_order_that_an_equality_states(a: object, b: object, ordered: object) -> None:
    assert in_order(a, b) == ordered
