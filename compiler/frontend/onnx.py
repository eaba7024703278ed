"""Imports ONNX protobuf as a module at stage `imported`.

All problems of a model are collected and reported at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import FunctionProto, GraphProto, ModelProto

from occ.compiler.diagnostics import CompileError, Sink, closest, error, shorten
from occ.compiler.frontend.architectures.gguf_container import is_gguf
from occ.compiler.frontend.external import MappedModel, ModelFolder, WireError, scan
from occ.compiler.frontend.functions import Functions
from occ.compiler.frontend.graph import GraphImporter
from occ.compiler.frontend.ort_format import OrtFormatError, is_ort, read_ort
from occ.compiler.frontend.signature import Overrides
from occ.compiler.ir.module import Module
from occ.compiler.ir.operator.registry import Registry
from occ.runtime.file_formats import foreign_file


def read_file(path: Path, adapter: Path | None = None) -> tuple[ModelProto, MappedModel]:
    """Read a model file, with its large weights mapped.

    Args:
        path: of the file.
        adapter: the folder of a LoRA adapter, for weight files without a graph.

    Raises:
        CompileError: OCC0101 the file cannot be read; OCC0102 it is not an ONNX model; OCC0109 no model can be made of
            its weights.
    """
    if path.name.endswith((".safetensors", ".safetensors.index.json")) and path.is_file():
        from occ.compiler.frontend.architectures.safetensors_folder import read_safetensors  # few builds need it

        return read_safetensors(path, adapter)
    try:
        size = path.stat().st_size
        if path.is_dir():
            raise error("OCC0101", f"`{path}` is a directory", help="name the .onnx file in it")
        mapped = np.memmap(path, np.uint8, "r").view(np.ndarray) if size else np.empty(0, np.uint8)
    except OSError as e:
        raise error("OCC0101", f"`{path}` cannot be read: {e.strerror}", help=_meant(path)) from None
    if is_ort(mapped):
        return _read_ort(mapped, str(path), views=True)
    if is_gguf(mapped):
        from occ.compiler.frontend.architectures.gguf_file import read_gguf

        return read_gguf(path, adapter)
    if adapter is not None:
        raise error(
            "OCC0109",
            f"the adapter `{shorten(str(adapter))}` cannot be added to `{path}`, which is ONNX",
            help="pass a GGUF file or a folder of safetensors, or merge the adapter before the export",
        )
    try:
        model = scan(mapped)
    except WireError as e:
        raise not_a_model(path, str(e)) from None
    return _decode(model.message, path), model


def _read_ort(data: bytes | np.ndarray, where: str, *, views: bool) -> tuple[ModelProto, MappedModel]:
    try:
        proto, mapped = read_ort(data, views=views)
    except (OrtFormatError, ValueError) as e:
        help_ = "use the .onnx file that it was made from"
        raise error("OCC0102", f"the .ort file `{shorten(where)}` cannot be read", notes=[str(e)], help=help_) from None
    return _whole(proto, where), mapped


def _decode(data: bytes, where: str | Path) -> ModelProto:
    if is_ort(data):
        return _read_ort(data, str(where), views=False)[0]
    head = None if isinstance(where, Path) else data
    try:
        proto = ModelProto.FromString(data)
    except DecodeError as e:
        raise not_a_model(where, str(e), head) from None
    return _whole(proto, where, head)


def _whole(proto: ModelProto, where: str | Path, head: bytes | None = None) -> ModelProto:
    if not proto.HasField("graph") or not proto.opset_import:
        why = "it has no graph" if not proto.HasField("graph") else "it imports no operator set"
        raise not_a_model(where, why, head)
    return proto


def _meant(path: Path) -> str:
    """The model in the same folder that a path may have meant, or a hint that URLs are not read."""
    if path.parts[0] in ("http:", "https:", "s3:", "hf:"):
        return "the model must be a file: download it first"
    try:
        names = [p.name for p in path.parent.iterdir() if p.suffix in (".onnx", ".ort", ".pt2", ".occ")]
    except OSError:
        return ""
    same = [n for n in names if Path(n).stem == path.name]
    return f"did you mean `{same[0]}`?" if same else closest(path.name, names)


def not_a_model(where: str | Path, why: str, data: bytes | None = None) -> CompileError:
    """The error for a file, or for named `data`, that is not a model."""
    known = foreign_file(where if data is None else data)
    if known is not None:
        return error("OCC0102", f"`{shorten(str(where))}` is not an ONNX model but {known[0]}", help=known[1])
    help_ = "compare the file's size with that of its source: the download may be incomplete"
    return error("OCC0102", f"`{shorten(str(where))}` is not an ONNX model", notes=[why], help=help_)


def import_model(
    source: Path | bytes | ModelProto, overrides: Overrides | None = None, registry: Registry | None = None, *,
    name: str = "", adapter: Path | None = None,
) -> Module:  # fmt: skip
    """Import a model.

    Args:
        source: a model file, its bytes, or a message.
        overrides: extents fixed by the user.
        registry: the available operators; the built-in ones if None.
        name: of the module; from the file or the graph if empty.
        adapter: as in `read_file`.

    Raises:
        CompileError: with every problem found.
    """
    proto, mapped, folder = _read(source, adapter)
    if isinstance(source, Path):
        name = name or source.stem
    _check_names(proto)
    sink = Sink()
    _check_versions(proto, sink)
    sink.raise_errors()
    functions = Functions(proto)
    functions.check_recursion(proto.graph.node)
    made = GraphImporter(
        proto,
        mapped,
        folder,
        overrides or Overrides(),
        sink,
        name or proto.graph.name or "model",
        registry or Registry(),
        functions,
    ).run()
    made.files = tuple(sorted(folder.read)) if folder is not None else ()
    return made


def _read(
    source: Path | bytes | ModelProto, adapter: Path | None
) -> tuple[ModelProto, MappedModel, ModelFolder | None]:
    """The message of a model, its mapped file, and the folder that its external data are in."""
    match source:
        case Path():
            proto, mapped = read_file(source, adapter)
            folder = ModelFolder.of(source)
            folder.read |= mapped.files
            return proto, mapped, folder
        case bytes():
            return _decode(source, "<bytes>"), MappedModel(b""), None
        case _:
            if not source.HasField("graph"):
                raise not_a_model("<ModelProto>", "it has no graph")
            return source, MappedModel(b""), None


def _check_names(proto: ModelProto) -> None:
    """Reject strings that are not UTF-8: protobuf returns them as bytes, where the compiler expects text.

    Raises:
        CompileError: OCC0105.
    """
    named = [*proto.opset_import, *proto.functions]
    texts = [*(x.domain for x in named), *_names(proto.graph), *(n for f in proto.functions for n in _names(f))]
    wrong: list[object] = [n for n in texts if not isinstance(n, str)]
    if wrong:
        raise error("OCC0105", f"the name {wrong[0]!r:.200} in the model is not UTF-8", help="export the model again")


def _names(g: GraphProto | FunctionProto) -> Iterator[str]:
    """All names in a graph or function, including its sub-graphs."""
    yield g.name
    for n in g.node:
        yield from (n.name, n.op_type, n.domain, *n.input, *n.output)
        for a in n.attribute:
            yield from (a.name, a.ref_attr_name, a.t.name)
            for inner in (a.g, *a.graphs):
                yield from _names(inner) if inner.node else ()
    if isinstance(g, FunctionProto):
        yield from (*g.input, *g.output, *g.attribute)
        return
    for info in (*g.input, *g.output):
        yield info.name
        yield from (d.dim_param for d in info.type.tensor_type.shape.dim)
    for tensor in (*g.initializer, *(s.values for s in g.sparse_initializer)):
        yield tensor.name
        yield from (text for e in tensor.external_data for text in (e.key, e.value))


def _check_versions(proto: ModelProto, sink: Sink) -> None:
    if proto.ir_version > onnx.IR_VERSION:
        sink.error(
            "OCC0103",
            f"IR version {proto.ir_version} is newer than {onnx.IR_VERSION}, the newest that is known",
            help="re-export the model, or `pip install -U onnx`",
        )
    newest = onnx.defs.onnx_opset_version()
    for entry in (*proto.opset_import, *(e for f in proto.functions for e in f.opset_import)):
        if entry.domain in ("", "ai.onnx") and not 1 <= entry.version <= newest:
            sink.error(
                "OCC0103",
                f"operator set {entry.version} is not one of 1 to {newest}",
                help=f"re-export the model with operator set {newest} or older, or `pip install -U onnx`",
            )
