"""Links x86-64 object files into a shared library, without a linker.

Takes what LLVM emits for position-independent code without exceptions: text, read-only data, PC-relative relocations,
and calls of C library functions, which go through a table that the loader fills. Format: System V ABI, AMD64 supplement.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

_PAGE, _X86_64, _64_BITS = 4096, 62, 2
_SHF_ALLOC, _SHF_EXEC, _SHF_WRITE = 2, 4, 1
_SHT_PROGBITS, _SHT_SYMTAB, _SHT_RELA, _SHT_NOBITS = 1, 2, 4, 8
_R_PC32, _R_PLT32, _R_GOTPCREL, _R_GLOB_DAT = 2, 4, 9, 6
_R_GOTPCRELX, _R_REX_GOTPCRELX, _R_PC64 = 41, 42, 24
_R_GOT = (_R_GOTPCREL, _R_GOTPCRELX, _R_REX_GOTPCRELX)  # by way of the table of imported addresses


class LinkError(ValueError):
    """The object uses something that this linker does not know."""


@dataclass
class _Section:
    name: str
    kind: int
    flags: int
    data: bytes
    align: int
    info: int
    link: int
    size: int
    row: int  # bytes of a row, of tables
    address: int = 0


@dataclass
class _Symbol:
    name: str
    section: int
    value: int
    binding: int
    kind: int


def _sections(obj: bytes) -> list[_Section]:
    if obj[:4] != b"\x7fELF" or obj[5:6] != b"\x01":
        raise LinkError("not an ELF object, little-endian")
    wide = obj[4] == _64_BITS
    row = struct.Struct("<IIQQQQIIQQ" if wide else "<10I")
    (table,) = struct.unpack_from("<Q" if wide else "<I", obj, 40 if wide else 32)
    count, names_at = struct.unpack_from("<HH", obj, 60 if wide else 48)
    rows = [row.unpack_from(obj, table + row.size * k) for k in range(count)]
    names = rows[names_at]
    strings = obj[names[4] : names[4] + names[5]]
    made: list[_Section] = []
    for name, kind, flags, _, offset, size, link, info, align, cells in rows:
        data = b"" if kind == _SHT_NOBITS else obj[offset : offset + size]
        text = strings[name : strings.index(b"\0", name)].decode()
        made.append(_Section(text, kind, flags, data, max(align, 1), info, link, size, cells))
    return made


def _symbols(sections: list[_Section]) -> list[_Symbol]:
    table = next((s for s in sections if s.kind == _SHT_SYMTAB), None)
    if table is None:
        return []
    strings = sections[table.link].data
    made: list[_Symbol] = []
    row = struct.Struct("<IBBHQQ" if table.row == 24 else "<IIIBBH")
    for at in range(0, len(table.data), row.size):
        cells = row.unpack_from(table.data, at)
        name, info, section, value = (
            (cells[0], cells[1], cells[3], cells[4]) if table.row == 24 else (cells[0], cells[3], cells[5], cells[1])
        )
        text = strings[name : strings.index(b"\0", name)].decode()
        made.append(_Symbol(text, section, value, info >> 4, info & 15))
    return made


class _Object:
    """An object file."""

    def __init__(self, data: bytes) -> None:
        self.sections = _sections(data)
        if data[4] != _64_BITS or struct.unpack_from("<H", data, 18)[0] != _X86_64:
            raise LinkError("not an x86-64 object")
        self.symbols = _symbols(self.sections)
        self.kept = [
            s for s in self.sections
            if s.flags & _SHF_ALLOC and s.name != ".eh_frame" and s.kind in (_SHT_PROGBITS, _SHT_NOBITS)
        ]  # fmt: skip
        self.relocations = {
            r.info: r.data for r in self.sections if r.kind == _SHT_RELA and self.sections[r.info] in self.kept
        }

    @property
    def exports(self) -> dict[str, _Symbol]:
        return {s.name: s for s in self.symbols if _is_exported(s)}

    @property
    def undefined(self) -> set[str]:
        """Names that are used here and defined elsewhere."""
        used = {
            struct.unpack_from("<QQq", data, at)[1] >> 32
            for data in self.relocations.values() for at in range(0, len(data), 24)
        }  # fmt: skip
        return {self.symbols[k].name for k in used if self.symbols[k].section == 0 and self.symbols[k].name}

    def address(self, s: _Symbol) -> int:
        """Where a symbol of this object lies, when all sections have their places."""
        return self.sections[s.section].address + s.value


def link(*files: bytes, needed: tuple[str, ...] = ("libm.so.6", "libc.so.6")) -> bytes:
    """The shared library of object files.

    Args:
        files: ELF relocatable files; what one defines for others, others find.
        needed: libraries in which undefined functions are looked up at load time.

    Raises:
        LinkError: the objects need a real linker.
    """
    objects = [_Object(data) for data in files]
    exports: dict[str, tuple[_Object, _Symbol]] = {}
    for o in objects:
        for name, symbol in o.exports.items():
            if name in exports:
                raise LinkError(f"two objects define {name}")
            exports[name] = o, symbol
    imports = sorted({name for o in objects for name in o.undefined} - set(exports))
    image = _Image(imports, exports, needed)
    for s in sorted((s for o in objects for s in o.kept), key=lambda s: not s.flags & _SHF_EXEC):
        s.address = image.place(s)
    for o in objects:
        image.relocate(o)
    return image.finish()


def _is_exported(s: _Symbol) -> bool:
    """Whether other objects see the symbol and find its definition here; a weak one counts."""
    return s.binding in (1, 2) and s.section not in (0, 0xFFF1) and bool(s.name)


def exported(obj: bytes) -> list[str]:
    """Names that an object file of any machine defines for others.

    Raises:
        LinkError: it is not an ELF object, little-endian.
    """
    return [s.name for s in _symbols(_sections(obj)) if _is_exported(s)]


class _Image:
    """The library under construction: dynamic tables, stubs and code in one readable and executable segment, then a
    writable one with the dynamic section and the table of imported addresses.
    """

    def __init__(
        self, imports: list[str], exports: Mapping[str, tuple[_Object, _Symbol]], needed: tuple[str, ...]
    ) -> None:
        self.imports, self.exports, self.needed = imports, exports, needed
        self.strings = b"\0"
        self.tables_at = 64 + 56 * 4
        count = 1 + len(imports) + len(exports)
        self.dynsym_at = _align(self.tables_at, 8)
        self.hash_at = self.dynsym_at + 24 * count
        self.rela_at = _align(self.hash_at + 4 * (2 + 1 + count), 8)
        self.strings_at = self.rela_at + 24 * len(imports)
        self.names = {n: self._string(n) for n in [*imports, *exports, *needed]}
        self.stubs_at = _align(self.strings_at + len(self.strings), 16)
        self.end = self.stubs_at + 16 * len(imports)
        self.code = bytearray()
        self.code_at = self.end = _align(self.end, 64)

    def _string(self, name: str) -> int:
        at = len(self.strings)
        self.strings += name.encode() + b"\0"
        return at

    def place(self, s: _Section) -> int:
        if s.flags & _SHF_WRITE:
            raise LinkError(f"writable section {s.name}")
        self.end = _align(self.end, s.align)
        address = self.end
        self.code += bytes(address - self.code_at - len(self.code)) + s.data + bytes(s.size - len(s.data))
        self.end += s.size
        return address

    @property
    def dynamic_at(self) -> int:
        return _align(self.end, _PAGE)

    @property
    def table_at(self) -> int:
        """Address of the table of imported functions, after the dynamic section."""
        return self.dynamic_at + 16 * (len(self.needed) + 9)

    def relocate(self, o: _Object) -> None:
        """Write the addresses that the sections of an object leave open; all have their places."""
        for section, data in o.relocations.items():
            for at in range(0, len(data), 24):
                offset, info, addend = struct.unpack_from("<QQq", data, at)
                symbol, kind = o.symbols[info >> 32], info & 0xFFFFFFFF
                place = o.sections[section].address + offset
                here = place - self.code_at
                target = self._target(o, symbol, kind, here)
                if kind in (_R_PC32, _R_PLT32, *_R_GOT):
                    struct.pack_into("<i", self.code, here, target + addend - place)
                elif kind == _R_PC64:
                    struct.pack_into("<q", self.code, here, target + addend - place)
                else:
                    raise LinkError(f"relocation type {kind}")

    def _target(self, o: _Object, symbol: _Symbol, kind: int, here: int) -> int:
        """The address that code at `here` has to reach."""
        if symbol.section == 0 and symbol.name in self.imports:
            k = self.imports.index(symbol.name)
            return self.table_at + 8 * k if kind in _R_GOT else self.stubs_at + 16 * k
        if kind in _R_GOT:
            self._relax(here, symbol.name)
        owner, found = self.exports[symbol.name] if symbol.section == 0 else (o, symbol)
        return owner.address(found)

    def _relax(self, here: int, name: str) -> None:
        """Take an address that is known here instead of reading it from the table (supplement, section B.2)."""
        if self.code[here - 2] != 0x8B:  # mov
            raise LinkError(f"table entry for the local symbol {name}")
        self.code[here - 2] = 0x8D  # lea

    def finish(self) -> bytes:
        dynsym = bytes(24) + b"".join(struct.pack("<IBBHQQ", self.names[n], 0x12, 0, 0, 0, 0) for n in self.imports)
        for name, (o, symbol) in self.exports.items():
            dynsym += struct.pack("<IBBHQQ", self.names[name], 0x12, 0, 1, o.address(symbol), 0)
        count = len(dynsym) // 24
        head, chain = 0, [0] * count
        for k in range(count - 1, 0, -1):  # one bucket: libraries have few symbols
            chain[k], head = head, k
        hashes = struct.pack(f"<III{count}I", 1, count, head, *chain)
        rela = b"".join(
            struct.pack("<QQq", self.table_at + 8 * k, (1 + k) << 32 | _R_GLOB_DAT, 0) for k in range(len(self.imports))
        )
        stubs = b"".join(
            b"\xff\x25" + struct.pack("<i", self.table_at + 8 * k - (self.stubs_at + 16 * k + 6)) + b"\xcc" * 10
            for k in range(len(self.imports))
        )
        size = self.table_at + 8 * len(self.imports)
        out = bytearray(size)
        for at, data in (
            (0, self._header(size)), (self.dynsym_at, dynsym), (self.hash_at, hashes), (self.rela_at, rela),
            (self.strings_at, self.strings), (self.stubs_at, stubs), (self.code_at, bytes(self.code)),
            (self.dynamic_at, self._dynamic(len(rela))),
        ):  # fmt: skip
            out[at : at + len(data)] = data
        return bytes(out)

    def _header(self, size: int) -> bytes:
        ident = b"\x7fELF\x02\x01\x01" + bytes(9)
        header = ident + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 4, 0, 0, 0)
        writable = size - self.dynamic_at
        segments = (
            (1, 5, 0, self.end), (1, 6, self.dynamic_at, writable), (2, 6, self.dynamic_at, self.table_at - self.dynamic_at),
            (0x6474E551, 6, 0, 0),  # GNU_STACK: not executable
        )  # fmt: skip
        for kind, flags, at, length in segments:
            align = _PAGE if kind == 1 else 8
            header += struct.pack("<IIQQQQQQ", kind, flags, at, at, at, length, length, align)
        return header

    def _dynamic(self, rela_size: int) -> bytes:
        entries = [(1, self.names[n]) for n in self.needed]
        entries += [(4, self.hash_at), (5, self.strings_at), (6, self.dynsym_at), (10, len(self.strings)), (11, 24)]
        entries += [(7, self.rela_at), (8, rela_size), (9, 24), (0, 0)]
        return b"".join(struct.pack("<QQ", tag, value) for tag, value in entries)


def _align(n: int, to: int) -> int:
    return -(-n // to) * to
