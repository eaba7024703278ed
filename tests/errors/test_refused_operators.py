"""Operators of language models that are refused: the error says why, and what to export instead."""

from __future__ import annotations

import pytest
from onnx import TensorProto, helper

import occ
from occ.compiler.diagnostics import CompileError


@pytest.mark.parametrize(
    ("operator", "reason", "remedy"),
    [
        ("SparseAttention", "blocks", "GroupQueryAttention"), ("PagedAttention", "pages", "GroupQueryAttention"),
        ("DecoderMaskedMultiHeadAttention", "beam search", "GroupQueryAttention"),
        ("BeamSearch", "its own search", "decoder as separate models"),
        ("WhisperBeamSearch", "its own search", "decoder as separate models"),
        ("MatMulFpQ4", "a private layout", "MatMulNBits"),
    ],
)  # fmt: skip
def test_says_why_an_operator_is_refused(operator: str, reason: str, remedy: str) -> None:
    node = helper.make_node(operator, ["q", "q", "q"], ["y"], "layer0", domain="com.microsoft", num_heads=2)
    value = helper.make_tensor_value_info
    values = [value(name, TensorProto.FLOAT, [1, 4, 64]) for name in "qy"]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    with pytest.raises(CompileError) as e:
        occ.compile(helper.make_model(graph, opset_imports=opsets, ir_version=10), "interp")
    for part in ("OCC0301", f"`com.microsoft.{operator}` is not supported: ", "layer0", reason, remedy):
        assert part in str(e.value)
