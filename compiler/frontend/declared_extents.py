"""Extents that the body of a Loop or a Scan declares for the results that the node stacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from onnx import GraphProto, NodeProto, ValueInfoProto

_MOST = 1 << 53  # elements of a slice: no memory has more, so that what declares them is wrong


def declared_extents(node: NodeProto, body: GraphProto) -> tuple[tuple[int, ...], ...] | None:
    """The declared extents of each stacked result, 0 for an extent that is not; None if none are.

    A result that another value is copied to has the extents of that one too, as onnxruntime sees them.
    """
    count = _stacked(node, body)
    infos = {i.name: i for i in (*body.input, *body.value_info)} | {o.name: o for o in body.output}
    copied = {n.output[0]: n.input[0] for n in body.node if n.op_type == "Identity" and n.input and n.output}
    shapes = [_declared(o.name, infos, copied) for o in body.output[len(body.output) - count :]]
    return tuple(shapes) if any(map(any, shapes)) else None


def _declared(name: str, infos: Mapping[str, ValueInfoProto], copied: Mapping[str, str]) -> tuple[int, ...]:
    found: list[int] = []
    for same in _sources(name, copied):
        if (info := infos.get(same)) is None or not info.type.tensor_type.HasField("shape"):
            continue
        dims = [max(d.dim_value, 0) for d in info.type.tensor_type.shape.dim]
        found = found or [0] * len(dims)
        if len(dims) == len(found):
            found = [a or b for a, b in zip(found, dims, strict=True)]
    return tuple(found) if prod(max(d, 1) for d in found) <= _MOST else (0,) * len(found)


def _sources(name: str, copied: Mapping[str, str]) -> Iterator[str]:
    seen: set[str] = set()
    while name and name not in seen:
        yield name
        seen.add(name)
        name = copied.get(name, "")


def _stacked(node: NodeProto, body: GraphProto) -> int:
    """The number of results of a body whose values a node stacks."""
    match node.op_type:
        case "Loop":
            return max(len(body.output) - 1 - max(len(body.input) - 2, 0), 0)
        case "Scan":
            scanned = next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)
            return max(len(body.output) - max(len(body.input) - scanned, 0), 0)
        case _:
            return 0
