"""Field offsets of the structures that a native entry shares with C."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from occ.runtime.dataclass import dataclass
from occ.runtime.native.call import EntryCall
from occ.runtime.native.library import HalideBuffer


@dataclass(frozen=True)
class Layout:
    """The layouts of one kind of machine.

    Attributes:
        pointer: bytes of an address.
        call: offsets in `struct occ_call`.
        buffer: offsets in `halide_buffer_t`.
        buffer_size: bytes of that.
    """

    pointer: int
    call: Mapping[str, int]
    buffer: Mapping[str, int]
    buffer_size: int

    @classmethod
    def of(cls, bits: int) -> Layout:
        """The layout for 32-bit or 64-bit addresses, with all numbers aligned to their size."""
        pointer = bits // 8
        buffer = _offsets(HalideBuffer, pointer)
        return cls(pointer, _offsets(EntryCall, pointer), buffer, buffer[""])


def _offsets(struct: type[ctypes.Structure], pointer: int) -> dict[str, int]:
    """Offsets of the fields, by name; the total size under the empty name."""
    made, at, most = dict[str, int](), 0, 1
    for name, kind in _fields(struct):
        size = pointer if kind is ctypes.c_void_p or hasattr(kind, "contents") else ctypes.sizeof(kind)
        at = -(-at // size) * size
        made[name], at, most = at, at + size, max(most, size)
    return {**made, "": -(-at // most) * most}


def _fields(struct: type[ctypes.Structure]) -> list[tuple[str, Any]]:
    return [(field[0], field[1]) for field in struct._fields_]
