"""Preprocessing for the quantiser: constant weights, no functions, named nodes, an operator set with codes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, inliner, numpy_helper, version_converter

from occ.analysis.onnx_graph import with_data
from occ.compiler.diagnostics import closest, error, shorten

_PER_CHANNEL = 13  # the operator set from which DequantizeLinear supports scales along an axis
_CODED = frozenset({
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "ConvInteger", "MatMulInteger", "MatMulNBits",
    "MatMulBnb4", "GatherBlockQuantized", "AscendQuant", "AscendDequant", "AscendAntiQuant", "NPUAscendQuantV2",
})  # fmt: skip
_CODED_PREFIXES = ("QLinear", "QGemm", "QAttention", "QEmbed", "QOrdered", "DynamicQuantize")
_HALVES: dict[int, str] = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}


def prepared(model: ModelProto, folder: Path, *, halves: bool, upgrade: bool) -> ModelProto:
    """An equivalent model with constant weights inside, and a name for each node.

    Args:
        model: the original; it is not changed.
        folder: where its external data are.
        halves: whether weights may be half-precision floats.
        upgrade: whether it needs an operator set with per-channel scales.

    Raises:
        CompileError: OCC0106 its external data cannot be read; OCC0617 it is already quantised, or has no f32 weights;
            OCC0103 its operator set is too old, and cannot be converted.
    """
    made = ModelProto()
    made.CopyFrom(model)
    made = inliner.inline_local_functions(with_data(made, folder)) if made.functions else with_data(made, folder)
    _check_floats(made, halves=halves)
    _gather_constants(made.graph)
    if upgrade:
        made = _upgraded(made)
    _name_nodes(made.graph)
    return made


def _check_floats(model: ModelProto, *, halves: bool) -> None:
    for node in nodes_of(model.graph):
        if is_coded(node):
            where = f"`{shorten(node.name or node.output[0])}` is {node.op_type}"
            help_ = "quantise the float model that it was made from; occ compiles a quantised model directly"
            raise error("OCC0617", f"the model is already quantised: {where}", help=help_)
    half = next((t for t in model.graph.initializer if t.data_type in _HALVES and len(t.dims) > 1), None)
    if half is not None and not halves:
        text = (
            f"the weight `{shorten(half.name)}` is {_HALVES[half.data_type]}: activations can only be quantised in "
            "f32 models"
        )
        raise error(
            "OCC0617", text, help="export the model in f32; `--weights int8` and `--weights int4` take this one"
        )


def is_coded(node: NodeProto) -> bool:
    """Whether a node makes, reads or multiplies codes."""
    return node.op_type in _CODED or node.op_type.startswith(_CODED_PREFIXES)


def nodes_of(graph: GraphProto) -> Iterator[NodeProto]:
    """The nodes of a graph and of its sub-graphs."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                yield from nodes_of(inner)


def _gather_constants(graph: GraphProto) -> None:
    """Turn Constant nodes, and initializers that are also inputs, into plain initializers, which the quantiser needs."""
    kept: list[NodeProto] = []
    for node in graph.node:
        value = constant(node)
        if value is None:
            kept.append(node)
            continue
        value.name = node.output[0]
        graph.initializer.append(value)
    del graph.node[:]
    graph.node.extend(kept)
    fixed = {t.name for t in graph.initializer}
    for declared in (
        graph.input,
        graph.value_info,
    ):  # the quantiser transposes weights, whatever they are declared as
        others = [v for v in declared if v.name not in fixed]
        del declared[:]
        declared.extend(others)


def constant(node: NodeProto) -> TensorProto | None:
    """The tensor of a Constant node; None for other nodes, and for constants that are texts or sparse."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx") or not node.attribute:
        return None
    value, made = helper.get_attribute_value(node.attribute[0]), TensorProto()
    match node.attribute[0].name:
        case "value":
            made.CopyFrom(value)
            return made
        case "value_float" | "value_floats":
            return numpy_helper.from_array(np.asarray(value, "float32"))
        case "value_int" | "value_ints":
            return numpy_helper.from_array(np.asarray(value, "int64"))
        case _:
            return None


def _upgraded(model: ModelProto) -> ModelProto:
    """The model in an operator set with per-channel scales."""
    version = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), _PER_CHANNEL)
    if version >= _PER_CHANNEL:
        return model
    try:
        model.ir_version = max(
            model.ir_version, 4
        )  # since which weights need not be inputs, as they no longer are here
        return version_converter.convert_version(model, _PER_CHANNEL)
    except Exception as e:  # of a library in C++
        reason = (str(e).strip().splitlines() or ["no reason given"])[0]
        text = (
            f"operator set {version} has no scales for each channel, and ONNX cannot convert the model: "
            f"{shorten(reason, 200)}"
        )
        raise error("OCC0103", text, help=f"export the model with operator set {_PER_CHANNEL} or later") from None


def _name_nodes(graph: GraphProto) -> None:
    """Name nodes without a unique name after their first result: nodes are excluded by name."""
    seen: set[str] = set()
    for node in graph.node:
        if not node.name or node.name in seen:
            node.name = next((n for n in node.output if n), node.op_type)
        seen.add(node.name)


def _meant(name: str, known: set[str]) -> str:
    if set(name.split(",")) <= known:
        return "repeat --keep for each name"
    return closest(name, known) or "`occ inspect --nodes` lists them"


def named(graph: GraphProto, original: GraphProto, names: Sequence[str]) -> list[str]:
    """The nodes of a prepared graph for given names.

    A name is that of a node, there or in the original, or of one of its results.

    Raises:
        CompileError: OCC0205 there is no such node or value.
    """
    found: list[str] = []
    for name in names:
        meant = [n for n in original.node if name == n.name or name in n.output]
        own, values = {name, *(n.name for n in meant if n.name)}, {name, *(o for n in meant for o in n.output)}
        hits = [
            n.name
            for n in graph.node
            if n.name in own or values & {*n.output} or n.name.startswith(tuple(f"{one}/" for one in own))
        ]
        if not hits and not meant:
            known = {x for n in (*graph.node, *original.node) for x in (n.name, *n.output) if x}
            raise error(
                "OCC0205",
                f"the model has no node or value `{shorten(name)}`",
                help=_meant(name, known),
            )
        found += hits
    return found


def saved(model: ModelProto, path: Path) -> None:
    """Write a model; weights above a gigabyte, which protobuf cannot hold, go to a `.data` file next to it."""
    big = sum(len(t.raw_data) for t in model.graph.initializer) > 1 << 30
    onnx.save(model, str(path), save_as_external_data=big, location=f"{path.name}.data")
