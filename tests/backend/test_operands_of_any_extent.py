"""Every operator with operands of any extents: what does not fit is a constraint or a check, and no kernel leaves a tensor.

The first case that ONNX has of each operator has a symbol for each axis of its inputs, or, where the build has to know some of the
extents, for others. Its kernels are looked at for sizes that the constraints of the model allow.
"""

from __future__ import annotations

from extents import SOME, of_any_extent, outside
from onnx import ModelProto
from suite import node_cases


def cases() -> dict[str, ModelProto]:
    """By operator; those in which something depends on two tensors, since the build needs the values of others."""
    found: dict[str, ModelProto] = {}
    for c in node_cases():
        inputs = [i.type.tensor_type for i in c.model.graph.input if i.type.HasField("tensor_type")]
        if "_expanded" not in c.name and sum(bool(t.shape.dim) for t in inputs) > 1:
            found.setdefault("-".join(n.op_type for n in c.model.graph.node), c.model)
    return found


def test_kernels_stay_within_their_tensors() -> None:
    found: dict[str, list[str]] = {}
    for name, model in cases().items():
        texts = outside(of_any_extent(model))
        tried = [texts] if texts is not None else [outside(of_any_extent(model, kept)) for kept in SOME]
        if any(texts is not None for texts in tried):
            found[name] = [p for texts in tried for p in texts or ()]
    assert len(found) > 75
    assert {name: texts for name, texts in found.items() if texts} == {}
