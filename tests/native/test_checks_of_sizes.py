"""What a build assumes of sizes that the data decide, in the Python runner."""

from __future__ import annotations

import numpy as np
import pytest
from building import model_of

from occ.compiler.driver.compilation import Compilation, Settings
from occ.runtime.errors import RunError
from occ.runtime.native import program
from occ.runtime.open import open_artifact


def test_what_holds_for_sizes_is_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every phase of every run did: two thirds of the time of a vision transformer whose sizes are found in 16 phases."""
    m = model_of("""g (float[n] x, float[k] z) => (int64[1, u] y) {
        a = NonZero(x)
        b = NonZero(z)
        y = Add(a, b)
    }""")
    monkeypatch.setenv("OCC_ENTRY", "python")
    checked: list[int] = []
    check = program.check_constraints
    monkeypatch.setattr(program, "check_constraints", lambda c, env: checked.append(len(c)) or check(c, env))
    session = open_artifact(Compilation(m, Settings("cpu-jit")).artifact(), 1)
    two, three = np.array([1, 0, 1], np.float32), np.array([1, 0, 2, 3, 0], np.float32)
    for again in (True, False):
        checked.clear()
        np.testing.assert_array_equal(session.run({"x": three, "z": three})["y"], [[0, 4, 6]])
        assert bool(checked) == again
    for _ in range(2):
        with pytest.raises(RunError, match="OCC050"):
            session.run({"x": three, "z": two})
