"""Links object files into a shared library, without a linker.

Takes what LLVM emits for position-independent code without exceptions: text, read-only data, PC-relative relocations,
and calls of C library functions, which go through a table that the loader fills. Format: System V ABI, chapters 4 and 5.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from occ.compiler.objects.relocations import RELOCATIONS, LinkError, Relocations

__all__ = ["LinkError", "exported", "link"]

_64_BITS = 2
_C = ("libm.so.6", "libc.so.6")
_OWN = "libgcc_s.so.1"  # what processors have no instructions for, such as f16 on x86-64 before f16c
_SHF_ALLOC, _SHF_EXEC, _SHF_WRITE = 2, 4, 1
_SHT_PROGBITS, _SHT_SYMTAB, _SHT_RELA, _SHT_NOBITS = 1, 2, 4, 8


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
        (self.machine,) = struct.unpack_from("<H", data, 18)
        if data[4] != _64_BITS or self.machine not in RELOCATIONS:
            raise LinkError("no object of x86-64 or aarch64")
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
        """Where a symbol of this object is, when all sections have their places."""
        return self.sections[s.section].address + s.value


def link(*files: bytes) -> bytes:
    """The shared library of object files. Undefined functions are those of the C library and of the compiler's own.

    Args:
        files: ELF relocatable files; what one defines for others, others find.

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
    machines = {o.machine for o in objects}
    if len(machines) != 1:
        raise LinkError("objects of several machines")
    own = (_OWN,) if any(n.startswith("__") for n in imports) else ()
    image = _Image(imports, exports, (*_C, *own), RELOCATIONS[machines.pop()])
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
        self,
        imports: list[str],
        exports: Mapping[str, tuple[_Object, _Symbol]],
        needed: tuple[str, ...],
        processor: Relocations,
    ) -> None:
        self.imports, self.exports, self.needed, self.processor = imports, exports, needed, processor
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
        """Address of what is writable.

        It follows in the file on what is not, and is a page further in memory.
        """
        return _align(self.end, 16) + self.processor.page

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
                if kind in self.processor.table and not self._is_imported(symbol):
                    kind = self.processor.relax(self.code, here, kind)
                self.processor.patch(self.code, here, kind, place, self._target(o, symbol, kind) + addend)

    def _is_imported(self, symbol: _Symbol) -> bool:
        return symbol.section == 0 and symbol.name in self.imports

    def _target(self, o: _Object, symbol: _Symbol, kind: int) -> int:
        """The address that a relocation means, without its addend."""
        if self._is_imported(symbol):
            k = self.imports.index(symbol.name)
            return self.table_at + 8 * k if kind in self.processor.table else self.stubs_at + 16 * k
        owner, found = self.exports[symbol.name] if symbol.section == 0 else (o, symbol)
        return owner.address(found)

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
            struct.pack("<QQq", self.table_at + 8 * k, (1 + k) << 32 | self.processor.imported, 0)
            for k in range(len(self.imports))
        )
        stubs = b"".join(
            self.processor.stub(self.stubs_at + 16 * k, self.table_at + 8 * k) for k in range(len(self.imports))
        )
        size = self.table_at + 8 * len(self.imports) - self.processor.page
        out = bytearray(size)
        for at, data in (
            (0, self._header(size)), (self.dynsym_at, dynsym), (self.hash_at, hashes), (self.rela_at, rela),
            (self.strings_at, self.strings), (self.stubs_at, stubs), (self.code_at, bytes(self.code)),
            (self.dynamic_at - self.processor.page, self._dynamic(len(rela))),
        ):  # fmt: skip
            out[at : at + len(data)] = data
        return bytes(out)

    def _header(self, size: int) -> bytes:
        ident = b"\x7fELF\x02\x01\x01" + bytes(9)
        header = ident + struct.pack("<HHIQQQIHHHHHH", 3, self.processor.elf, 1, 0, 64, 0, 0, 64, 56, 4, 0, 0, 0)
        at, apart = self.dynamic_at, self.processor.page
        segments = (
            (1, 5, 0, 0, self.end), (1, 6, at - apart, at, size + apart - at), (2, 6, at - apart, at, self.table_at - at),
            (0x6474E551, 6, 0, 0, 0),  # GNU_STACK: not executable
        )  # fmt: skip
        for kind, flags, offset, address, length in segments:
            align = self.processor.page if kind == 1 else 8
            header += struct.pack("<IIQQQQQQ", kind, flags, offset, address, address, length, length, align)
        return header

    def _dynamic(self, rela_size: int) -> bytes:
        entries = [(1, self.names[n]) for n in self.needed]
        entries += [(4, self.hash_at), (5, self.strings_at), (6, self.dynsym_at), (10, len(self.strings)), (11, 24)]
        entries += [(7, self.rela_at), (8, rela_size), (9, 24), (0, 0)]
        return b"".join(struct.pack("<QQ", tag, value) for tag, value in entries)


def _align(n: int, to: int) -> int:
    return -(-n // to) * to
