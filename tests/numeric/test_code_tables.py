"""Elementwise ops on bytes, a long chain of them, become one table: the search goes over each op once, and is not nested."""

from __future__ import annotations

import numpy as np
from building import model_of

import occ


def test_a_long_chain_becomes_one_table():
    lines = ["a0 = DequantizeLinear (x, s)", *(f"a{k + 1} = Erf (a{k})" for k in range(1500))]
    text = f"g (int8[4, 64] x) => (int8[4, 64] y) {{ {' '.join(lines)} y = QuantizeLinear (a1500, s, z) }}"
    scales = {"s": np.array(0.1, np.float32), "z": np.array(0, np.int8)}
    assert "code_table" in occ.dump(model_of(text, scales), "layout", target="cpu")
