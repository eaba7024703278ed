"""Links object files into a shared library, without a linker.

Accepts position-independent code without exceptions, as LLVM, Halide and C++ compilers emit it: code, constants, data,
thread-local data, constructors. C library functions are called through a table that the loader fills. Format: System V
ABI, chapters 4 and 5; thread-local data: Drepper, ELF Handling For Thread-Local Storage, 4.1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import field

from occ.compiler.objects.elf_object import ObjectFile, Relocation, Section, Symbol, exported
from occ.compiler.objects.relocations import RELOCATIONS, LinkError, Relocations
from occ.runtime.dataclass import dataclass

__all__ = ["LinkError", "exported", "link"]

_C = ("libm.so.6", "libc.so.6")
_THREADS = "libpthread.so.0"  # before glibc 2.34, threads were a separate library
_OWN = "libgcc_s.so.1"  # operations without processor instructions, such as f16 on x86-64 before f16c
_WEAK = 2
_HEADER, _SEGMENT, _SYMBOL, _RELA = 64, 56, 24, 24

Place = tuple[ObjectFile, Symbol]
_ThreadLocal = tuple[ObjectFile, Symbol, int] | None


def link(*files: bytes) -> bytes:
    """The shared library of object files, whose undefined functions come from the C and compiler libraries.

    Args:
        files: ELF relocatable files; they see each other's definitions.

    Raises:
        LinkError: the objects need a real linker.
    """
    objects = [ObjectFile(data) for data in files]
    exports: dict[str, Place] = {}
    for o in objects:
        for name, symbol in o.exports.items():
            if name in exports:
                raise LinkError(f"two objects define {name}")
            exports[name] = o, symbol
    machines = {o.machine for o in objects}
    if len(machines) != 1:
        raise LinkError("objects of several machines")
    undefined = {n: s for o in objects for n, s in o.undefined.items() if n not in exports}
    imports = {n: undefined[n] for n in sorted(undefined)}
    image = _Image(objects, imports, exports, RELOCATIONS[machines.pop()])
    image.place()
    image.relocate()
    return image.finish()


def _needed(imports: Iterable[str]) -> tuple[str, ...]:
    """The libraries that define some names."""
    threads = (_THREADS,) if any(n.startswith("pthread_") for n in imports) else ()
    own = (_OWN,) if any(n.startswith("__") for n in imports) else ()
    return (*_C, *threads, *own)


@dataclass
class _Region:
    """Sections in order, and their bytes."""

    at: int = 0
    end: int = 0
    align: int = 1
    data: bytearray = field(default_factory=bytearray)

    def start(self, at: int) -> None:
        self.at = self.end = at

    def place(self, s: Section) -> None:
        """Give a section the next address; a zero-filled one, which comes last, adds no bytes."""
        self.end = s.address = _align(self.end, s.align)
        self.align = max(self.align, s.align)
        if not s.is_zero:
            self.data += bytes(s.address - self.at - len(self.data)) + s.data
        self.end += s.size


class _Image:
    """The library under construction.

    One segment is readable and executable: the dynamic tables, stubs of imported functions, code and constants. The
    other is writable: the dynamic section, the table of addresses, data.

    Args:
        objects: the objects to link.
        imports: names that other libraries define.
        exports: names that these objects define.
        processor: the relocations of its processor.
    """

    def __init__(
        self, objects: list[ObjectFile], imports: Mapping[str, Symbol], exports: Mapping[str, Place],
        processor: Relocations
    ) -> None:  # fmt: skip
        self.objects, self.imports, self.exports, self.processor = objects, imports, exports, processor
        self.needed = _needed(imports)
        kept = [s for o in objects for s in o.kept]
        self.fixed = sorted((s for s in kept if not s.is_writable), key=lambda s: not s.is_code)
        written = [s for s in kept if s.is_writable and not s.is_thread_local]
        self.constructors = [s for s in written if s.is_constructors]
        self.destructors = [s for s in written if s.is_destructors]
        self.written = [s for s in written if s not in self.constructors and s not in self.destructors]
        self.written.sort(key=lambda s: s.is_zero)
        self.threads = sorted((s for s in kept if s.is_thread_local), key=lambda s: s.is_zero)
        self.names_of_imports = list(imports)
        self.threaded = self._thread_locals()
        self.strings = b"\0"
        self.names = {n: self._string(n) for n in [*imports, *self._listed(), *self.needed]}
        self.code, self.data = _Region(), _Region()
        self.dynamic: list[bytes] = []  # relocations left to the loader

    def _listed(self) -> list[str]:
        """The names of functions and data that are exported."""
        return [n for n, (o, s) in self.exports.items() if not o.sections[s.section].is_thread_local]

    def _thread_locals(self) -> list[_ThreadLocal]:
        """Arguments of `__tls_get_addr`: each has two words in the table of addresses."""
        found = [
            self._thread_local(o, r)
            for o in self.objects
            for r in o.relocations
            if r.kind in (*self.processor.thread_local, *self.processor.thread_block)
        ]
        return list(dict.fromkeys(found))

    def _thread_local(self, o: ObjectFile, r: Relocation) -> _ThreadLocal:
        """The thread-local variable of a relocation (relative to the end of its 4 bytes), or their block."""
        if r.kind in self.processor.thread_block:
            return None
        if self._is_imported(r.symbol):
            raise LinkError(f"the thread-local variable {r.symbol.name} of another library")
        return o, r.symbol, r.addend + 4

    def _string(self, name: str) -> int:
        at = len(self.strings)
        self.strings += name.encode() + b"\0"
        return at

    # addresses

    def place(self) -> None:
        """Give all sections and tables their addresses."""
        listed, imports = self._listed(), len(self.imports)
        loaded = (
            imports
            + len(self.threaded)
            + sum(r.kind == self.processor.absolute for o in self.objects for r in o.relocations)
        )
        count = 1 + imports + len(listed)
        self.segments = 4 + bool(self.threads)
        self.dynsym_at = _align(_HEADER + _SEGMENT * self.segments, 8)
        self.hash_at = self.dynsym_at + _SYMBOL * count
        self.rela_at = _align(self.hash_at + 4 * (2 + 1 + count), 8)
        self.strings_at = self.rela_at + _RELA * loaded
        self.stubs_at = _align(self.strings_at + len(self.strings), 16)
        self.code.start(_align(self.stubs_at + 16 * imports, 64))
        for s in self.fixed:
            self.code.place(s)
        page = self.processor.page
        # Writable data follows read-only data in the file, and is a page further in memory.
        self.dynamic_at = _align(self.code.end, 16) + page
        entries = len(self.needed) + 9 + 2 * bool(self.constructors) + 2 * bool(self.destructors)
        self.table_at = self.dynamic_at + 16 * entries
        self.table = bytearray(8 * (imports + 2 * len(self.threaded)))
        self.data.start(self.table_at + len(self.table))
        for s in (*self.constructors, *self.destructors):
            self.data.place(s)
        self._place_thread_locals()
        for s in self.written:
            self.data.place(s)

    def _place_thread_locals(self) -> None:
        """The block of thread-local variables: its initial data, and zeros that take no space in the file."""
        self.block = _Region()
        align = max((s.align for s in self.threads), default=1)
        self.block.start(_align(self.data.end, align))
        for s in self.threads:
            self.block.place(s)
        self.block.align = align
        if self.block.data:
            self.data.data += bytes(self.block.at - self.data.at - len(self.data.data))
            self.data.end = self.block.at + len(self.block.data)
            self.data.data += self.block.data

    # relocations

    def relocate(self) -> None:
        """Write the addresses that sections leave open, and collect those that the loader has to write."""
        for k in range(len(self.imports)):
            self._load(self.table_at + 8 * k, self.processor.imported, 1 + k)
        for k, found in enumerate(self.threaded):
            pair = self.table_at + 8 * (len(self.imports) + 2 * k)
            self._load(pair, self.processor.module, 0)
            if found is not None:
                o, symbol, addend = found
                struct.pack_into(
                    "<q", self.table, pair + 8 - self.table_at, self._address(o, symbol) + addend - self.block.at
                )
        for o in self.objects:
            for r in o.relocations:
                self._relocate(o, r)

    def _relocate(self, o: ObjectFile, r: Relocation) -> None:
        place, kind = r.section.address + r.offset, r.kind
        if kind == self.processor.absolute:
            if self._is_imported(r.symbol):
                self._load(place, kind, 1 + self.names_of_imports.index(r.symbol.name), r.addend)
            else:
                self._load(place, self.processor.relative, 0, self._address(o, r.symbol) + r.addend)
            return
        region = self.data if r.section.is_writable else self.code
        here = place - region.at
        if kind in (*self.processor.thread_local, *self.processor.thread_block):
            k = self.threaded.index(self._thread_local(o, r))
            pair = self.table_at + 8 * (len(self.imports) + 2 * k)
            self.processor.patch(region.data, here, kind, place, pair - 4)
            return
        if kind in self.processor.thread_offset:
            offset = self._address(o, r.symbol) + r.addend - self.block.at
            region.data[here : here + 4] = struct.pack("<i", offset)
            return
        if kind in self.processor.table and not self._is_imported(r.symbol):
            kind = self.processor.relax(region.data, here, kind)
        self.processor.patch(region.data, here, kind, place, self._target(o, r.symbol, kind) + r.addend)

    def _load(self, place: int, kind: int, symbol: int, addend: int = 0) -> None:
        """A relocation that the loader does."""
        self.dynamic.append(struct.pack("<QQq", place, symbol << 32 | kind, addend))

    def _is_imported(self, symbol: Symbol) -> bool:
        return symbol.section == 0 and symbol.name in self.imports

    def _address(self, o: ObjectFile, symbol: Symbol) -> int:
        owner, found = self.exports[symbol.name] if symbol.section == 0 else (o, symbol)
        return owner.address(found)

    def _target(self, o: ObjectFile, symbol: Symbol, kind: int) -> int:
        """The address that a relocation refers to, without its addend."""
        if self._is_imported(symbol):
            k = self.names_of_imports.index(symbol.name)
            return self.table_at + 8 * k if kind in self.processor.table else self.stubs_at + 16 * k
        return self._address(o, symbol)

    # the file

    def finish(self) -> bytes:
        """The bytes of the library."""
        dynsym = bytes(_SYMBOL) + b"".join(
            struct.pack("<IBBHQQ", self.names[n], 0x20 if s.binding == _WEAK else 0x10, 0, 0, 0, 0)
            for n, s in self.imports.items()
        )
        for name in self._listed():
            o, symbol = self.exports[name]
            dynsym += struct.pack("<IBBHQQ", self.names[name], 0x12, 0, 1, o.address(symbol), 0)
        count = len(dynsym) // _SYMBOL
        head, chain = 0, [0] * count
        for k in range(count - 1, 0, -1):  # one bucket: libraries have few symbols
            chain[k], head = head, k
        hashes = struct.pack(f"<III{count}I", 1, count, head, *chain)
        stubs = b"".join(
            self.processor.stub(self.stubs_at + 16 * k, self.table_at + 8 * k) for k in range(len(self.imports))
        )
        size = self.data.at + len(self.data.data) - self.processor.page
        out = bytearray(size)
        for at, data in (
            (0, self._header(size)), (self.dynsym_at, dynsym), (self.hash_at, hashes),
            (self.rela_at, b"".join(self.dynamic)),
            (self.strings_at, self.strings), (self.stubs_at, stubs), (self.code.at, self.code.data),
            (self.dynamic_at - self.processor.page, self._dynamic()), (self.table_at - self.processor.page, self.table),
            (self.data.at - self.processor.page, self.data.data),
        ):  # fmt: skip
            out[at : at + len(data)] = data
        return bytes(out)

    def _header(self, size: int) -> bytes:
        ident = b"\x7fELF\x02\x01\x01" + bytes(9)
        header = ident + struct.pack(
            "<HHIQQQIHHHHHH", 3, self.processor.elf, 1, 0, _HEADER, 0, 0, _HEADER, _SEGMENT, self.segments, 0, 0, 0
        )
        page, at = self.processor.page, self.dynamic_at
        table = self.table_at - at
        rows = [  # kind, flags, offset, address, bytes of the file, bytes in memory, alignment
            (1, 5, 0, 0, self.code.end, self.code.end, page),
            (1, 6, at - page, at, size + page - at, self.data.end - at, page),
            (2, 6, at - page, at, table, table, 8),
            (0x6474E551, 6, 0, 0, 0, 0, 8),  # GNU_STACK: not executable
        ]
        if self.threads:
            b = self.block
            rows.append((7, 4, b.at - page, b.at, len(b.data), b.end - b.at, b.align))
        for kind, flags, offset, address, stored, memory, align in rows:
            header += struct.pack("<IIQQQQQQ", kind, flags, offset, address, address, stored, memory, align)
        return header

    def _dynamic(self) -> bytes:
        entries = [(1, self.names[n]) for n in self.needed]
        entries += [
            (4, self.hash_at),
            (5, self.strings_at),
            (6, self.dynsym_at),
            (10, len(self.strings)),
            (11, _SYMBOL),
        ]
        entries += [(7, self.rela_at), (8, _RELA * len(self.dynamic)), (9, _RELA)]
        for (tag, size_tag), arrays in (((25, 27), self.constructors), ((26, 28), self.destructors)):
            if arrays:
                end = arrays[-1].address + arrays[-1].size
                entries += [(tag, arrays[0].address), (size_tag, end - arrays[0].address)]
        return b"".join(struct.pack("<QQ", tag, value) for tag, value in [*entries, (0, 0)])


def _align(n: int, to: int) -> int:
    return -(-n // to) * to
