"""The GGUF container: a header of metadata and tensors, followed by their bytes.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The package `gguf` reads it too, but trusts counts (a
hostile file keeps it busy forever), and makes an array of each word of a vocabulary: 1.9 s for one of 49,152, instead
of 0.1 s here.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from occ.runtime.dataclass import dataclass

_MAGIC, _VERSIONS, _ALIGNMENT = b"GGUF", (2, 3), 32
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "u1", 1: "i1", 2: "u2", 3: "i2", 4: "u4", 5: "i4", 6: "f4", 7: "?", 10: "u8", 11: "i8", 12: "f8"}
_MOST_DIMS = 4  # GGML_MAX_DIMS
_LEAST_ENTRY = 12  # bytes of a name and what follows it: limits the number of entries of a file


class ContainerError(ValueError):
    """The bytes are not a complete GGUF file."""


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of a file.

    Attributes:
        kind: its number in ggml's list of types.
        shape: elements, outermost first.
        start: offset of its bytes in the file.
    """

    kind: int
    shape: tuple[int, ...]
    start: int


@dataclass(frozen=True)
class Container:
    """The contents of a GGUF file.

    Attributes:
        data: its bytes, u8, mapped.
        metadata: values by key; arrays are lists.
        tensors: by name, in the order of the file.
    """

    data: np.ndarray
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]


def is_gguf(data: bytes | np.ndarray) -> bool:
    """Whether the bytes start like a GGUF file."""
    return bytes(data[:4]) == _MAGIC


def read_container(path: Path) -> Container:
    """Read the header of a file.

    Raises:
        OSError: the file cannot be read.
        ContainerError: it is not a GGUF file, has another version, or is truncated.
    """
    if path.stat().st_size < len(_MAGIC):
        raise ContainerError("it is empty")
    data = np.memmap(path, np.uint8, "r").view(np.ndarray)
    try:
        return _Header(data).read()
    except (struct.error, UnicodeDecodeError, RecursionError) as e:
        raise ContainerError(f"its header is invalid: {e}") from None


class _Header:
    """The header of a file, read sequentially."""

    def __init__(self, data: np.ndarray) -> None:
        self.data, self.at = data, 0
        self.view = memoryview(data)  # pyright: ignore[reportArgumentType] - arrays have the buffer protocol

    def read(self) -> Container:
        """All of it."""
        if bytes(self._take(4)) != _MAGIC:
            raise ContainerError("it does not begin with `GGUF`")
        version = self._number("u4")
        if version not in _VERSIONS:
            raise ContainerError(f"it has version {version}; little-endian files of versions 2 and 3 are supported")
        tensors, keys = self._count(_LEAST_ENTRY), self._count(_LEAST_ENTRY)
        metadata = {}
        for _ in range(keys):
            key = self._text()
            metadata[key] = self._value(self._number("u4"))
        found = [self._tensor() for _ in range(tensors)]
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ContainerError(f"general.alignment is {alignment}")
        start = -(-self.at // alignment) * alignment
        return Container(self.data, metadata, {n: TensorInfo(k, s, start + o) for n, k, s, o in found})

    def _take(self, count: int) -> memoryview:
        end = self.at + count
        if end > len(self.view):
            raise ContainerError(
                f"it ends at byte {len(self.view)}, in the middle of its header: the download may be incomplete"
            )
        self.at = end
        return self.view[end - count : end]

    def _number(self, kind: str) -> Any:
        dtype = np.dtype(kind).newbyteorder("<")
        return np.frombuffer(self._take(dtype.itemsize), dtype)[0].item()

    def _count(self, each: int) -> int:
        """A count of items that take at least a given number of bytes each."""
        count = self._number("u8")
        if count * each > len(self.view) - self.at:
            raise ContainerError(f"it declares {count} entries, but is too short for them")
        return count

    def _text(self) -> str:
        return bytes(self._take(self._number("u8"))).decode("utf-8", "surrogateescape")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            return self._array(self._number("u4"))
        if kind not in _SCALARS:
            raise ContainerError(f"a value has the unknown type {kind}")
        return self._number(_SCALARS[kind])

    def _array(self, kind: int) -> list[Any]:
        if kind in _SCALARS:
            dtype = np.dtype(_SCALARS[kind]).newbyteorder("<")
            count = self._count(dtype.itemsize)
            return np.frombuffer(self._take(count * dtype.itemsize), dtype).tolist()
        count = self._count(8)
        return self._texts(count) if kind == _STRING else [self._value(kind) for _ in range(count)]

    def _texts(self, count: int) -> list[str]:
        """An array of texts: vocabularies have 262,144 of them, so nothing is called for each but what reads it."""
        view, size, at, found, length_of = self.view, len(self.view), self.at, [], struct.Struct("<Q").unpack_from
        for _ in range(count):
            start = at + 8
            at = start + length_of(view, at)[0] if start <= size else start
            if at > size:
                break
            found.append(bytes(view[start:at]).decode("utf-8", "surrogateescape"))
        self._take(at - self.at)  # raises if the file ends within a text, or within its length
        return found

    def _tensor(self) -> tuple[str, int, tuple[int, ...], int]:
        name, rank = self._text(), self._number("u4")
        if rank > _MOST_DIMS:
            raise ContainerError(f"the tensor `{name:.80}` has {rank} dims, more than {_MOST_DIMS}")
        shape = tuple(self._number("u8") for _ in range(rank))[::-1]
        kind, offset = self._number("u4"), self._number("u8")
        if prod(shape) > 1 << 62 or offset > len(self.view):
            raise ContainerError(f"the tensor `{name:.80}` is outside of the file")
        return name, kind, shape, offset
