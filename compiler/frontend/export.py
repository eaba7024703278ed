"""Writes modules as ONNX models; fused regions become model-local functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from occ.compiler.diagnostics import error
from occ.compiler.ir.dim import Dim, Sym, rebuild
from occ.compiler.ir.dtype import I64, DType
from occ.compiler.ir.empty_results import DECLARED
from occ.compiler.ir.func import Func
from occ.compiler.ir.layout import unpack
from occ.compiler.ir.liveness import captured_values
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import FuncRef, Op, Region, Value, Weight
from occ.compiler.ir.ops.fold import IN_OUTPUT_SHAPE
from occ.compiler.ir.types import OptionalType, SequenceType, TensorType, Type

STAGES = ("imported", "inferred", "canonical", "fused", "layout")
DOMAIN = "occ.fused"  # of the functions
_ARITHMETIC = {"*": "Mul", "+": "Add", "floordiv": "Div", "min": "Min", "max": "Max"}
_KNOWN = 26  # operator set that onnxruntime 1.31 supports; later ones mostly widened types
_LARGEST = 2_000_000_000  # bytes of a protobuf message


def export(m: Module) -> onnx.ModelProto:
    """The ONNX model equivalent to a module of a stage up to `layout`.

    Raises:
        CompileError: OCC0602 the stage is after `layout`, or contains an op without an ONNX operator.
    """
    if m.stage not in STAGES:
        raise error("OCC0602", f"stage `{m.stage}` has no ONNX form", help=f"stages that have one: {', '.join(STAGES)}")
    if sum(w.data.nbytes for w in m.weights.values()) > _LARGEST:
        raise error("OCC0605", "the weights do not fit into an ONNX file of 2 GB", help="dump text instead")
    return _Exporter(m).model()


class _Names:
    """Unique names of the values of one graph or function."""

    def __init__(self, outer: Mapping[Value, str] | None = None) -> None:
        self.of: dict[Value, str] = dict(outer or {})
        self._taken = set(self.of.values())

    def fresh(self, hint: str) -> str:
        name, n = hint or "v", 1
        while name in self._taken:
            n += 1
            name = f"{hint}.{n}"
        self._taken.add(name)
        return name

    def add(self, value: Value) -> str:
        if value not in self.of:
            self.of[value] = self.fresh(value.name)
        return self.of[value]

    def reserve(self, value: Value, name: str) -> None:
        """Reserve a name for a later value."""
        self._taken.add(name)
        if value.defining_op is not None:
            self.of.setdefault(value, name)


class _Exporter:
    def __init__(self, m: Module) -> None:
        self.m = m
        self.functions: list[onnx.FunctionProto] = []
        self.opsets: dict[str, int] = {"": 15}  # Shape with `start` is of 15
        self.sizes: dict[str, tuple[Value, int]] = {}  # symbol -> a value and the axis with its extent

    def model(self) -> onnx.ModelProto:
        names = _Names()
        for label, value in zip(self.m.main.result_names, self.m.main.results, strict=True):
            names.reserve(value, label)
        for w in self.m.weights.values():
            names.add(w)
        for arg in self.m.main.args:
            names.add(arg)
            self._note_sizes(arg)
        nodes = self._region(self.m.main.body, names)
        outputs: list[Any] = []
        for label, value in zip(self.m.main.result_names, self.m.main.results, strict=True):
            name = names.of[value]
            if name != label:  # also if an input, a constant or one value twice is returned
                nodes.append(helper.make_node("Identity", [name], [label]))
            untyped = value.type is None  # at stage `imported`; the reader infers the type
            kind = None if untyped else _type(value.type, self.m)
            info = helper.make_empty_tensor_value_info(label) if kind is None else helper.make_value_info(label, kind)
            outputs.append(info)
        inputs = [helper.make_value_info(names.of[a], _type(a.type, self.m)) for a in self.m.main.args]
        data = [_tensor(names.of[w], w) for w in self.m.weights.values()]
        graph = helper.make_graph(nodes, self.m.name or "main", inputs, outputs, data)
        imports = [helper.make_opsetid(d, v) for d, v in self.opsets.items()]
        model = helper.make_model(graph, opset_imports=imports, functions=self.functions, producer_name="occ")
        model.ir_version = min(model.ir_version, 10)
        for f in model.functions:
            f.opset_import.extend(i for i in imports)
        return model

    def _note_sizes(self, value: Value) -> None:
        if isinstance(value.type, TensorType):
            for k, d in enumerate(value.type.shape or ()):
                if isinstance(d, Sym) and d.is_symbol:
                    self.sizes.setdefault(str(d), (value, k))

    def _region(self, region: Region, names: _Names, yields: Sequence[str] = ()) -> list[onnx.NodeProto]:
        nodes: list[onnx.NodeProto] = []
        for op in region.body:
            for value in op.inputs:  # constants that only this op reads were named with all others
                assert value in names.of, f"{value} has no name"
            nodes += self._op(op, names)
            for r in op.results:
                self._note_sizes(r)
        return nodes

    def _op(self, op: Op, names: _Names) -> list[onnx.NodeProto]:
        match op.name:
            case "fuse":
                return self._fuse(op, names)
            case "dims":
                return self._dims(op, names)
            case "view":
                return self._view(op, names)
            case "pack":
                return [helper.make_node("Identity", [names.of[op.inputs[0]]], [names.add(op.result)])]
            case "join":
                names_of = [names.of[v] for v in op.inputs]
                return [helper.make_node("Concat", names_of, [names.add(op.result)], axis=op.attrs["axis"])]
            case _:
                pass
        if op.spec.is_internal:
            raise error(
                "OCC0602", f"`{op.name}` has no ONNX operator", where=str(op.loc), help="dump stage `canonical`"
            )
        domain, _, name = op.name.rpartition(".")
        self._import(op)
        operands = op.operands[: len(op.operands) - op.attrs.get("captures", 0)]
        inputs = ["" if v is None else names.of[v] for v in operands]
        own = ("captures", DECLARED, IN_OUTPUT_SHAPE)
        attrs = {k: self._attr(op, v, names) for k, v in op.attrs.items() if v is not None and k not in own}
        outputs = [names.add(r) for r in op.results]
        node = helper.make_node(name, inputs, outputs, domain=domain, **attrs)
        node.name = op.loc.nodes[0] if op.loc.nodes else ""
        return [node]

    def _import(self, op: Op) -> None:
        """Require the op's opset version, but if possible none newer than other runtimes support."""
        version = op.spec.since
        if not op.spec.domain and version > _KNOWN:
            try:
                older = onnx.defs.get_schema(op.spec.operator, _KNOWN)
            except onnx.defs.SchemaError:
                older = None
            if older is not None and set(op.attrs) <= set(older.attributes):
                version = older.since_version
        self.opsets[op.spec.domain] = max(self.opsets.get(op.spec.domain, 1), version)

    def _attr(self, op: Op, value: Any, names: _Names) -> Any:
        if isinstance(value, FuncRef):
            return self._graph(op, self.m.funcs[str(value)], names)
        if isinstance(value, DType):
            return value.onnx
        if isinstance(value, np.ndarray):
            return numpy_helper.from_array(value)
        return list(value) if isinstance(value, tuple) else value

    def _graph(self, op: Op, func: Func, outer: _Names) -> onnx.GraphProto:
        """A control-flow body; captured values keep their outer names."""
        captures = op.attrs["captures"]
        own = func.args[: len(func.args) - captures]
        inner = _Names(outer.of)
        given = op.operands[len(op.operands) - captures :]
        inner.of |= {arg: outer.of[v] for arg, v in zip(func.args[len(own) :], given, strict=True) if v is not None}
        inputs = [helper.make_value_info(inner.add(a), _type(a.type, self.m)) for a in own]
        sizes = dict(self.sizes)
        nodes = self._region(func.body, inner)
        self.sizes = sizes
        outputs: list[Any] = []
        for value in func.results:
            label = inner.fresh("out")
            nodes.append(helper.make_node("Identity", [inner.of[value]], [label]))
            outputs.append(helper.make_value_info(label, _type(value.type, self.m)))
        outer._taken |= inner._taken
        return helper.make_graph(nodes, func.name, inputs, outputs)

    def _fuse(self, op: Op, names: _Names) -> list[onnx.NodeProto]:
        """A call of a new function; constants and sizes that the region reads are additional inputs."""
        (region,) = op.regions
        nodes: list[onnx.NodeProto] = []
        inner = _Names()
        inputs: list[str] = [names.of[v] for v in op.inputs]
        formal = [inner.add(a) for a in region.args]
        for value in captured_values(region):
            inputs.append(names.of[value])
            formal.append(inner.add(value))
        body: list[onnx.NodeProto] = []
        for inside in region.body:
            if inside.is_dims:
                nodes += self._dims(inside, names)
                inputs.append(names.of[inside.result])
                formal.append(inner.add(inside.result))
            else:
                body += self._op(inside, inner)
        name = op.attrs["kind"]
        n = sum(f.name.partition(".")[0] == name for f in self.functions)
        name = name if n == 0 else f"{name}.{n + 1}"
        outputs = [inner.of[v] for v in region.yields]
        self.functions.append(helper.make_function(DOMAIN, name, formal, outputs, body, []))
        self.opsets[DOMAIN] = 1
        node = helper.make_node(name, inputs, [names.add(r) for r in op.results], domain=DOMAIN)
        return [*nodes, node]

    def _view(self, op: Op, names: _Names) -> list[onnx.NodeProto]:
        """A view as ONNX nodes: a reshape in memory order."""
        source, result = op.inputs[0].tensor, op.result.tensor
        if source.layout.tiles or result.layout.tiles:
            raise error("OCC0602", "a view of tiles has no ONNX operator", where=str(op.loc), help="dump stage `fused`")
        nodes: list[onnx.NodeProto] = []
        name = names.of[op.inputs[0]]
        if source.layout.order:
            nodes.append(helper.make_node("Transpose", [name], [names.fresh("bytes")], perm=list(source.layout.order)))
            name = nodes[-1].output[0]
        size = Op("dims", (), {"values": result.physical, "shape": (len(result.physical),)}, [None])
        nodes += self._dims(size, names)
        order = result.layout.order
        shaped = names.fresh("bytes") if order else names.add(op.result)
        nodes.append(helper.make_node("Reshape", [name, names.of[size.result]], [shaped], allowzero=1))
        if order:
            back = [order.index(k) for k in range(len(order))]
            nodes.append(helper.make_node("Transpose", [shaped], [names.add(op.result)], perm=back))
        return nodes

    def _dims(self, op: Op, names: _Names) -> list[onnx.NodeProto]:
        """A tensor of sizes: shapes of inputs, and arithmetic on them."""
        nodes: list[onnx.NodeProto] = []

        def emit(kind: str, *inputs: str, **attrs: Any) -> str:
            nodes.append(helper.make_node(kind, inputs, [names.fresh("size")], **attrs))
            return nodes[-1].output[0]

        def constant(values: Sequence[int]) -> str:
            return emit("Constant", value_ints=list(values))

        def symbol(s: Any) -> _Size:
            if str(s.name) not in self.sizes:
                raise error("OCC0602", f"no value has the extent `{s.name}`", help="dump stage `imported`")
            value, axis = self.sizes[str(s.name)]
            shape = emit("Shape", names.of[value], start=axis, end=axis + 1)
            return _Size(shape, combine)

        def combine(kind: str, a: Any, b: Any) -> _Size:
            names_ = [x.name if isinstance(x, _Size) else constant([x]) for x in (a, b)]
            return _Size(emit(_ARITHMETIC[kind], *names_), combine)

        def element(d: Dim) -> str:
            made = rebuild(d, symbol, lambda kind, args: combine(kind, args[0], args[1]))
            return made.name if isinstance(made, _Size) else constant([made])

        flat = emit("Concat", *(element(d) for d in op.attrs["values"]), axis=0) if op.attrs["values"] else constant([])
        shaped = emit("Reshape", flat, constant(list(op.attrs["shape"])))
        kind = op.attrs.get("dtype", I64)
        nodes.append(helper.make_node("Cast", [shaped], [names.add(op.result)], to=kind.onnx))
        return nodes


class _Size:
    """A size under construction: a tensor i64[1] of that name."""

    def __init__(self, name: str, combine: Any) -> None:
        self.name, self._combine = name, combine

    def __mul__(self, other: Any) -> _Size:
        return self if isinstance(other, int) and other == 1 else self._combine("*", self, other)

    def __add__(self, other: Any) -> _Size:
        return self if isinstance(other, int) and other == 0 else self._combine("+", self, other)

    __rmul__ = __mul__
    __radd__ = __add__


def _tensor(name: str, w: Weight) -> onnx.TensorProto:
    data = w.data if w.tensor.layout.is_row_major else unpack(w.data, w.tensor.layout, w.tensor.static)
    made = numpy_helper.from_array(np.ascontiguousarray(data), name)
    made.data_type = w.tensor.dtype.onnx
    return made


def _type(type_: Type | None, m: Module) -> onnx.TypeProto:
    match type_:
        case TensorType():
            if type_.shape is None:
                return helper.make_tensor_type_proto(type_.dtype.onnx, None)
            return helper.make_tensor_type_proto(type_.dtype.onnx, [_dim(d, m) for d in type_.shape])
        case SequenceType():
            return helper.make_sequence_type_proto(_type(type_.elem, m))
        case OptionalType():
            return helper.make_optional_type_proto(_type(type_.elem, m))
        case _:
            return onnx.TypeProto()


def _dim(d: Dim, m: Module) -> int | str | None:
    if isinstance(d, int):
        return d
    return m.symbols[str(d)].label if str(d) in m.symbols else None
