"""`occ.extract`: a part of an ONNX model as a model of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence

import onnx
from onnx import FunctionProto, ModelProto, NodeProto, ValueInfoProto, helper

from occ.analysis.onnx_graph import loaded, reads, value_types, with_data
from occ.arguments import names_of
from occ.compiler.diagnostics import closest, error

_LARGEST = 1 << 30  # maximum bytes of weights inside the file


def extract(
    model: str | os.PathLike[str] | bytes | ModelProto,
    start: Sequence[str] = (),
    end: Sequence[str] = (),
    out: str | os.PathLike[str] | None = None,
) -> ModelProto:
    """A part of a model as a model of its own, with the weights that it needs.

    Args:
        model: path, bytes or message of an ONNX model.
        start: where it begins: values, which become inputs, or nodes, which are included. The model's inputs if empty.
        end: where it ends: values, which become outputs, or nodes, which are included. The model's outputs if empty.
        out: the file to write; more than a gigabyte of weights go to a file with the same name plus `.data`.

    Returns:
        The part. Model inputs that it reads remain inputs, in addition to `start`.

    Raises:
        CompileError: OCC0101, OCC0102 the model cannot be read; OCC0205 there is no such value or node; OCC0202 ONNX
            cannot infer the type of a value that becomes an input or output.
    """
    start, end = names_of(start), names_of(end)
    whole, folder = loaded(model)
    graph = whole.graph
    inputs = _values(whole, start, end=False) if start else []
    outputs = _values(whole, end, end=True) if end else [v.name for v in graph.output]
    kept, wanted = _needed(whole, inputs, outputs)
    if not kept or (inputs and wanted.isdisjoint(inputs)):
        ends = (
            f"from {', '.join(f'`{n}`' for n in start) or 'the inputs'} to "
            f"{', '.join(f'`{n}`' for n in end) or 'the outputs'}"
        )
        raise error("OCC0205", f"no node is on a path {ends}", help="--from names the first values of the part")
    weights = [t for t in graph.initializer if t.name in wanted and t.name not in inputs]
    held = {t.name for t in weights}
    given = [v.name for v in graph.input if v.name in wanted and v.name not in inputs and v.name not in held]
    types = value_types(whole)
    part = helper.make_graph(
        kept, f"{graph.name}_part", _typed(types, [*inputs, *given]), _typed(types, outputs), initializer=weights
    )
    made = helper.make_model(
        part, ir_version=whole.ir_version, opset_imports=whole.opset_import, functions=list(_functions(whole, kept))
    )
    with_data(made, folder)
    if out is not None:
        _write(made, os.fspath(out))
    return made


def _write(model: ModelProto, out: str) -> None:
    """Write a model, with its weights in a separate file if they are large."""
    big = sum(len(t.raw_data) for t in model.graph.initializer) > _LARGEST
    onnx.save(model, out, save_as_external_data=big, location=os.path.basename(out) + ".data")


def _values(model: ModelProto, names: Sequence[str], *, end: bool) -> list[str]:
    """The values for names of values and nodes: results at the end, operands at the start."""
    weights = {t.name for t in model.graph.initializer}
    known = {v.name for v in model.graph.input} | {n for node in model.graph.node for n in node.output}
    found: list[str] = []
    for name in names:
        nodes = [n for n in model.graph.node if n.name == name]
        if name in known:
            found.append(name)
        elif nodes:
            found += nodes[0].output if end else [n for n in reads(nodes[0]) if n not in weights]
        else:
            every = {*known, *(n.name for n in model.graph.node)}
            raise error(
                "OCC0205",
                f"the model has no value or node `{name}`",
                help=closest(name, every) or "`occ inspect --nodes` lists them",
            )
    return [n for n in dict.fromkeys(found) if n]


def _needed(model: ModelProto, inputs: Sequence[str], outputs: Sequence[str]) -> tuple[list[NodeProto], set[str]]:
    """The nodes between two sets of values, in order, and the names of all values in between."""
    makers = {name: k for k, node in enumerate(model.graph.node) for name in node.output if name}
    kept: set[int] = set()
    wanted = set(outputs)
    waiting = [n for n in outputs if n not in inputs]
    while waiting:
        maker = makers.get(waiting.pop())
        if maker is None or maker in kept:
            continue
        kept.add(maker)
        new = set(reads(model.graph.node[maker])) - wanted
        wanted |= new
        waiting += [n for n in new if n not in inputs]
    return [model.graph.node[k] for k in sorted(kept)], wanted


def _typed(types: dict[str, ValueInfoProto], names: Sequence[str]) -> list[ValueInfoProto]:
    unknown = [n for n in names if n not in types or not types[n].HasField("type")]
    if unknown:
        help_ = "name a value before or after it; ONNX's own shape inference must know the type"
        raise error("OCC0202", f"the type of `{unknown[0]}` is not known", help=help_)
    return [types[n] for n in names]


def _functions(model: ModelProto, nodes: Sequence[NodeProto]) -> list[FunctionProto]:
    """The functions of the model that nodes call, directly or indirectly."""
    table = {(f.domain, f.name, f.overload): f for f in model.functions}
    found: dict[tuple[str, str, str], FunctionProto] = {}
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        for attribute in node.attribute:
            waiting += attribute.g.node
        key = (node.domain, node.op_type, node.overload)
        if key in table and key not in found:
            found[key] = table[key]
            waiting += table[key].node
    return [f for k, f in table.items() if k in found]
