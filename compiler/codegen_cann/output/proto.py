"""A deterministic encoder of ge.proto messages that needs no protobuf library.

The schema is the public ge.proto's (metadef); the numbers have not changed since 2021. A message is a dict by field
name; absent fields are not written, and neither are scalars at their proto3 default outside of a oneof.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

Pieces = list[bytes]
Message = Mapping[str, Any]

# message -> field -> (number, kind); a kind ending in * repeats, `map` is map<string, AttrDef>, `!` marks oneof members
SCHEMA: dict[str, dict[str, tuple[int, str]]] = {
    "ModelDef": {"name": (1, "string"), "version": (2, "int"), "custom_version": (3, "string"), "graph": (7, "GraphDef*"), "attr": (11, "map")},
    "GraphDef": {"name": (1, "string"), "input": (4, "string*"), "output": (5, "string*"), "op": (6, "OpDef*"), "attr": (11, "map")},
    "OpDef": {
        "name": (1, "string"), "type": (2, "string"), "input": (5, "string*"), "attr": (10, "map"),
        "has_out_attr": (20, "int"), "id": (21, "int"), "is_input_const": (32, "int*"),
        "input_desc": (33, "TensorDescriptor*"), "output_desc": (34, "TensorDescriptor*"),
        "subgraph_name": (35, "string*"),
    },
    "TensorDescriptor": {
        "name": (1, "string"), "dtype": (2, "int"), "shape": (3, "ShapeDef"), "layout": (4, "string"),
        "attr": (5, "map"), "has_out_attr": (9, "int"), "size": (10, "int"), "weight_size": (11, "int"),
        "device_type": (14, "string"),
    },
    "ShapeDef": {"dim": (1, "int*")},
    "TensorDef": {"desc": (1, "TensorDescriptor"), "data": (2, "bytes")},
    "AttrDef": {
        "list": (1, "ListValue!"), "s": (2, "bytes!"), "i": (3, "int!"), "f": (4, "float!"), "b": (5, "int!"),
        "t": (12, "TensorDef!"), "list_list_int": (14, "ListListInt!"), "dt": (15, "int!"),
    },
    "ListValue": {
        "s": (2, "bytes*"), "i": (3, "int*"), "f": (4, "float*"), "b": (5, "int*"), "dt": (12, "int*"),
        "val_type": (20, "int"),
    },
    "ListListInt": {"list_list_i": (1, "ListInt*")},
    "ListInt": {"list_i": (1, "int*")},
}  # fmt: skip


def varint(value: int) -> bytes:
    """A number in base 128, least significant group first; negative ones as 64-bit two's complement."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _tagged(number: int, pieces: Pieces) -> Pieces:
    return [varint(number << 3 | 2) + varint(sum(map(len, pieces))), *pieces]


def _blob(kind: str, value: Any) -> Pieces:
    if kind in ("string", "bytes"):
        return [value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")]
    return _pieces(kind, value)


def encode(message: str, value: Message) -> bytes:
    """The bytes of a message: fields by number, maps by key.

    Raises:
        KeyError: `value` has a field that the message does not have.
    """
    return b"".join(_pieces(message, value))


def _pieces(message: str, value: Message) -> Pieces:
    """A message in pieces, so that large nested ones are copied once, at the end."""
    schema = SCHEMA[message]
    parts: Pieces = []
    for name in sorted(value, key=lambda n: schema[n][0]):
        number, kind = schema[name]
        parts += _field(number, kind, value[name])
    return parts


def _field(number: int, kind: str, value: Any) -> Pieces:
    if kind == "map":
        keys = sorted(value, key=lambda key: b"".join(_tagged(1, _blob("string", key))))
        entries = ([*_tagged(1, _blob("string", key)), *_tagged(2, _pieces("AttrDef", value[key]))] for key in keys)
        return [piece for entry in entries for piece in _tagged(number, entry)]
    base, repeated, one_of = kind.rstrip("*!"), kind.endswith("*"), kind.endswith("!")
    if repeated and base == "int":
        return _tagged(number, [b"".join(varint(int(v)) for v in value)]) if len(value) else []
    if repeated and base == "float":
        return _tagged(number, [struct.pack(f"<{len(value)}f", *value)]) if len(value) else []
    if repeated:
        return [piece for v in value for piece in _tagged(number, _blob(base, v))]
    if base == "int":
        return [varint(number << 3) + varint(int(value))] if value or one_of else []
    if base == "float":
        return [varint(number << 3 | 5) + struct.pack("<f", value)]
    data = _blob(base, value)
    return _tagged(number, data) if any(data) or one_of or base[0].isupper() else []
