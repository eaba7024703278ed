"""Checks nodes against the schemas of their operators."""

from __future__ import annotations

import onnx
from onnx import AttributeProto, NodeProto
from onnx.defs import OpSchema

from occ.compiler.diagnostics import Sink, closest, shorten
from occ.compiler.frontend.huawei import READERS
from occ.compiler.frontend.node import Node
from occ.compiler.frontend.refused import REFUSED
from occ.compiler.ir.op import Value
from occ.compiler.ir.operator.onnx_values import attr_kind
from occ.compiler.ir.operator.registry import Registry
from occ.compiler.ir.operator.spec import FormalSignature


def check_known(sink: Sink, registry: Registry, node: Node, where: str) -> None:
    """Report an operator that is unknown, or known and not supported."""
    if node.name in registry or node.name in READERS:
        return
    domain, _, operator = node.name.rpartition(".")
    known = onnx.defs.has(operator, domain=domain) if operator else False
    if known or node.name in REFUSED:
        why, help_ = REFUSED.get(node.name, ("", ""))
        said = f"the operator `{shorten(node.name)}` is not supported{f': {why}' if why else ' yet'}"
        sink.error("OCC0301", said, where=where, help=help_)
    else:
        help_ = (
            closest(node.name, registry)
            or "a model-local function or a plugin can define it; `occ ops` lists what is known"
        )
        sink.error("OCC0104", f"unknown operator `{shorten(node.name)}`", where=where, help=help_)


def check_form(sink: Sink, proto: NodeProto, schema: OpSchema, count: int, where: str) -> None:
    """Report a node that does not match its operator's schema: `count` operands, results, attributes."""
    if not schema.min_input <= count <= schema.max_input:
        sink.error(
            "OCC0107",
            f"`{proto.op_type}` takes {_span(schema.min_input, schema.max_input)}, not {count}",
            where=where,
        )
    if len(proto.output) > schema.max_output:
        what = f"`{proto.op_type}` has {_span(schema.min_output, schema.max_output, 'result')}, not {len(proto.output)}"
        sink.error("OCC0107", what, where=where)
    for attr in schema.attributes.values():
        if attr.required and attr.name not in {a.name for a in proto.attribute}:
            sink.error("OCC0107", f"`{proto.op_type}` lacks the attribute `{attr.name}`", where=where)
    for attr in proto.attribute:
        formal = schema.attributes.get(attr.name)
        if formal is None:
            sink.error("OCC0107", f"`{proto.op_type}` has no attribute `{shorten(attr.name)}`", where=where)
        elif attr.type and AttributeProto.AttributeType.Name(attr.type) != attr_kind(formal):
            kind = AttributeProto.AttributeType.Name(attr.type)
            sink.error("OCC0107", f"`{attr.name}` of `{proto.op_type}` is {kind}, not {attr_kind(formal)}", where=where)


def check_operands(
    sink: Sink, proto: NodeProto, signature: FormalSignature, operands: list[Value | None], where: str
) -> None:
    """Report operands that an operator without an ONNX schema does not accept."""
    formals = signature.operands
    low = max((k + 1 for k, f in enumerate(formals) if not f.optional and not f.variadic), default=0)
    high = 2**30 if any(f.variadic for f in formals) else len(formals)
    missing = [f.name for f, v in zip(formals, operands, strict=False) if v is None and not f.optional]
    if not low <= len(operands) <= high or missing:
        what = f"lacks `{missing[0]}`" if missing else f"takes {_span(low, high)}, not {len(operands)}"
        sink.error("OCC0107", f"`{proto.op_type}` {what}", where=where)


def _span(low: int, high: int, what: str = "operand") -> str:
    if low == high == 1:
        return f"1 {what}"
    return f"{f'{low} to {high}' if low < high < 2**30 else f'at least {low}' if low < high else low} {what}s"
