"""Reads operator dumps of devices (`acl.json` with `dump_list`, or aclmdlSetDump).

A file is the length of a header in 8 bytes, the header, a protobuf DumpData describing inputs and outputs, and the
bytes of the inputs, then of the outputs. Its name is TYPE.NAME.TASK.STREAM.TIME, with `_` for characters not allowed in
file names; newer headers contain the name itself. Tensors are in the kernel's format; NC1HWC0 and FRACTAL_NZ are
converted back to their original extents.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path

import numpy as np

from occ.compiler.ge_simulator.reader import proto_type
from occ.runtime.dataclass import dataclass

_SIZE, _DATA_TYPE, _FORMAT, _SHAPE = "size", "data_type", "format", "shape"
# numbers of the fields that are read
_OUTPUT = {1: _DATA_TYPE, 2: _FORMAT, 3: _SHAPE, 6: _SIZE, 7: "original_shape"}
_INPUT = {1: _DATA_TYPE, 2: _FORMAT, 3: _SHAPE, 5: _SIZE, 6: "original_shape"}
_NC1HWC0, _FRACTAL_NZ, _PLAIN = 3, 29, frozenset({0, 1, 2, 27, 30})
_PARTS = 5  # of a file name, at least


class BadDump(Exception):
    """A file is not a dump of an operator; the text says why."""


@dataclass(frozen=True)
class Dumped:
    """The dumped outputs of an operator; None for unsupported formats."""

    name: str
    type: str
    outputs: tuple[np.ndarray | None, ...]


def dumps(folder: Path) -> tuple[list[Dumped], list[str]]:
    """The dumps in a folder and its subfolders, and why other files are not dumps."""
    found: list[Dumped] = []
    refused: list[str] = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        if path.name.count(".") < _PARTS - 1:
            continue
        try:
            found.append(_dumped(path))
        except BadDump as e:
            refused.append(f"{path.name}: {e}")
    return found, refused


def _dumped(path: Path) -> Dumped:
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data) if len(data) >= 8 else (0,)
    if not 0 < length <= len(data) - 8:
        raise BadDump("its header is not within the file")
    inputs: list[dict[str, int | list[int]]] = []
    outputs: list[dict[str, int | list[int]]] = []
    kind, name = path.name.split(".")[0], ".".join(path.name.split(".")[1:-3])
    for number, value in _fields(data[8 : 8 + length]):
        if number in (3, 4) and isinstance(value, bytes):
            (outputs if number == 3 else inputs).append(_tensor(value, _OUTPUT if number == 3 else _INPUT))
        elif number == 6 and isinstance(value, bytes) and value:
            name = value.decode("utf-8", "replace")
    at = 8 + length + sum(_number(t, _SIZE) for t in inputs)
    made: list[np.ndarray | None] = []
    for t in outputs:
        size = _number(t, _SIZE)
        if at + size > len(data):
            raise BadDump(f"it ends within output {len(made)}")
        made.append(_array(t, data[at : at + size]))
        at += size
    return Dumped(name, kind, tuple(made))


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message: numbers, and bytes of length-delimited ones."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        match key & 7:
            case 0:
                value, at = _varint(data, at)
                yield key >> 3, value
            case 2:
                size, at = _varint(data, at)
                if at + size > len(data):
                    raise BadDump("its header is cut off")
                yield key >> 3, data[at : at + size]
                at += size
            case 1 | 5 as wire:
                at += 8 if wire == 1 else 4
            case wire:
                raise BadDump(f"its header has fields of the kind {wire}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    raise BadDump("its header is cut off")


def _tensor(data: bytes, names: dict[int, str]) -> dict[str, int | list[int]]:
    found: dict[str, int | list[int]] = {}
    for number, value in _fields(data):
        name = names.get(number)
        if name is not None:
            found[name] = value if isinstance(value, int) else _dims(value)
    return found


def _dims(data: bytes) -> list[int]:
    """The extents of a Shape, packed or one by one."""
    made: list[int] = []
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            at = 0
            while at < len(value):
                dim, at = _varint(value, at)
                made.append(dim)
        elif number == 1 and isinstance(value, int):
            made.append(value)
    return made


def _number(t: dict[str, int | list[int]], name: str) -> int:
    value = t.get(name, 0)
    return value if isinstance(value, int) else 0


def _extents(t: dict[str, int | list[int]], name: str) -> list[int]:
    value = t.get(name, [])
    return [] if isinstance(value, int) else value


def _array(t: dict[str, int | list[int]], data: bytes) -> np.ndarray | None:
    """The elements of a tensor with its extents in the graph.

    None if its format is not supported.
    """
    dtype, shape = proto_type(_number(t, _DATA_TYPE)), _extents(t, _SHAPE)
    if dtype is None or len(data) < prod(shape) * dtype.itemsize:
        return None
    x = np.frombuffer(data, dtype, prod(shape)).reshape(shape)
    whole = _extents(t, "original_shape") or shape
    kind = _number(t, _FORMAT)
    if kind in _PLAIN:
        return x.reshape(whole) if prod(whole) == x.size else None
    if kind == _NC1HWC0 and len(shape) == 5 and len(whole) == 4:
        n, c1, h, w, c0 = shape
        return x.transpose(0, 1, 4, 2, 3).reshape(n, c1 * c0, h, w)[:, : whole[1]]
    if kind == _FRACTAL_NZ and len(shape) >= 4 and len(whole) >= 2:
        *lead, n1, m1, m0, n0 = shape
        k = len(lead)
        rows = x.transpose(*range(k), k + 1, k + 2, k, k + 3).reshape(*lead, m1 * m0, n1 * n0)
        cut = rows[..., : whole[-2], : whole[-1]]
        return cut.reshape(whole) if cut.size == prod(whole) else None
    return None
