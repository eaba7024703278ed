"""Imports operators of AMCT and torch_npu that only Ascend devices can run.

They become `device_operator`: with unchanged name and attributes, and the result types that the model states. Whether
GE has such an operator, and what it accepts, is checked by targets with GE.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from onnx import NodeProto, ValueInfoProto

from occ.compiler.diagnostics import error, shorten
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.dtype import BY_ONNX
from occ.compiler.ir.op import Value
from occ.compiler.ir.types import TensorType

NAME = "device_operator"
_NAMES = re.compile(r"(npu\.[A-Za-z_]\w*|(NPU|Ascend)[A-Z]\w*)", re.ASCII)
# Whose first result is like their first operand, whatever the model states.
_LIKE_FIRST = frozenset(
    {"FastGelu", "FastGeluV2", "FormatCast", "GeluV2", "GroupNormSilu", "Mish", "RotaryMul", "Silu"}
)
_LONGEST = 1 << 16  # maximum characters of attributes


def is_of_a_device(name: str) -> bool:
    """Whether an operator, with its domain, is one of AMCT or torch_npu, by its name."""
    return _NAMES.fullmatch(name) is not None


def attributes_of(
    proto: NodeProto,
    attrs: Mapping[str, Any],
    operands: list[Value | None],
    infos: Iterable[ValueInfoProto],
    dims: Mapping[str, Dim],
    where: str,
) -> dict[str, Any]:
    """The attributes of the `device_operator` for a node.

    Args:
        proto: the node.
        attrs: its attributes.
        operands: of the node.
        infos: the model's type information about values.
        dims: the extents of the inputs by name.
        where: how messages name the node.

    Raises:
        CompileError: OCC0107 an attribute is not a number, text, or list of them; OCC0108 the type of a result is
            unknown.
    """
    text = _json(proto.op_type, attrs, where)
    stated = {i.name: i for i in infos if i.name in set(proto.output)}
    like_first = bool(operands) and proto.op_type.removeprefix("NPU") in _LIKE_FIRST
    types = [
        None if k == 0 and like_first else _type(n, stated.get(n), dims, proto, where)
        for k, n in enumerate(_named(proto))
    ]
    return {
        "type": proto.op_type,
        "attributes": text,
        "dtypes": tuple(t.dtype.name if t else "" for t in types),
        "ranks": tuple(t.rank if t else 0 for t in types),
        "dims": tuple(d for t in types if t for d in t.dims),
    }


def _json(operator: str, attrs: Mapping[str, Any], where: str) -> str:
    """Attributes as JSON; all are numbers, texts, or lists of them."""
    for name, value in attrs.items():
        listed = value if isinstance(value, tuple) else (value,)
        if not all(isinstance(v, (int, float, str)) for v in listed):
            what = f"attribute `{shorten(name)}` of `{shorten(operator)}` is neither a number nor a text"
            raise error("OCC0107", what, where=where)
    text = json.dumps(attrs)
    if len(text) > _LONGEST:
        raise error("OCC0107", f"the attributes of `{shorten(operator)}` take {len(text)} characters", where=where)
    return text


def _named(proto: NodeProto) -> list[str]:
    names = list(proto.output)
    while len(names) > 1 and not names[-1]:
        names.pop()
    return names


def _type(name: str, info: ValueInfoProto | None, known: Mapping[str, Dim], proto: NodeProto, where: str) -> TensorType:
    """The type that the model states for a result."""
    tensor = info.type.tensor_type if info is not None and info.type.HasField("tensor_type") else None
    dtype = BY_ONNX.get(tensor.elem_type) if tensor is not None else None
    dims: list[Dim | None] = []
    for d in tensor.shape.dim if tensor is not None else ():
        dims.append(d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else known.get(d.dim_param))
    found = [d for d in dims if d is not None]
    if tensor is None or dtype is None or not tensor.HasField("shape") or len(found) != len(dims):
        what = (
            f"the file does not declare the type of `{shorten(name)}`, a result of the device's operator "
            f"`{shorten(proto.op_type)}`"
        )
        help_ = (
            "export with shapes: the model's `value_info` must have its element type, and its extents as numbers or "
            "names that inputs use"
        )
        raise error("OCC0108", what, where=where, help=help_)
    return TensorType(dtype, tuple(found))
