"""Sizes that inputs show as multiples or sums only."""

from __future__ import annotations

import numpy as np
import pytest
from building import TARGETS

import occ
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.driver.sessions import open_session
from occ.compiler.frontend.text import parse

TEXT = """module @m {stage="imported"} {
  dim M "rows"
  func @main(%x: f32[SHOWN], %z: f32[2*M]) -> ? as "y" {
    %s = dims() {shape=[1], values=[dim<M>]}
    %y = Expand(%one, %s)
    return %y
  }
  weight @one : f32[1] = dense<1.0>
}"""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("shown", "right", "wrong"), [("4*M", 12, 10), ("M + 3", 6, 2), ("2*M", 6, 5)])
def test_multiples_and_sums(target: str, shown: str, right: int, wrong: int) -> None:
    text = TEXT.replace("SHOWN", shown).replace("%one", "@one")
    session = open_session(Compilation(parse(text), Settings(target)).artifact())
    (y,) = session(np.zeros(right, np.float32), np.zeros(6, np.float32))
    assert y.tolist() == [1, 1, 1]
    with pytest.raises(occ.RunError, match="OCC0501"):
        session(np.zeros(wrong, np.float32), np.zeros(6, np.float32))
