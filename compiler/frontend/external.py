"""Weights as views of mapped files, from the model file or from external data.

`scan` walks the protobuf wire format of a model file, records where the raw bytes of each large initializer are, and
returns the message without them. So neither protobuf nor the Python heap ever holds the weights. Wire format:
https://protobuf.dev/programming-guides/encoding; field numbers: onnx.proto.
"""

from __future__ import annotations

from dataclasses import field
from math import prod
from pathlib import Path

import numpy as np
from onnx import SparseTensorProto, TensorProto, numpy_helper

from occ.compiler.diagnostics import CompileError, error, shorten
from occ.compiler.ir import dtype as dt
from occ.compiler.ir.dtype import DType
from occ.runtime.dataclass import dataclass
from occ.runtime.file_formats import foreign_file

_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9  # ModelProto.graph, GraphProto.initializer, TensorProto.raw_data
_OUTPUT, _NAME = 12, 1  # GraphProto.output, ValueInfoProto.name
_SMALLEST = 1024  # bytes; smaller ones are copied
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass
class MappedModel:
    """A model file without its large initializers.

    Attributes:
        message: the protobuf message without raw bytes of large initializers.
        raw: index of an initializer -> its bytes, a view of the mapped file.
        files: other files that it was read from.
    """

    message: bytes
    raw: dict[int, np.ndarray] = field(default_factory=dict)
    files: frozenset[Path] = frozenset()


@dataclass
class ModelFolder:
    """The folder of a model file: the location of external data.

    Attributes:
        path: of the folder.
        real: the folder of the link target if the model file is a link, as in content-addressed caches.
        read: the files in it that tensors refer to.
        refused: locations found not to be files of the model: only the first tensor of each is reported.
    """

    path: Path
    real: Path
    read: set[Path] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, model: Path) -> ModelFolder:
        """The folder of a model file."""
        return cls(model.parent, model.resolve().parent)


class WireError(ValueError):
    """The bytes are not a complete protobuf message."""


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise WireError("a number is cut off")


def _fields(data: memoryview, start: int, end: int):
    at = start
    while at < end:
        whole = at
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value = at
            _, at = _varint(data, at)
        elif wire in (_FIXED64, _FIXED32):
            value, at = at, at + (8 if wire == _FIXED64 else 4)
        elif wire == _BYTES:
            size, value = _varint(data, at)
            at = value + size
        else:
            raise WireError(f"wire type {wire}")
        if at > end or number == 0:
            raise WireError("a field reaches past the end of its message")
        yield number, wire, whole, value, at


def _encode(number: int, payload: bytes) -> bytes:
    head = bytearray()
    for value in (number << 3 | _BYTES, len(payload)):
        while value >= 0x80:
            head.append(value & 0x7F | 0x80)
            value >>= 7
        head.append(value)
    return bytes(head) + payload


def scan(mapped: np.ndarray) -> MappedModel:
    """Split a mapped model file into message and raw weights.

    Args:
        mapped: the bytes of the file, u8[n].

    Raises:
        WireError: not a protobuf message, or an incomplete one.
    """
    data = memoryview(mapped)  # pyright: ignore[reportArgumentType] - arrays have the buffer protocol
    model = MappedModel(b"")
    out: list[bytes] = []
    for number, wire, whole, value, end in _fields(data, 0, len(data)):
        if number == _GRAPH and wire == _BYTES:
            out.append(_encode(_GRAPH, _slim_graph(data, value, end, mapped, model)))
        else:
            out.append(bytes(data[whole:end]))
    model.message = b"".join(out)
    return model


def output_names(mapped: np.ndarray) -> list[str]:
    """The names of a graph's outputs, of which alone anything is read.

    Args:
        mapped: the bytes of a model file, u8[n].

    Raises:
        WireError: not a protobuf message, or an incomplete one.
    """
    data = memoryview(mapped)  # pyright: ignore[reportArgumentType] - arrays have the buffer protocol
    places = [(0, len(data))]
    for wanted in (_GRAPH, _OUTPUT, _NAME):
        places = [
            (value, end)
            for place in places
            for number, wire, _, value, end in _fields(data, *place)
            if number == wanted and wire == _BYTES
        ]
    return [bytes(data[start:end]).decode("utf-8", "replace") for start, end in places]


def _slim_graph(data: memoryview, start: int, stop: int, mapped: np.ndarray, model: MappedModel) -> bytes:
    out: list[bytes] = []
    index = 0
    for number, wire, whole, value, end in _fields(data, start, stop):
        if number != _INITIALIZER or wire != _BYTES:
            out.append(bytes(data[whole:end]))
            continue
        kept: list[bytes] = []
        for n, w, inner, at, close in _fields(data, value, end):
            if n == _RAW_DATA and w == _BYTES and close - at >= _SMALLEST:
                model.raw[index] = mapped[at:close]
            else:
                kept.append(bytes(data[inner:close]))
        out.append(_encode(_INITIALIZER, b"".join(kept)))
        index += 1
    return b"".join(out)


def tensor_array(tensor: TensorProto, folder: ModelFolder | None, raw: np.ndarray | None = None) -> np.ndarray:
    """The data of a tensor as an array, without a copy if possible.

    Args:
        tensor: the tensor.
        folder: location of external data; None if the model came without a path.
        raw: the raw bytes, if `scan` removed them.

    Raises:
        CompileError: OCC0106 external data cannot be used; OCC0108 the data do not match the shape.
    """
    dtype = dt.BY_ONNX.get(tensor.data_type)
    name = shorten(tensor.name)
    if dtype is None:
        raise error("OCC0108", f"tensor `{name}` has the unknown element type {tensor.data_type}")
    shape = tuple(tensor.dims)
    if any(d < 0 for d in shape):
        raise error("OCC0108", f"tensor `{name}` has the shape {list(shape)}")
    if tensor.data_location == TensorProto.EXTERNAL:
        raw = _external(tensor, folder, dtype, shape)
    if raw is not None:
        return _view(raw, dtype, shape, name)
    try:
        array = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OverflowError, MemoryError) as e:
        raise error(
            "OCC0108", f"the data of tensor `{name}` do not fit its type {dtype}{list(shape)}", notes=[str(e)]
        ) from None
    if dtype == dt.STR:
        return np.array(
            [v.decode("utf-8", "surrogateescape") if isinstance(v, bytes) else v for v in array.reshape(-1)], object
        ).reshape(shape)
    return array


def _stored_bytes(dtype: DType, count: int) -> int:
    return -(-count * dtype.bits // 8)


def _view(raw: np.ndarray, dtype: DType, shape: tuple[int, ...], name: str) -> np.ndarray:
    count = prod(shape)
    needed = _stored_bytes(dtype, count)
    if raw.size != needed:
        raise error("OCC0108", f"tensor `{name}` holds {raw.size} bytes, {dtype}{list(shape)} takes {needed}")
    if dtype.bits >= 8:
        return raw.view(dtype.numpy).reshape(shape)
    bits = np.unpackbits(raw, count=count * dtype.bits, bitorder="little").reshape(count, dtype.bits)
    small = np.packbits(bits, axis=1, bitorder="little").reshape(count)
    if dtype.kind == "i":  # sign extension
        top = 1 << (dtype.bits - 1)
        return ((small ^ top).astype(np.int8) - top).astype(dtype.numpy).reshape(shape)
    return (small.view(dtype.numpy) if dtype.is_float else small.astype(dtype.numpy)).reshape(shape)


def _external(tensor: TensorProto, folder: ModelFolder | None, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    entries = {e.key: e.value for e in tensor.external_data}
    name, location = shorten(tensor.name), entries.get("location", "")
    shown = shorten(location)

    def refuse(why: str, help: str = "") -> CompileError:  # noqa: A002
        return error("OCC0106", f"external data `{shown}` of tensor `{name}` {why}", help=help)

    if folder is None:
        raise refuse("cannot be found, because the model was passed without a path", "pass the path of the model file")
    if location in folder.refused:
        raise CompileError(())
    path = folder.path / location
    try:
        named = not Path(location).is_absolute() and "\0" not in location
        inside = named and any(_is_inside(path, home) for home in (folder.path, folder.real))
        found = path.is_file()
    except (OSError, RuntimeError) as e:  # circular links, or names that are too long
        raise refuse(f"cannot be found: {e.strerror if isinstance(e, OSError) else e}") from None
    if not location or not inside or not found:
        folder.refused.add(location)
    if not location or not inside:
        raise refuse("is outside of the model's folder", "external data must stay next to the model")
    if not found:
        raise refuse("is missing", f"copy the file to `{shorten(str(folder.path))}`")
    needed = _stored_bytes(dtype, prod(shape))
    try:
        offset = int(entries.get("offset", 0))
        length = int(entries.get("length", 0)) or needed
    except ValueError:
        raise refuse("has an offset or length that is not a number") from None
    if length != needed:
        raise refuse(f"has {length} bytes, {dtype}{list(shape)} takes {needed}")
    folder.read.add(path)
    size = path.stat().st_size
    if (offset < 0 or length < 0 or offset + length > size) and (known := foreign_file(path)) is not None:
        folder.refused.add(location)
        raise refuse(f"is {known[0]}", known[1])
    if offset < 0 or length < 0 or offset + length > size:
        raise refuse(f"ends at byte {size}, but the tensor needs bytes {offset} to {offset + length}")
    if length == 0:
        return np.empty(0, np.uint8)
    return np.memmap(path, np.uint8, "r", offset, (length,)).view(np.ndarray)


def _is_inside(path: Path, folder: Path) -> bool:
    """Whether `path`, with links resolved, is below `folder`.

    Invalid file names and circular links are not.
    """
    try:
        path.exists()  # raised for names that are too long
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return False


def dense_array(sparse: SparseTensorProto, folder: ModelFolder | None) -> np.ndarray:
    """The data of a sparse tensor, including zeros.

    Raises:
        CompileError: OCC0106 external data cannot be used; OCC0108 the data do not match the shape.
    """
    values, indices = tensor_array(sparse.values, folder), tensor_array(sparse.indices, folder)
    try:
        dense = np.zeros(tuple(sparse.dims), values.dtype)
        if indices.ndim == 1:
            dense.reshape(-1)[indices] = values
        else:
            dense[tuple(indices.T)] = values
    except (ValueError, IndexError, TypeError, MemoryError) as e:
        what = f"the sparse tensor `{shorten(sparse.values.name)}` does not fit its shape {list(sparse.dims)[:8]}"
        raise error("OCC0108", what, notes=[str(e)]) from None
    return dense
