"""The part of ge.proto that graphs need, as message classes made at run time."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_SCHEMA = """
message ShapeDef { repeated int64 dim = 1; }
message TensorDescriptor {
  string name = 1; int32 dtype = 2; ShapeDef shape = 3; string layout = 4; map<AttrDef> attr = 5;
  bool has_out_attr = 9; int64 size = 10; int64 weight_size = 11; bool reuse_input = 12; bool output_tensor = 13;
  string device_type = 14; bool input_tensor = 15; int64 real_dim_cnt = 16; int64 reuse_input_index = 17;
  int64 data_offset = 18; int64 cmps_size = 19; string cmps_tab = 20; int64 cmps_tab_offset = 21;
}
message TensorDef { TensorDescriptor desc = 1; bytes data = 2; }
message ListInt { repeated int64 list_i = 1; }
message ListListInt { repeated ListInt list_list_i = 1; }
message ListValue {
  repeated bytes s = 2; repeated int64 i = 3; repeated float f = 4; repeated bool b = 5; repeated bytes bt = 7;
  repeated TensorDescriptor td = 8; repeated TensorDef t = 9; repeated int64 dt = 12; int32 val_type = 20;
}
message AttrDef {
  oneof ListValue list = 1; oneof bytes s = 2; oneof int64 i = 3; oneof float f = 4; oneof bool b = 5; oneof bytes bt = 7;
  oneof TensorDescriptor td = 11; oneof TensorDef t = 12; oneof ListListInt list_list_int = 14; oneof int64 dt = 15;
}
message OpDef {
  string name = 1; string type = 2; repeated string input = 5; map<AttrDef> attr = 10; bool has_out_attr = 20;
  int64 id = 21; int64 stream_id = 22; repeated string input_name = 23; repeated string src_name = 24;
  repeated int64 src_index = 25; repeated string dst_name = 26; repeated int64 dst_index = 27; repeated bool is_input_const = 32;
  repeated TensorDescriptor input_desc = 33; repeated TensorDescriptor output_desc = 34; repeated string subgraph_name = 35;
}
message GraphDef {
  string name = 1; repeated string input = 4; repeated string output = 5; repeated OpDef op = 6; map<AttrDef> attr = 11;
}
message ModelDef {
  string name = 1; uint32 version = 2; string custom_version = 3; repeated GraphDef graph = 7; map<AttrDef> attr = 11;
}
"""
_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _FIELD.TYPE_STRING, "bytes": _FIELD.TYPE_BYTES, "int32": _FIELD.TYPE_INT32, "int64": _FIELD.TYPE_INT64,
    "uint32": _FIELD.TYPE_UINT32, "float": _FIELD.TYPE_FLOAT, "bool": _FIELD.TYPE_BOOL,
}  # fmt: skip
_PACKAGE = "occ.simulator"


def _message(name: str, body: str) -> Any:
    made = descriptor_pb2.DescriptorProto(name=name)
    for label, kind, field, number in re.findall(r"(repeated |oneof |)([\w<>]+) (\w+) = (\d+);", body):
        f = made.field.add(name=field, number=int(number), label=_FIELD.LABEL_OPTIONAL)
        if kind.startswith("map<"):
            _map(made, f, field, kind[4:-1])
            continue
        if kind in _SCALARS:
            f.type = _SCALARS[kind]
        else:
            f.type, f.type_name = _FIELD.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
        if label == "repeated ":
            f.label = _FIELD.LABEL_REPEATED
        elif label == "oneof ":
            if not made.oneof_decl:
                made.oneof_decl.add(name="value")
            f.oneof_index = 0
    return made


def _map(message: Any, f: Any, field: str, kind: str) -> None:
    """A map<string, kind> is a repeated entry message."""
    entry = "".join(p.capitalize() for p in field.split("_")) + "Entry"
    nested = message.nested_type.add(name=entry)
    nested.options.map_entry = True
    nested.field.add(name="key", number=1, label=_FIELD.LABEL_OPTIONAL, type=_FIELD.TYPE_STRING)
    nested.field.add(
        name="value", number=2, label=_FIELD.LABEL_OPTIONAL, type=_FIELD.TYPE_MESSAGE, type_name=f".{_PACKAGE}.{kind}"
    )
    f.label, f.type, f.type_name = _FIELD.LABEL_REPEATED, _FIELD.TYPE_MESSAGE, f".{_PACKAGE}.{message.name}.{entry}"


@cache
def model_class() -> Any:
    """The message class of ModelDef."""
    file = descriptor_pb2.FileDescriptorProto(name="occ_ge.proto", package=_PACKAGE, syntax="proto3")
    for name, body in re.findall(r"message (\w+) \{(.*?)\n?\}", _SCHEMA, re.S):
        file.message_type.append(_message(name, body))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.ModelDef"))
