"""The interpreter runs modules whose values have orders of their own in memory."""

from __future__ import annotations

import numpy as np
from building import model_of

from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings
from occ.compiler.interp.graph import Interpreter


def test_sizes_are_read_off_memory() -> None:
    """A view with its axes reversed shows the sizes in memory order."""
    model = model_of("g (float[a,b,c] x) => (float[c,b,a] y) { y = Transpose<perm=[2,1,0]>(x) }")
    m = Compilation(model, Settings("cpu", cache=False)).advance("scheduled")
    x = np.arange(72, dtype=np.float32).reshape(3, 4, 6)
    np.testing.assert_array_equal(Interpreter(m).run([x], {})[0], x.T)


def test_scatter_of_one_number_verifies() -> None:
    text = "g (float[n] x, int64[1] i, float u) => (float[n] y) { y = ScatterND(x, i, u) }"
    made = Compilation(model_of(text), Settings("cpu-jit", cache=False, verify=True))
    assert made.advance("scheduled").te
