"""Reads ELF object files: their sections, symbols and relocations. Format: System V ABI, chapter 4."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from occ.compiler.objects.relocations import RELOCATIONS, LinkError
from occ.runtime.dataclass import dataclass

_64_BITS = 2
_PROGBITS, _SYMTAB, _RELA, _NOBITS, _INIT_ARRAY, _FINI_ARRAY = 1, 2, 4, 8, 14, 15
_WRITE, _ALLOC, _EXECUTE, _TLS = 1, 2, 4, 0x400
_KEPT = (_PROGBITS, _NOBITS, _INIT_ARRAY, _FINI_ARRAY)
_ABSOLUTE = 0xFFF1


@dataclass
class Section:
    """A section of an object file.

    Attributes:
        name, kind, flags, align, info, link, size: from its header; sizes in bytes.
        data: its bytes; empty if the file has none, as for `.bss`.
        row: bytes of a row, for tables.
        address: in the library, once it is placed.
    """

    name: str
    kind: int
    flags: int
    data: bytes
    align: int
    info: int
    link: int
    size: int
    row: int
    address: int = 0

    @property
    def is_code(self) -> bool:
        return bool(self.flags & _EXECUTE)

    @property
    def is_writable(self) -> bool:
        return bool(self.flags & _WRITE)

    @property
    def is_thread_local(self) -> bool:
        return bool(self.flags & _TLS)

    @property
    def is_zero(self) -> bool:
        """Whether it is all zeros, which the file does not hold."""
        return self.kind == _NOBITS

    @property
    def is_constructors(self) -> bool:
        """Whether it holds addresses of functions that the loader calls first."""
        return self.kind == _INIT_ARRAY

    @property
    def is_destructors(self) -> bool:
        return self.kind == _FINI_ARRAY


@dataclass(frozen=True)
class Symbol:
    """A name: `value` is its position in section number `section`, 0 if another file defines it."""

    name: str
    section: int
    value: int
    binding: int
    kind: int

    @property
    def is_exported(self) -> bool:
        """Whether other objects see the symbol and find its definition here; weak ones count."""
        return self.binding in (1, 2) and self.section not in (0, _ABSOLUTE) and bool(self.name)


class Relocation(NamedTuple):
    """What a location in a section must hold: the address of a symbol, in the form given by `kind`."""

    section: Section
    offset: int
    kind: int
    symbol: Symbol
    addend: int


def _sections(obj: bytes) -> list[Section]:
    if obj[:4] != b"\x7fELF" or obj[5:6] != b"\x01":
        raise LinkError("not an ELF object, little-endian")
    wide = obj[4] == _64_BITS
    row = struct.Struct("<IIQQQQIIQQ" if wide else "<10I")
    (table,) = struct.unpack_from("<Q" if wide else "<I", obj, 40 if wide else 32)
    count, names_at = struct.unpack_from("<HH", obj, 60 if wide else 48)
    rows = [row.unpack_from(obj, table + row.size * k) for k in range(count)]
    names = rows[names_at]
    strings = obj[names[4] : names[4] + names[5]]
    made: list[Section] = []
    for name, kind, flags, _, offset, size, link, info, align, cells in rows:
        data = b"" if kind == _NOBITS else obj[offset : offset + size]
        text = strings[name : strings.index(b"\0", name)].decode()
        made.append(Section(text, kind, flags, data, max(align, 1), info, link, size, cells))
    return made


def _symbols(sections: list[Section]) -> list[Symbol]:
    table = next((s for s in sections if s.kind == _SYMTAB), None)
    if table is None:
        return []
    strings = sections[table.link].data
    made: list[Symbol] = []
    row = struct.Struct("<IBBHQQ" if table.row == 24 else "<IIIBBH")
    for at in range(0, len(table.data), row.size):
        cells = row.unpack_from(table.data, at)
        name, info, section, value = (
            (cells[0], cells[1], cells[3], cells[4]) if table.row == 24 else (cells[0], cells[3], cells[5], cells[1])
        )
        text = strings[name : strings.index(b"\0", name)].decode()
        made.append(Symbol(text, section, value, info >> 4, info & 15))
    return made


def exported(obj: bytes) -> list[str]:
    """Names that an object file of any machine defines for others.

    Raises:
        LinkError: it is not an ELF object, little-endian.
    """
    return [s.name for s in _symbols(_sections(obj)) if s.is_exported]


class ObjectFile:
    """An object file of 64 bits.

    Attributes:
        machine: the machine of its code, `e_machine`.
        kept: the sections that a library includes.

    Raises:
        LinkError: it is not an object file, or its machine has no `RELOCATIONS`.
    """

    def __init__(self, data: bytes) -> None:
        self.sections = _sections(data)
        (self.machine,) = struct.unpack_from("<H", data, 18)
        if data[4] != _64_BITS or self.machine not in RELOCATIONS:
            raise LinkError("no object of x86-64 or aarch64")
        self.symbols = _symbols(self.sections)
        self.kept = [s for s in self.sections if s.flags & _ALLOC and s.name != ".eh_frame" and s.kind in _KEPT]
        self.relocations = list(self._relocations())

    def _relocations(self) -> Iterator[Relocation]:
        for table in self.sections:
            if table.kind == _RELA and (section := self.sections[table.info]) in self.kept:
                for offset, info, addend in struct.iter_unpack("<QQq", table.data):
                    yield Relocation(section, offset, info & 0xFFFFFFFF, self.symbols[info >> 32], addend)

    @property
    def exports(self) -> dict[str, Symbol]:
        return {s.name: s for s in self.symbols if s.is_exported}

    @property
    def undefined(self) -> dict[str, Symbol]:
        """Symbols used here and defined elsewhere, by name."""
        used = (r.symbol for r in self.relocations)
        return {s.name: s for s in used if s.section == 0 and s.name}

    def address(self, s: Symbol) -> int:
        """The address of a symbol of this object, once all sections have theirs."""
        return self.sections[s.section].address + s.value
