"""Changes of one thing in a valid model: an extent, a rank, a number in an operand, an attribute, a result more or less."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, helper

from occ.compiler.ir.operator.onnx_values import attr_kind
from tools.fuzz.valid_models import Valid

_LONGER = 17  # than the longest vector of f32, and odd
_NUMBERS = 8  # elements at most of an operand that says how an operator works
Arrays = Mapping[str, np.ndarray]


class Change(Protocol):
    """One thing that is other than in a valid model; its text says what."""

    def of(self, valid: Valid) -> Valid:
        """The model and its inputs with the change."""
        ...


@dataclass(frozen=True)
class Extent:
    """One operand with another extent along one axis, or of another rank.

    Attributes:
        operand: its name.
        axis: the axis; -1 for an axis more in front, -2 for the first axis less, -3 for an axis of two elements in front.
        by: how much longer it is.
    """

    operand: str
    axis: int
    by: int = 0

    def of(self, valid: Valid) -> Valid:
        x = valid.feeds[self.operand]
        if self.axis == -2:
            return with_operand(valid, self.operand, np.asarray(x[0], x.dtype), self)
        if self.axis < 0:
            return with_operand(valid, self.operand, np.stack([x] * (1 if self.axis == -1 else 2)), self)
        # Elements are repeated, so that they stay such as the operator takes.
        kept = np.arange(x.shape[self.axis] + self.by) % x.shape[self.axis]
        return with_operand(valid, self.operand, np.take(x, kept, self.axis), self)

    def __str__(self) -> str:
        kinds = {-1: "an axis more", -2: "an axis less", -3: "two of them"}
        return f"{self.operand}: {kinds.get(self.axis, f'axis {self.axis} {self.by:+}')}"


@dataclass(frozen=True)
class Number:
    """One operand with another number at a place.

    Attributes:
        operand: its name.
        place: of its elements in a row.
        value: the number.
    """

    operand: str
    place: int
    value: float

    def of(self, valid: Valid) -> Valid:
        x = valid.feeds[self.operand].copy()
        x.reshape(-1)[self.place] = self.value
        return with_operand(valid, self.operand, x, self)

    def __str__(self) -> str:
        return f"{self.operand}[{self.place}] = {self.value:g}"


@dataclass(frozen=True)
class Attribute:
    """The first node with an attribute of another value.

    Attributes:
        name: of the attribute.
        value: what it is.
    """

    name: str
    value: Any

    def of(self, valid: Valid) -> Valid:
        made = _copied(valid, self)
        node = made.model.graph.node[0]
        others = [a for a in node.attribute if a.name != self.name]
        del node.attribute[:]
        node.attribute.extend([*others, _stated(self.name, self.value)])
        return made

    def __str__(self) -> str:
        return f"{self.name} = {self.value}"


@dataclass(frozen=True)
class Results:
    """The first node with a result more or less, all of which are outputs."""

    by: int

    def of(self, valid: Valid) -> Valid:
        made = _copied(valid, self)
        graph = made.model.graph
        if self.by > 0:
            graph.node[0].output.append("one_more")
            graph.output.append(helper.make_empty_tensor_value_info("one_more"))
        else:
            last = graph.node[0].output.pop()
            kept = [o for o in graph.output if o.name != last]
            del graph.output[:]
            graph.output.extend(kept)
        return made

    def __str__(self) -> str:
        return f"{self.by:+} result"


def extents(feeds: Arrays) -> Iterator[Extent]:
    """All changes of the extents of operands by one, by more than a vector, and of ranks."""
    for name, x in feeds.items():
        longer = () if x.ndim == 1 and x.dtype.kind in "iu" else (_LONGER,)  # sizes, whose product no memory has
        for axis, n in enumerate(x.shape):
            yield from (Extent(name, axis, by) for by in (1, -1, *longer) if n > 0 and n + by >= 0)
        yield Extent(name, -1)
        if x.ndim and x.shape[0]:
            yield Extent(name, -2)
        else:
            yield Extent(name, -3)


def numbers(feeds: Arrays) -> Iterator[Number]:
    """Numbers of operands of few elements, one at a time: nothing, less than nothing, one more."""
    for name, x in feeds.items():
        if x.dtype.kind not in "iuf" or not 0 < x.size <= _NUMBERS or x.dtype.hasobject:
            continue
        for place in sorted({0, x.size - 1}):
            now = x.reshape(-1)[place].item()
            yield from (Number(name, place, float(v)) for v in (0, -1, now + 1) if v != now and _holds(x.dtype, v))


def _holds(dtype: np.dtype, v: float) -> bool:
    return dtype.kind == "f" or np.iinfo(dtype).min <= v <= np.iinfo(dtype).max


def attributes(valid: Valid) -> Iterator[Attribute | Results]:
    """Attributes of the first node at, beside and beyond the ends of what they may be, and results more and less."""
    node = valid.model.graph.node[0]
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    for name, kind, default in _known(valid, node):
        now = given.get(name, default)
        yield from (Attribute(name, v) for v in _others(name, kind, now) if v != now)
    yield Results(1)
    if len(valid.model.graph.output) > 1 and valid.model.graph.output[-1].name == node.output[-1]:
        yield Results(-1)


def _known(valid: Valid, node: NodeProto) -> Iterator[tuple[str, str, Any]]:
    """Names, types and defaults of what a node may state; of an operator without a schema, of what it states."""
    version = next((s.version for s in valid.model.opset_import if s.domain == node.domain), 1)
    try:
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:
        yield from ((a.name, AttributeProto.AttributeType.Name(a.type), None) for a in node.attribute)
        return
    for name, a in sorted(schema.attributes.items()):
        default = a.default_value
        yield name, attr_kind(a), helper.get_attribute_value(default) if default.name else None


def _others(name: str, kind: str, now: Any) -> list[Any]:
    """Values beside one; None for an attribute that is not stated."""
    if kind == "INT":
        far = [2**31, -(2**63)] if name == "axis" else []
        return [0, -1, 1, 3, *([] if now is None else [now + 1, now - 1, 2 * now]), *far]
    if kind == "FLOAT":
        return [0.0, 1.5, -1.0 if now is None else -now]
    if kind == "STRING":
        return ["nonsense", ""]
    if kind != "INTS":
        return []
    if not now:
        return [[0], [1], [2], [-1], [0, 0], [1, 1]]
    first, *rest = now
    return [
        [first + 1, *rest],
        [first - 1, *rest],
        [-1, *rest],
        [0] * len(now),
        [first] * len(now),
        list(now)[::-1],
        [*now, now[-1]],
        list(now)[:-1],
    ]


def _stated(name: str, value: Any) -> AttributeProto:
    return helper.make_attribute(name, value, attr_type=AttributeProto.INTS if isinstance(value, list) else None)


def _copied(valid: Valid, change: Change) -> Valid:
    model = ModelProto()
    model.CopyFrom(valid.model)
    return Valid(f"{valid.name}, {change}", model, valid.feeds)


def with_operand(valid: Valid, name: str, x: np.ndarray, change: Change) -> Valid:
    """The model with another array for an input, whose extents the model has."""
    made, x = _copied(valid, change), np.ascontiguousarray(x) if x.ndim else x
    (info,) = (i for i in made.model.graph.input if i.name == name)
    shape = info.type.tensor_type.shape
    del shape.dim[:]
    for n in x.shape:
        shape.dim.add().dim_value = n
    return Valid(made.name, made.model, {**valid.feeds, name: x})
