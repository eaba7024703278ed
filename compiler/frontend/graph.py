"""Imports an ONNX graph as ops: scopes, opset upgrades, constants, sub-graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto
from onnx.defs import OpSchema

from occ.compiler.diagnostics import CompileError, Invalid, Sink, shorten
from occ.compiler.frontend.channel_blocks import read_channel_blocks
from occ.compiler.frontend.constants import constant_array
from occ.compiler.frontend.declared_extents import declared_extents
from occ.compiler.frontend.device_operators import NAME as DEVICE
from occ.compiler.frontend.device_operators import attributes_of, is_of_a_device
from occ.compiler.frontend.external import MappedModel, ModelFolder, dense_array, tensor_array
from occ.compiler.frontend.functions import Frame, Functions, opsets_of
from occ.compiler.frontend.huawei import READERS, read_huawei
from occ.compiler.frontend.node import Node
from occ.compiler.frontend.node_checks import check_form, check_known, check_operands
from occ.compiler.frontend.outputs import outputs_of
from occ.compiler.frontend.signature import Overrides, Signature
from occ.compiler.frontend.upgrade import rename, upgrade
from occ.compiler.ir.empty_results import DECLARED
from occ.compiler.ir.func import Func
from occ.compiler.ir.location import Location
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Region, Value, Weight
from occ.compiler.ir.operator.attribute_values import check_values
from occ.compiler.ir.operator.onnx_values import attr_value, is_unstated
from occ.compiler.ir.operator.registry import Registry
from occ.compiler.ir.outline import outline, outline_batches
from occ.compiler.ir.rewriter import Rewriter

Scope = dict[str, Value | None]  # None: a function input that the call leaves out


class GraphImporter:
    """One import. Values of the graph live in scopes, innermost last."""

    def __init__(
        self,
        proto: ModelProto,
        mapped: MappedModel,
        folder: ModelFolder | None,
        overrides: Overrides,
        sink: Sink,
        name: str,
        registry: Registry,
        functions: Functions,
    ) -> None:
        self.proto, self.mapped, self.folder, self.sink = proto, mapped, folder, sink
        self.overrides = overrides
        self.functions = functions
        self.frame = Frame(opsets_of(proto), (*proto.graph.value_info, *proto.graph.output))
        self.m = Module(name, registry=registry)
        constants = {t.name for t in proto.graph.initializer} | {s.values.name for s in proto.graph.sparse_initializer}
        self.inputs = [i for i in proto.graph.input if i.name not in constants]
        self.signature = Signature(self.m, overrides, self.inputs, sink)
        self._count = 0

    def run(self) -> Module:
        """Import the whole model.

        Raises:
            CompileError: with every problem found.
        """
        graph = self.proto.graph
        scope: Scope = {}
        for k, tensor in enumerate(graph.initializer):
            raw = self.mapped.raw.get(k)
            self._define(tensor.name, lambda t=tensor, r=raw: tensor_array(t, self.folder, r), scope)
        for sparse in graph.sparse_initializer:
            self._define(sparse.values.name, lambda s=sparse: dense_array(s, self.folder), scope)
        region = Region()
        for info in self.inputs:
            type_ = self._guard(lambda i=info: self.signature.type_of(i.name, i.type))
            scope[info.name] = region.add_arg(type_, info.name)
        names = outputs_of(graph, scope, self.overrides.outputs, self.sink)
        self._graph(graph, region, [scope], names)
        self.m.funcs["main"] = Func("main", region, names)
        self.sink.raise_errors()
        read_huawei(self.m)
        read_channel_blocks(self.m)
        self.m.drop_unused_weights()
        return self.m

    def _guard(self, fn: Any) -> Any:
        """Run `fn`; a CompileError joins the report, and the result is then None."""
        try:
            return fn()
        except CompileError as e:
            self.sink.diagnostics += e.diagnostics
            return None

    def _define(self, name: str, data: Callable[[], np.ndarray], scope: Scope) -> None:
        """A weight; if it cannot be read, that is reported, and a stand-in is put in the scope."""
        if self._guard(lambda: self._add_weight(name, data(), scope)) is None:
            scope[name] = Value(None, name)

    def _add_weight(self, name: str, data: np.ndarray, scope: Scope) -> Weight:
        weight = self.m.add_weight(name or "w", data)
        if name:
            scope[name] = weight
        return weight

    # graphs

    def _graph(self, graph: GraphProto, region: Region, scopes: list[Scope], results: list[str]) -> None:
        for node in self._in_order(graph, scopes):
            self._node(node, region, scopes)
        values: list[Value] = []
        for name in results:
            found = _find(name, scopes)
            if found is None:
                self.sink.error("OCC0105", f"nothing defines the output `{shorten(name)}`")
            else:
                values.append(found)
        region.close(values)

    def _in_order(self, graph: GraphProto | FunctionProto, scopes: list[Scope]) -> list[NodeProto]:
        """The nodes sorted so that definitions come first; files may be unsorted."""
        producer: dict[str, int] = {}
        for k, node in enumerate(graph.node):
            for name in filter(None, node.output):  # omitted results have empty names, like omitted operands
                if name in producer or name in scopes[-1]:
                    self.sink.error("OCC0105", f"`{shorten(name)}` is defined twice", where=self._where(node, k))
                producer[name] = k
        order: list[int] = []
        state = [0] * len(graph.node)  # 0 not seen, 1 on the stack, 2 done
        for root in range(len(graph.node)):
            stack = [(root, iter(_needs(graph.node[root])))] if state[root] == 0 else []
            state[root] = state[root] or 1
            while stack:
                k, needs = stack[-1]
                following = next((producer[n] for n in needs if n in producer and state[producer[n]] != 2), None)
                if following is None:
                    state[k] = 2
                    order.append(k)
                    stack.pop()
                elif state[following] == 1:
                    node = graph.node[following]
                    self.sink.error("OCC0105", "the graph has a cycle", where=self._where(node, following))
                    self.sink.raise_errors()
                else:
                    state[following] = 1
                    stack.append((following, iter(_needs(graph.node[following]))))
        return [graph.node[k] for k in order]

    def _where(self, node: NodeProto, k: int) -> str:
        return f"{shorten(self.m.name)}: {shorten('/'.join((*self.frame.path, node.name or node.op_type)))} (node {k})"

    def _node(self, proto: NodeProto, region: Region, scopes: list[Scope]) -> None:
        self._count += 1
        if not proto.output:
            what = f"`{shorten(proto.op_type)}` has no result"
            self.sink.error("OCC0107", what, where=f"{shorten(self.m.name)}: {shorten(proto.name)}")
            return
        name = proto.name or f"{proto.op_type}#{self._count}"
        loc = Location(("/".join((*self.frame.path, name)),))
        where = f"{shorten(self.m.name)}: {shorten(str(loc))}"
        if (bound := self._guard(lambda: self.frame.bound(proto, where))) is None:
            scopes[-1].update({n: Value(None, n) for n in proto.output if n})
            return
        proto = bound
        if (function := self.functions.called_by(proto)) is not None:
            frame = self._guard(lambda: self.functions.frame(proto, function, self.frame, name, where))
            self._call(proto, function, frame, region, scopes, where)
            return
        if proto.op_type == "Constant" and proto.domain in ("", "ai.onnx"):
            self._define(proto.output[0], lambda: constant_array(proto, self.folder), scopes[-1])
            return
        if (proto.domain, proto.op_type) == ("ai.onnx.preview", "FlexAttention"):
            self._flex_attention(proto, region, scopes, loc, where)
            return
        self._operator(proto, region, scopes, loc, where)

    def _operator(self, proto: NodeProto, region: Region, scopes: list[Scope], loc: Location, where: str) -> None:
        """Import a node as an op of the latest known operator set."""
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        name = f"{domain}.{proto.op_type}" if domain else proto.op_type
        schema = self._schema(proto.op_type, domain, where)
        operands = [self._operand(n, scopes, where) for n in proto.input]
        while operands and operands[-1] is None and not _has_place(schema, len(operands)):
            operands.pop()
        attrs, regions = self._attributes(proto, schema, scopes, where)
        made = Node(
            name, operands, attrs, len(proto.output), lambda a: self.m.add_weight("c", a),
            lambda op, given, extra: region.insert(Op(op, given, extra, loc=loc)).result,
        )  # fmt: skip
        rename(made)
        if schema is not None:
            known = len(self.sink.diagnostics)
            check_form(self.sink, proto, schema, len(made.operands), where)
            if len(self.sink.diagnostics) == known:
                self._upgrade(made, schema)
        elif made.name in self.m.registry and (signature := self.m.registry[made.name].signature) is not None:
            check_operands(self.sink, proto, signature, operands, where)
        if made.name not in self.m.registry and made.name not in READERS and is_of_a_device(made.name):
            dims = {s.label: s.dim for s in self.m.symbols.values()} | dict(self.signature.fixed)
            found = self._guard(lambda: attributes_of(proto, attrs, made.operands, self.frame.infos, dims, where))
            made.name, made.attrs = DEVICE, found or {}
        check_known(self.sink, self.m.registry, made, where)
        outputs = list(proto.output)
        while len(outputs) > 1 and not outputs[-1]:
            outputs.pop()
        operator = self.m.registry.get(made.name, made.name)  # unknown ones are reported together
        op = Op(operator, made.operands, made.attrs, (None,) * len(outputs), result_names=outputs, loc=loc)
        if name == "Scan" and schema is not None and schema.since_version == 8 and "body" in regions:
            self._scan_of_batches(op, regions["body"], where)
        elif regions:
            outline(self.m, op, regions)
        region.insert(op)
        scopes[-1].update({n: v for n, v in zip(outputs, op.results, strict=True) if n})

    def _scan_of_batches(self, op: Op, body: Region, where: str) -> None:
        """Scan of opset 8, which runs over the sequences of a batch."""
        if op.operands and op.operands[0] is not None:
            self.sink.error("OCC0301", "`Scan` of opset 8 with `sequence_lens` is not supported", where=where)
        Rewriter(self.m).replace_operands(op, op.operands[1:])
        outline_batches(self.m, op, body)

    def _call(
        self, proto: NodeProto, f: FunctionProto, frame: Frame | None, region: Region, scopes: list[Scope], where: str
    ) -> None:
        """The body of a function instead of a call to it; nothing if there is no frame."""
        given = [self._operand(n, scopes, where) for n in proto.input]
        inner: Scope = dict(zip(f.input, [*given, *[None] * len(f.input)], strict=False))
        if frame is not None:
            caller, self.frame = self.frame, frame
            for node in self._in_order(f, [inner]):
                self._node(node, region, [inner])
            self.frame = caller
        for name, formal in zip(proto.output, f.output, strict=False):
            if not name:
                continue
            value = inner.get(formal)
            if value is None and frame is not None:
                what = f"nothing defines the output `{shorten(formal)}` of the function `{shorten(f.name)}`"
                self.sink.error("OCC0105", what, where=where)
            elif value is not None and value.defining_op is not None and value not in given:
                value.name = name
            scopes[-1][name] = value or Value(None, name)

    def _flex_attention(self, proto: NodeProto, region: Region, scopes: list[Scope], loc: Location, where: str) -> None:
        """Scores, softmax and output as ops, with the sub-graphs that change scores and probabilities in between."""
        graphs = {a.name: a.g for a in proto.attribute if a.type == AttributeProto.GRAPH}
        attrs = {a.name: attr_value(a) for a in proto.attribute if a.type != AttributeProto.GRAPH}

        try:
            check_values("FlexAttention", attrs)
        except Invalid as e:
            self.sink.error(e.code, str(e), where=where, notes=(e.note,) if e.note else ())

        def put(op: str, *given: Value | None, **more: Any) -> Value:
            return region.insert(Op(op, given, more, loc=loc)).result

        q, k, v = (self._operand(n, scopes, where) for n in [*proto.input, "", "", ""][:3])
        scores = self._inlined(graphs.get("score_mod"), put("flex_scores", q, k, **attrs), region, scopes)
        weights = self._inlined(graphs.get("prob_mod"), put("Softmax", scores, axis=-1), region, scopes)
        made = put("flex_output", weights, v)
        made.name = proto.output[0]
        scopes[-1][proto.output[0]] = made

    def _inlined(self, graph: GraphProto | None, value: Value, region: Region, scopes: list[Scope]) -> Value:
        """The result of an inlined graph with one input and one output."""
        if graph is None:
            return value
        inner: Scope = {graph.input[0].name: value}
        for tensor in graph.initializer:
            self._define(tensor.name, lambda t=tensor: tensor_array(t, self.folder), inner)
        for node in self._in_order(graph, [*scopes, inner]):
            self._node(node, region, [*scopes, inner])
        return _find(graph.output[0].name, [*scopes, inner]) or value

    def _schema(self, operator: str, domain: str, where: str) -> OpSchema | None:
        version = self.frame.opsets.get(domain)
        if version is None:
            if not onnx.defs.has(operator, domain=domain) and domain:
                return None
            self.sink.error(
                "OCC0105", f"`{operator}` is of the domain `{domain}`, which the model does not import", where=where
            )
            return None
        try:
            return onnx.defs.get_schema(operator, version, domain)
        except onnx.defs.SchemaError:
            return None

    def _operand(self, name: str, scopes: list[Scope], where: str) -> Value | None:
        if not name:
            return None
        if not any(name in s for s in scopes):
            self.sink.error("OCC0105", f"nothing defines `{shorten(name)}`", where=where)
            scopes[0][name] = Value(None, name)  # reported once
        return _find(name, scopes)

    def _upgrade(self, node: Node, schema: OpSchema) -> None:
        latest = self.m.registry[node.name].attrs if node.name in self.m.registry else {}
        old = {a.name: attr_value(a.default_value) for a in schema.attributes.values() if a.default_value.type}
        upgrade(node, schema.since_version, old, {n: s.default for n, s in latest.items()})

    def _attributes(
        self, proto: NodeProto, schema: OpSchema | None, scopes: list[Scope], where: str
    ) -> tuple[dict[str, Any], dict[str, Region]]:
        attrs: dict[str, Any] = {}
        regions: dict[str, Region] = {}
        for attr in (a for a in proto.attribute if not is_unstated(a, schema)):
            if attr.type == AttributeProto.UNDEFINED:
                self.sink.error("OCC0107", f"attribute `{shorten(attr.name)}` has no type", where=where)
            elif attr.type == AttributeProto.GRAPH:
                regions[attr.name] = self._subgraph(attr.g, scopes)
                if extents := declared_extents(proto, attr.g):
                    attrs[DECLARED] = extents
            elif attr.type == AttributeProto.TENSOR:
                attrs[attr.name] = self._guard(lambda t=attr.t: tensor_array(t, self.folder))
            else:
                try:
                    attrs[attr.name] = attr_value(attr)
                except ValueError:
                    self.sink.error("OCC0107", f"attribute `{shorten(attr.name)}` has no value", where=where)
        return attrs, regions

    def _subgraph(self, graph: GraphProto, scopes: list[Scope]) -> Region:
        region, inner = Region(), {}
        for tensor in graph.initializer:
            self._define(tensor.name, lambda t=tensor: tensor_array(t, self.folder), inner)
        for info in graph.input:
            inner[info.name] = region.add_arg(None, info.name)  # inference finds the type at the call
        self._graph(graph, region, [*scopes, inner], [o.name for o in graph.output])
        return region


def _needs(node: NodeProto) -> list[str]:
    """Names that a node reads, including those that its sub-graphs capture."""
    names = list(node.input)
    for attr in node.attribute:
        for graph in [attr.g] if attr.type == AttributeProto.GRAPH else attr.graphs:
            own = {x.name for x in (*graph.input, *graph.initializer)}.union(*(inner.output for inner in graph.node))
            read = [n for inner in graph.node for n in _needs(inner)] + [o.name for o in graph.output]
            names += [n for n in read if n not in own]  # a branch may produce a result with the If's own result name
    return names


def _find(name: str, scopes: list[Scope]) -> Value | None:
    """The value of a name.

    None if nothing defines it, or for a function input that the call leaves out.
    """
    return next((s[name] for s in reversed(scopes) if name in s), None)


def _has_place(schema: OpSchema | None, count: int) -> bool:
    """Whether the last of `n` operands may be absent but still counts, such as a Loop's condition."""
    if schema is None or count > min(schema.min_input, len(schema.inputs)):
        return False
    return schema.inputs[count - 1].option == OpSchema.FormalParameterOption.Optional
