"""The schema of ge.proto as the public torch-npu wheel ships it, and what it and the prototypes say of an `.air` file."""

from __future__ import annotations

import ast
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.unknown_fields import UnknownFieldSet

from occ.compiler.codegen_cann.graph.formats import TYPES
from occ.compiler.codegen_cann.graph.prototypes import Formal, prototypes

ROOT = Path(__file__).parents[2]
_NAMES = {number: name for name, (number, *_) in TYPES.items()}  # of the enumeration that descriptions use
_STRUCTURE = ("Data", "NetOutput", "Const", "FileConstant")


def wheel() -> Path:
    """The public torch-npu wheel; fetched once into the build folder."""
    folder = ROOT / "build" / "torch-npu"
    found = sorted(folder.glob("torch_npu-2.14.0-*.whl"))
    if not found:
        fetch = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(folder), "torch-npu==2.14.0"]
        done = subprocess.run(fetch, capture_output=True, text=True, timeout=300, check=False)
        found = sorted(folder.glob("torch_npu-2.14.0-*.whl"))
        if done.returncode or not found:
            pytest.skip(f"the torch-npu wheel cannot be fetched: {done.stderr.strip()[-200:]}")
    return found[0]


@cache
def model_class() -> Any:
    """The class of ge.proto.ModelDef, from the descriptor in the wheel's generated module."""
    with zipfile.ZipFile(wheel()) as z:
        (name,) = [n for n in z.namelist() if n.endswith("ge_ir_by_protoc_3_19_pb2.py")]
        tree = ast.parse(z.read(name))
    data = max((n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, bytes)), key=len)
    file = descriptor_pb2.FileDescriptorProto.FromString(data)
    assert file.package == "ge.proto"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("ge.proto.ModelDef"))


def unknown(message: Any) -> int:
    """How many fields of a message, nested ones included, the schema does not have."""
    count = len(UnknownFieldSet(message))
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        is_map = field.message_type.GetOptions().map_entry
        items = value.values() if is_map else [value] if hasattr(value, "ListFields") else value
        count += sum(unknown(v) for v in items)
    return count


def parsed(data: bytes) -> Any:
    """An `.air` file in the public schema: no unknown field, and the same message when it is written again."""
    kind = model_class()
    message = kind.FromString(data)
    assert unknown(message) == 0
    assert kind.FromString(message.SerializeToString(deterministic=True)) == message
    return message


def faults(message: Any) -> Iterator[str]:
    """What the prototypes of the operators say against the nodes of a message."""
    for graph in message.graph:
        for node in graph.op:
            if node.type in _STRUCTURE:
                continue
            if (proto := prototypes().get(node.type)) is None:
                yield f"{node.name}: no operator {node.type}"
                continue
            if len(node.input) != len(node.input_desc):
                yield f"{node.name}: {len(node.input)} edges for {len(node.input_desc)} inputs"
            yield from (f"{node.name}: {x}" for x in _descs(proto.inputs, node.input_desc))
            yield from (f"{node.name}: {x}" for x in _descs(proto.outputs, node.output_desc))
            missing = [n for n, a in proto.attrs.items() if a.required and n not in node.attr]
            if missing:
                yield f"{node.name}: {node.type} needs {missing}"


def _descs(formals: tuple[Formal, ...], descs: Any) -> Iterator[str]:
    """Descriptions follow the formal tensors in order; `x0`, `x1`, ... stand for a dynamic one."""
    left = list(formals)
    for d in descs:
        while left and not _is(left[0], d.name):
            if left[0].kind == "required":
                yield f"`{d.name}` where `{left[0].name}` is expected"
            left.pop(0)
        if not left:
            yield f"`{d.name}` is not of the prototype"
            return
        if d.dtype and left[0].dtypes and _NAMES[d.dtype] not in left[0].dtypes:
            yield f"`{d.name}` is {_NAMES[d.dtype]}, not one of {sorted(left[0].dtypes)}"
        if left[0].kind != "dynamic":
            left.pop(0)
    if any(f.kind == "required" for f in left):
        yield f"`{left[0].name}` is missing"


def _is(formal: Formal, name: str) -> bool:
    if formal.kind == "dynamic":
        return name.startswith(formal.name) and name[len(formal.name) :].isdigit()
    return formal.name == name
