"""Borders that are read backwards: of a row that a shuffle takes its lanes from, no more is loaded than it takes."""

import numpy as np
import pytest
from building import model_of
from guarded_child import check_guarded
from machines import is_here

pytestmark = pytest.mark.toolchain


@pytest.mark.parametrize("machine", ["host", *(n for n in ("x86-64-v3", "x86-64-v2") if is_here(n))])
@pytest.mark.parametrize("kind", ["float", "float16", "int8"])
def test_nothing_before_the_operand_is_read(kind: str, machine: str) -> None:
    x = np.arange(5 * 4 * 16).reshape(5, 4, 16).astype(np.dtype(kind if kind != "float" else "float32"))
    around = "int64[6] pads = {0, 0, 3, 0, 0, 1}"
    model = model_of(
        f'g ({kind}[5, 4, 16] x) => ({kind}[5, 4, 20] y) <{around}> {{ y = Pad <mode = "reflect"> (x, pads) }}'
    )
    check_guarded(model, machine, {"x": x}, np.pad(x, ((0, 0), (0, 0), (3, 1)), "reflect"), "cpu")
