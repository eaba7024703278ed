"""Attention whose width is symbolic: an error with the node, the width and the remedy, and the same model with numbers."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from building import model_of

import occ

HEAD = '<ir_version: 10, opset_import: ["" : 19, "com.microsoft" : 1]>\n'
TEXT = """g (float[b, s, w] q, float[b, t, w] k, float[b, t, w] v{}) => (float[b, s, u] y) {{
    [culprit] y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v{})
}}"""
CASES = {
    "width": (TEXT.format("", ""), "w is not known to be a multiple of 2"),
    "bias": (TEXT.format(", float[z] bias", ", bias"), "with a bias needs widths that are numbers, not [w,w,w]"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_symbolic_width_is_explained(case: str) -> None:
    text, said = CASES[case]
    model = model_of(HEAD + text)
    with pytest.raises(occ.CompileError) as e:
        occ.compile(model, "interp")
    assert said in str(e.value)
    assert "culprit" in str(e.value)
    assert "--dim NAME=NUMBER" in str(e.value)
    feeds = {n: np.random.default_rng(k).random((1, 3, 8), np.float32) for k, n in enumerate("qkv")}
    feeds |= {"bias": np.arange(24, dtype=np.float32)} if case == "bias" else {}
    runtime = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    got = occ.compile(model, "interp", dims={"w": 8}).run(feeds)["y"]
    np.testing.assert_allclose(got, runtime.run(None, feeds)[0], rtol=1e-5)
