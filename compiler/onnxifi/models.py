"""Models as ONNXIFI clients pass them: a message, followed by one with weights."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto, TensorShapeProto, ValueInfoProto

from occ.compiler.diagnostics import shorten
from occ.compiler.ir.dtype import BY_NAME
from occ.compiler.onnxifi.statuses import Refused, Status
from occ.runtime.dims import DimExpr
from occ.runtime.manifest import TensorInfo

_DATATYPES = frozenset([*range(1, 8), *range(9, 17)])  # types of tensor descriptors


def read_model(data: bytes, weights: bytes) -> ModelProto:
    """A model, with the weights of descriptors as its initializers.

    Args:
        data: the model, a serialised ModelProto.
        weights: another one, with only initializers.

    Raises:
        Refused: either is invalid, or inputs or outputs are not supported by the interface.
    """
    model = _parsed(data)
    if not model.HasField("graph"):
        raise Refused(Status.INVALID_PROTOBUF, "the message is not a ModelProto: it has no graph")
    for info in (*model.graph.input, *model.graph.output):
        _check_type(info)
    _add(model, list(_parsed(weights).graph.initializer))
    _check_declared(model)
    return model


def _parsed(data: bytes) -> ModelProto:
    try:
        return ModelProto.FromString(data)
    except DecodeError as e:
        raise Refused(Status.INVALID_PROTOBUF, f"the message is not a ModelProto: {e}") from None


def _check_type(info: ValueInfoProto) -> None:
    name = shorten(info.name)
    kind = info.type.WhichOneof("value")
    if kind not in ("tensor_type", None):
        raise Refused(Status.UNSUPPORTED_DATATYPE, f"`{name}` is not a tensor but a {kind.removesuffix('_type')}")
    tensor = info.type.tensor_type
    if tensor.elem_type and tensor.elem_type not in _DATATYPES:
        what = TensorProto.DataType.Name(tensor.elem_type) if tensor.elem_type in TensorProto.DataType.values() else "?"
        raise Refused(Status.UNSUPPORTED_DATATYPE, f"`{name}` is {what}, which descriptors cannot express")
    if any(d.HasField("dim_value") and d.dim_value == 0 for d in tensor.shape.dim):
        raise Refused(Status.UNSUPPORTED_SHAPE, f"`{name}` has no elements, which descriptors cannot express")


def _add(model: ModelProto, weights: Sequence[TensorProto]) -> None:
    """Add weights. Clients that also pass their initializers mean the same ones."""
    known = {t.name for t in model.graph.initializer} | {t.values.name for t in model.graph.sparse_initializer}
    inputs = {i.name: i.type.tensor_type for i in model.graph.input}
    for w in weights:
        name = shorten(w.name)
        if w.name in known:
            continue
        if w.name not in inputs:
            raise Refused(Status.INVALID_NAME, f"the weight `{name}` is not an input of the graph")
        declared = inputs[w.name]
        if declared.elem_type != w.data_type:
            raise Refused(Status.MISMATCHING_DATATYPE, f"the weight `{name}` has another element type in the graph")
        if declared.HasField("shape") and not _same(declared.shape, w.dims):
            raise Refused(Status.MISMATCHING_SHAPE, f"the weight `{name}` has another shape in the graph")
        model.graph.initializer.append(w)


def _same(declared: TensorShapeProto, shape: Sequence[int | DimExpr]) -> bool:
    """Whether a shape matches the model's, where both have numbers."""
    wanted = [d.dim_value if d.HasField("dim_value") else None for d in declared.dim]
    pairs = zip(wanted, shape, strict=False)
    return len(wanted) == len(shape) and all(w is None or not isinstance(e, int) or w == e for w, e in pairs)


def _check_declared(model: ModelProto) -> None:
    """Compare the model's stated types with those of its operators, as far as onnx infers them."""
    if not (model.graph.value_info or model.graph.output):
        return
    try:
        onnx.shape_inference.infer_shapes(model, strict_mode=True)
    except onnx.shape_inference.InferenceError as e:
        text = str(e)
        if "existing" in text:  # the compiler finds and explains other problems
            kind = Status.MISMATCHING_SHAPE if "shape" in text or "dim" in text else Status.MISMATCHING_DATATYPE
            raise Refused(kind, shorten(text, 400)) from None
    except (ValueError, RuntimeError):
        return


def check_outputs(model: ModelProto, outputs: list[TensorInfo]) -> None:
    """Compare the compiler's outputs with those that the model declares.

    Raises:
        Refused: an element type or a constant extent differs.
    """
    for declared, made in zip(model.graph.output, outputs, strict=True):
        name, tensor = shorten(declared.name), declared.type.tensor_type
        if tensor.elem_type and tensor.elem_type != BY_NAME[made.dtype].onnx:
            raise Refused(Status.MISMATCHING_DATATYPE, f"the output `{name}` is {made.dtype}, not what the model says")
        if tensor.HasField("shape") and not _same(tensor.shape, made.shape):
            raise Refused(
                Status.MISMATCHING_SHAPE, f"the output `{name}` has the shape {made.shape}, not what the model says"
            )
