"""Inlines model-local functions at import.

A body has its own names, operator sets and attributes, held in a `Frame` (ONNX IR, section "Functions").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field

import onnx
from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, ValueInfoProto

from occ.compiler.diagnostics import error, shorten
from occ.runtime.dataclass import dataclass

LARGEST = 1_000_000  # maximum nodes; the compiler takes about a millisecond each
_DEEPEST = 100  # maximum depth of calls; programs nest ten or twenty
_Key = tuple[str, str, str]


@dataclass(frozen=True)
class Frame:
    """The scope of a graph, or of one call of a function: names, opsets, attributes.

    Attributes:
        opsets: the version of each domain.
        infos: the file's type information about values.
        function: the name of the function; empty for the graph of the model.
        attrs: the attributes of the call, and the defaults of others, by name.
        formal: the names of all attributes of the function.
        path: the names of the enclosing calls, outermost first.
    """

    opsets: Mapping[str, int]
    infos: tuple[ValueInfoProto, ...] = ()
    function: str = ""
    attrs: Mapping[str, AttributeProto] = field(default_factory=dict[str, AttributeProto])
    formal: frozenset[str] = frozenset()
    path: tuple[str, ...] = ()

    def bound(self, node: NodeProto, where: str) -> NodeProto:
        """A node with its references to function attributes resolved; references without a value are dropped.

        Raises:
            CompileError: OCC0107 the function has no such attribute.
        """
        if not any(a.ref_attr_name for a in node.attribute):
            return node
        made = NodeProto()
        made.CopyFrom(node)
        del made.attribute[:]
        for a in node.attribute:
            if a.ref_attr_name and a.ref_attr_name not in self.formal:
                around = f"the function `{shorten(self.function)}` has" if self.function else "the model itself has"
                what = f"`{shorten(a.name)}` refers to the attribute `{shorten(a.ref_attr_name)}`"
                raise error("OCC0107", f"{what}, and {around} no attribute of that name", where=where)
            given = self.attrs.get(a.ref_attr_name) if a.ref_attr_name else a
            if given is not None:
                made.attribute.add().CopyFrom(given)
                made.attribute[-1].name = a.name
        return made


def opsets_of(proto: ModelProto | FunctionProto) -> dict[str, int]:
    """The operator sets that a model or a function imports."""
    return {_domain(e.domain): e.version for e in proto.opset_import}


class Functions:
    """The functions of a model, by domain, name and overload.

    Raises:
        CompileError: OCC0105 two functions have the same name.
    """

    def __init__(self, proto: ModelProto) -> None:
        self._opsets = opsets_of(proto)
        self._known: dict[_Key, FunctionProto] = {}
        for f in proto.functions:
            key = _domain(f.domain), f.name, f.overload
            if key in self._known:
                raise error("OCC0105", f"the model-local function `{shorten(f.name)}` is defined twice")
            self._known[key] = f

    def called_by(self, node: NodeProto) -> FunctionProto | None:
        """The function that a node calls. An ONNX operator is not replaced by a function with its name."""
        key = _key(node)
        return self._known.get(key) if key in self._known and not _is_of_onnx(node) else None

    def frame(self, node: NodeProto, f: FunctionProto, caller: Frame, name: str, where: str) -> Frame:
        """The scope of one call of a function.

        Args:
            node: the call, with its own references resolved.
            f: the function.
            caller: the scope of the call itself.
            name: of the call.
            where: how messages name it.

        Raises:
            CompileError: OCC0107 the call does not match the function.
        """
        if len(node.input) > len(f.input) or len(node.output) > len(f.output):
            what = f"the function `{shorten(f.name)}` has {len(f.input)} inputs and {len(f.output)} outputs"
            raise error("OCC0107", f"{what}, not {len(node.input)} and {len(node.output)}", where=where)
        attrs = {a.name: a for a in f.attribute_proto}
        formal = frozenset((*f.attribute, *attrs))
        for a in node.attribute:
            if a.name not in formal:
                what = f"the function `{shorten(f.name)}` has no attribute `{shorten(a.name)}`"
                raise error("OCC0107", what, where=where)
            if a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
                what = f"`{shorten(a.name)}` of the function `{shorten(f.name)}` is a graph, which is not supported"
                raise error("OCC0301", what, where=where)
            attrs[a.name] = a
        opsets = {**self._opsets, **opsets_of(f)}
        return Frame(opsets, tuple(f.value_info), f.name, attrs, formal, (*caller.path, name))

    def check_recursion(self, nodes: Iterable[NodeProto]) -> None:
        """Reject functions that call themselves, or grow to more nodes than a model can have.

        Raises:
            CompileError: OCC0105.
        """
        sizes: dict[_Key, int] = {}

        def size_of(nodes: Iterable[NodeProto], around: tuple[_Key, ...]) -> int:
            total = 0
            for node in nodes:
                inner = [g for a in node.attribute for g in (a.g, *a.graphs)]
                total += 1 + sum(size_of(g.node, around) for g in inner if g.node)
                if (f := self.called_by(node)) is None:
                    continue
                key, name = _key(node), shorten(node.op_type)
                if key in around:
                    raise error(
                        "OCC0105", f"the model-local function `{name}` calls itself", help="ONNX forbids recursion"
                    )
                if len(around) >= _DEEPEST:
                    raise error(
                        "OCC0105", f"`{name}` is called by {len(around)} model-local functions, each in another"
                    )
                if key not in sizes:
                    sizes[key] = size_of(f.node, (*around, key))
                total += sizes[key]
            return total

        if self._known and (count := size_of(nodes, ())) > LARGEST:
            what = f"with its model-local functions inlined the model has {count} nodes, more than {LARGEST}"
            raise error("OCC0105", what, help="call the functions less often")


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _key(node: NodeProto) -> _Key:
    return _domain(node.domain), node.op_type, node.overload


def _is_of_onnx(node: NodeProto) -> bool:
    domain = _domain(node.domain)
    return domain in ("", "ai.onnx.ml") and onnx.defs.has(node.op_type, domain=domain)
