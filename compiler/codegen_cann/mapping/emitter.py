"""The builder of GE nodes that mapping rules call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from occ.compiler.codegen_cann.graph.formats import ge_type, occ_type
from occ.compiler.codegen_cann.graph.graph import Desc, Graph, Node, Ref, const_node, data_node, drop_dead
from occ.compiler.codegen_cann.graph.prototypes import Prototype, prototypes
from occ.compiler.codegen_cann.mapping.chip import Chip
from occ.compiler.ir.build_te import static_elements
from occ.compiler.ir.dtype import from_numpy
from occ.compiler.ir.func import Func
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.types import TensorType


class Unsupported(Exception):
    """The device does not support an op; the text says why, completing `because`."""


Given = Ref | Sequence[Ref] | None
EmitOp = Callable[["Emitter", Op], None]


class Emitter:
    """Emits nodes into a graph.

    Attributes:
        graph: the graph.
        precision: the `precision_mode_v2` of the graph.
        refs: the outputs that represent values of the module.
        chip: the chip that it is emitted for.
        signed: the INT8 codes from which UINT8 ones were made, by adding 128.
    """

    def __init__(
        self, graph: Graph, emit: EmitOp, precision: str = "origin", module: Module | None = None,
        names: set[str] | None = None, chip: Chip | None = None,
    ) -> None:  # fmt: skip
        self.graph, self.precision = graph, precision
        self.chip = chip or Chip()
        self.refs: dict[Value, Ref] = {}
        self.signed: dict[Ref, Ref] = {}
        self._emit, self._module = emit, module
        self._names: set[str] = set() if names is None else names
        self._made: list[Node] = []
        self._source: tuple[str, ...] = ()

    # values of the module

    def ref(self, value: Value) -> Ref:
        """The GE reference of a value; constants and known sizes become Const nodes on first use."""
        found = self.refs.get(value)
        if found is not None:
            return found
        if isinstance(value, Weight):
            made = self.constant(value.data, value.name)
        else:
            elements = static_elements(value)
            if elements is None or not all(isinstance(e, (int, float)) for e in elements):
                raise Unsupported(f"`{value.name}` is a size that is only known at run time")
            data = np.array(elements, value.tensor.dtype.numpy).reshape(value.tensor.static)
            made = self.constant(data, value.name)
        self.refs[value] = made
        return made

    def known(self, op: Op, k: int) -> np.ndarray | None:
        """The value of an operand that must be known at compile time; None if it is absent.

        Raises:
            Unsupported: it is computed at run time.
        """
        value = op.operands[k] if k < len(op.operands) else None
        if value is None:
            return None
        if isinstance(value, Weight):
            return value.data
        elements = static_elements(value)
        if elements is None or not all(isinstance(e, int) for e in elements):
            raise Unsupported(f"its operand `{op.spec.operand_name(k)}` is computed at run time")
        return np.array(elements, value.tensor.dtype.numpy).reshape(value.tensor.static)

    def type(self, value: Value) -> Desc:
        """The description of a value of the module."""
        return describe(value)

    # kernels

    def unit_for(self, kind: str, dtype: str, position: int = 0, *, exact: bool = False) -> str:
        """The unit with a kernel of an operator for an operand type.

        It is empty if the chip has none, and `fixed` if extents may be unknown but kernels only support fixed ones.
        With `exact`, no other type of the precision mode is accepted.
        """
        table = self.chip.table
        if table is None:
            return "AI Core"
        precision = "origin" if exact else self.precision
        return table.unit_for(kind, dtype, position, precision, dynamic=self.chip.dynamic)

    def lacks(self, node: Node) -> str:
        """The error that the chip has no kernel for a node; empty if it has one."""
        found = self.chip.table and self.chip.table.lacking(Graph("one", [node]), self.precision, fixed=True)
        return f"the chip has {found[1]}" if found else ""

    # nodes

    def constant(self, data: Any, name: str = "", dtype: np.dtype | type | None = None) -> Ref:
        """A Const node."""
        array = np.ascontiguousarray(data, dtype).reshape(np.shape(data))
        kind = ge_type(from_numpy(array.dtype))
        if kind is None:
            raise Unsupported(f"GE has no element type for {from_numpy(array.dtype)}")
        node = const_node(self.unique(name) if name else "", array, kind, self._source)
        return self._add(node)

    def int4(self, data: np.ndarray) -> Ref:
        """An INT4 constant, for operators with INT4 weights."""
        return self._add(const_node("", data.astype(ml_dtypes.int4), "INT4", self._source))

    def ints(self, data: Any, dtype: type = np.int64) -> Ref:
        """A constant of integers: axes, shapes, pads."""
        return self.constant(np.array(data, dtype))

    def scalar(self, value: float, like: str | Ref) -> Ref:
        """A rank-0 constant of a GE element type, or of the type of another output."""
        name = like if isinstance(like, str) else like.dtype
        return self.constant(np.array(value, occ_type(name).numpy))

    def op(self, kind: str, *inputs: Given, out: Desc | Sequence[Desc] | None = None, **attrs: Any) -> Any:
        """A node; returns its output, or a tuple if the operator has several or a dynamic number.

        Args:
            kind: operator type.
            inputs: in prototype order; a list for a dynamic input, None for an absent one.
            out: descriptions of the outputs; by default the elementwise result: the first input's type and the
                broadcast shape.
            attrs: attributes by name; None leaves one at its default.
        """
        proto = prototypes().get(kind)
        assert proto is not None, f"no prototype of {kind}: run tools/ge_prototypes.py"
        names, refs = _anchors(proto, inputs)
        if out is None:
            out = elementwise([r for r in refs if r is not None])
        outs = [out] if isinstance(out, Desc) else list(out)
        given = {k: v for k, v in attrs.items() if v is not None}
        node = Node("", kind, refs, outs, given, names, _output_names(proto, len(outs)), source=self._source)
        self._add(node)
        return Ref(node) if isinstance(out, Desc) else tuple(Ref(node, k) for k in range(len(outs)))

    def cast(self, x: Ref, dtype: str) -> Ref:
        """`x` as another element type; `x` itself if it already is."""
        if x.dtype == dtype:
            return x
        small, given = dtype in ("INT8", "UINT8"), x.dtype
        if small and given in ("FLOAT", "FLOAT16") and not self.casts(given, dtype) and self.casts("INT32", dtype):
            x = self.cast(x, "INT32")
        return self.op("Cast", x, out=Desc(dtype, x.shape, x.desc.format), dst_type=dtype)

    def casts(self, one: str, other: str) -> bool:
        """Whether AI Core casts between two types."""
        table = self.chip.table
        probe = Node("", "Cast", [Ref(data_node("", Desc(one, ()), 0))], [Desc(other, ())], {}, ["x"], ["y"])
        return table is None or table.unit(probe, self.precision) == "AI Core"

    def reshape(self, x: Ref, shape: Sequence[int]) -> Ref:
        """`x` with another shape; `x` itself if it already has it."""
        if x.shape == tuple(shape):
            return x
        return self.op("Reshape", x, self.ints(shape), out=Desc(x.dtype, tuple(shape)))

    def transpose(self, x: Ref, perm: Sequence[int]) -> Ref:
        """`x` with its axes permuted."""
        if list(perm) == list(range(len(perm))):
            return x
        shape = tuple(x.shape[p] for p in perm)
        if x.dtype == "DOUBLE" and not self.unit_for("Transpose", "DOUBLE"):  # its bits may be moved as INT64
            bits = self.transpose(self.op("Bitcast", x, out=Desc("INT64", x.shape), type="INT64"), perm)
            return self.op("Bitcast", bits, out=Desc("DOUBLE", shape), type="DOUBLE")
        return self.op("Transpose", x, self.ints(perm, np.int32), out=Desc(x.dtype, shape))

    def _add(self, node: Node) -> Ref:
        self.graph.nodes.append(node)
        self._made.append(node)
        return Ref(node)

    # sub-graphs

    def function(self, name: str) -> Func:
        """A function of the module."""
        assert self._module is not None, "control flow needs the module"
        return self._module.funcs[name]

    def child(self, name: str, inputs: Sequence[Desc], first_parent_input: int = 0) -> Emitter:
        """An emitter of a sub-graph; its Data nodes represent inputs of the enclosing node."""
        graph = Graph(self.unique(f"{self.graph.name}/{name}"))
        made = Emitter(graph, self._emit, self.precision, self._module, self._names, self.chip)
        for k, desc in enumerate(inputs):
            parent = {"_parent_node_index": first_parent_input + k}
            node = data_node(self.unique(f"{graph.name}/arg{k}"), desc, k, parent)
            graph.nodes.append(node)
            graph.data.append(node)
        self.graph.children.append(graph)
        return made

    @property
    def data(self) -> list[Ref]:
        """The inputs of the graph."""
        return [Ref(d) for d in self.graph.data]

    def call(self, func: Func, arguments: Sequence[Ref]) -> list[Ref]:
        """Emit the ops of a function on given arguments; returns its results."""
        self.refs |= zip(func.args, arguments, strict=True)
        for op in func.body.body:
            if not op.is_dims:
                self._emit(self, op)
        return [self.ref(v) for v in func.results]

    def set_results(self, results: Sequence[Ref]) -> None:
        """Finish a sub-graph with its results."""
        for r in results:
            is_made = r.node.type not in ("Data", "Const")
            self.graph.outputs.append(r if is_made else self.op("Identity", r, out=r.desc))
        drop_dead(self.graph)
        self.graph.output_names = [f"output{k}" for k in range(len(results))]
        for node in self.graph.nodes:
            node.name = node.name or self.unique(f"{self.graph.name}/{node.type}")

    # names

    def unique(self, name: str) -> str:
        """A node name like `name`, unique in the model."""
        made, k = name or "node", 1
        while made in self._names:
            made, k = f"{name}_{k}", k + 1
        self._names.add(made)
        return made

    def begin(self, op: Op) -> None:
        """Start the nodes of an op."""
        self._made, self._source = [], op.loc.nodes

    def finish(self, op: Op, results: Sequence[Ref]) -> None:
        """Name the nodes of an op: the one with its first result after the ONNX node, the others with suffixes."""
        base = op.loc.nodes[-1] if op.loc.nodes else f"{op.name}_{op.results[0].name}"
        main = results[0].node if results else None
        for node in [main, *self._made]:
            if node is not None and not node.name:
                node.name = self.unique(base if node is main else f"{base}/{node.type}")
        self._made = []


def elementwise(refs: Sequence[Ref]) -> Desc:
    """The result of an elementwise operator."""
    shapes = [r.shape for r in refs]
    shape = tuple(int(d) for d in np.broadcast_shapes(*shapes))
    formats = {r.desc.format for r in refs if r.shape == shape}
    return Desc(refs[0].dtype, shape, formats.pop() if len(formats) == 1 else "ND")


def describe(value: Value) -> Desc:
    """The description of a value of the module.

    Raises:
        Unsupported: it is not a tensor, or GE has no such element type, or an extent is known only at run time.
    """
    t = value.type
    if not isinstance(t, TensorType) or t.shape is None:
        raise Unsupported(f"`{value.name}` is not a tensor of known rank")
    kind = ge_type(t.dtype)
    if kind is None:
        raise Unsupported(f"GE has no element type for {t.dtype}")
    if not t.is_static:
        raise Unsupported(f"the extents of `{value.name}`, {t}, are not fixed; set them with --shape or --dim")
    return Desc(kind, t.static)


def _anchors(proto: Prototype, inputs: Sequence[Given]) -> tuple[list[str], list[Ref | None]]:
    names: list[str] = []
    refs: list[Ref | None] = []
    given = list(inputs)
    while given and given[-1] is None:
        given.pop()
    for formal, value in zip(proto.inputs, given, strict=False):
        if formal.kind == "dynamic":
            items = [] if value is None else [value] if isinstance(value, Ref) else list(value)
            names += [f"{formal.name}{k}" for k in range(len(items))]
            refs += items
        else:
            assert value is None or isinstance(value, Ref), f"{proto.name}.{formal.name} takes one tensor"
            names.append(formal.name)
            refs.append(value)
    return names, refs


def _output_names(proto: Prototype, count: int) -> list[str]:
    names: list[str] = []
    for formal in proto.outputs:
        if formal.kind == "dynamic":
            names += [f"{formal.name}{k}" for k in range(count - len(names))]
        else:
            names.append(formal.name)
    return names[:count]
