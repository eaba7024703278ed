"""Producers and consumers in an ONNX graph, including sub-graphs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import onnx
from onnx import ModelProto, NodeProto, ValueInfoProto, shape_inference

from occ.compiler.diagnostics import error, shorten
from occ.compiler.frontend.onnx import not_a_model
from occ.compiler.frontend.ort_format import is_ort, read_ort
from occ.compiler.frontend.torch_program import is_program_file, program_to_onnx


def loaded(model: str | os.PathLike[str] | bytes | ModelProto) -> tuple[ModelProto, Path]:
    """A model without its external data, and the folder to which their paths are relative.

    A program of torch.export is converted to ONNX.

    Raises:
        CompileError: OCC0101, OCC0102 it cannot be read.
    """
    if isinstance(model, ModelProto):
        return model, Path()
    if is_program_file(model):
        return program_to_onnx(cast(str, model)), Path()
    where, given = ("<bytes>", model) if isinstance(model, bytes) else (Path(model), None)
    try:
        data, folder = (model, Path()) if isinstance(model, bytes) else (Path(model).read_bytes(), Path(model).parent)
        made = read_ort(data)[0] if is_ort(data) else ModelProto.FromString(data)
    except OSError as e:
        raise error("OCC0101", f"`{e.filename}` cannot be read: {e.strerror}") from None
    except Exception as e:  # of protobuf, which has several
        raise not_a_model(where, str(e), given) from None
    if not made.HasField("graph"):
        raise not_a_model(where, "it has no graph", given)
    return made, folder


def reads(node: NodeProto) -> Iterator[str]:
    """Names of the values that a node reads, including those that its sub-graphs capture."""
    yield from (n for n in node.input if n)
    for attribute in node.attribute:
        for graph in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
            own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
            own |= {n for inner in graph.node for n in inner.output}
            yield from (n for inner in graph.node for n in reads(inner) if n not in own)
            yield from (v.name for v in graph.output if v.name not in own)


def value_types(model: ModelProto) -> dict[str, ValueInfoProto]:
    """Types of the values of the main graph, as far as ONNX infers them."""
    try:
        graph = shape_inference.infer_shapes(model, data_prop=True).graph
    except (
        ValueError,
        RuntimeError,
        shape_inference.InferenceError,
    ):  # too large for protobuf, or not inferable
        graph = model.graph
    return {v.name: v for v in (*graph.value_info, *graph.output, *graph.input)}


def exposed(model: ModelProto, names: list[str]) -> ModelProto:
    """The model with additional outputs: values of its main graph."""
    types = value_types(model)
    made = ModelProto()
    made.CopyFrom(model)
    have = {v.name for v in made.graph.output}
    made.graph.output.extend(types.get(n, ValueInfoProto(name=n)) for n in names if n not in have)
    return made


def with_data(model: ModelProto, folder: Path) -> ModelProto:
    """The model with its external data included.

    Raises:
        CompileError: OCC0106 they cannot be read, or are outside of the folder.
    """
    try:
        onnx.load_external_data_for_model(model, str(folder))
    except (OSError, ValueError, onnx.checker.ValidationError) as e:
        reason = (str(e).strip().splitlines() or [type(e).__name__])[0]
        help_ = "put the data file next to the model, under the name that the model uses"
        raise error(
            "OCC0106", f"the external data of the model cannot be read: {shorten(reason, 200)}", help=help_
        ) from None
    return model
