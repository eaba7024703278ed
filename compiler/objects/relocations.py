"""Relocations and import stubs of each processor, for the linker.

Sources: System V ABI, AMD64 supplement, sections 4.4 and B.2; ELF for the Arm 64-bit Architecture, section 5.7.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from typing import ClassVar

from occ.compiler.objects.processors import arch_of


class LinkError(ValueError):
    """The object uses something that this linker does not support."""


class Relocations(ABC):
    """The relocations of a kind of machine.

    Attributes:
        elf: `e_machine` of its object files.
        page: bytes of the largest page on its systems.
        imported: the relocation by which the loader writes the address of a function.
        table: relocations that need an entry in the table of imported addresses.
        absolute: the relocation of an address in data.
        relative: the one by which the loader adds the library's base to such an address.
        module: the one by which the loader writes the number of the library that owns thread-local variables.
        thread_local: relocations that need the two words by which `__tls_get_addr` finds a thread-local variable.
        thread_block: those that need such words for all thread-local variables of the library.
        thread_offset: those that need a variable's offset among them.
    """

    elf: ClassVar[int]
    page: ClassVar[int]
    imported: ClassVar[int]
    table: ClassVar[frozenset[int]]
    absolute: ClassVar[int]
    relative: ClassVar[int]
    module: ClassVar[int]
    thread_local: ClassVar[frozenset[int]] = frozenset()
    thread_block: ClassVar[frozenset[int]] = frozenset()
    thread_offset: ClassVar[frozenset[int]] = frozenset()

    @abstractmethod
    def stub(self, at: int, entry: int) -> bytes:
        """16 bytes of code at address `at` that jump to the address stored in the table at `entry`."""

    @abstractmethod
    def relax(self, code: bytearray, at: int, kind: int) -> int:
        """Change an instruction that loads an address from the table into one that computes a known address.

        Args:
            code: of the library.
            at: position of the relocation in it.
            kind: of the relocation, one of `table`.

        Returns:
            The instruction's new kind of relocation.
        """

    @abstractmethod
    def patch(self, code: bytearray, at: int, kind: int, place: int, target: int) -> None:
        """Write an address into code or data.

        Args:
            code: of the library.
            at: position of the relocation in it.
            kind: of the relocation.
            place: address of the relocation.
            target: the address to write.

        Raises:
            LinkError: the kind of relocation is unknown, or the address is too far away.
        """


class _X86(Relocations):
    elf, page, imported = 62, 4096, 6  # GLOB_DAT
    _PC32, _PLT32, _PC64 = 2, 4, 24
    table = frozenset((9, 41, 42))  # GOTPCREL, GOTPCRELX, REX_GOTPCRELX
    absolute, relative, module = 1, 8, 16  # 64, RELATIVE, DTPMOD64
    thread_local, thread_block, thread_offset = (
        frozenset((19,)),
        frozenset((20,)),
        frozenset((21,)),
    )  # TLSGD, TLSLD, DTPOFF32

    def stub(self, at: int, entry: int) -> bytes:
        return b"\xff\x25" + struct.pack("<i", entry - (at + 6)) + b"\xcc" * 10

    def relax(self, code: bytearray, at: int, kind: int) -> int:
        if code[at - 2] != 0x8B:  # mov
            raise LinkError("an entry of the table for a local symbol")
        code[at - 2] = 0x8D  # lea
        return self._PC32

    def patch(self, code: bytearray, at: int, kind: int, place: int, target: int) -> None:
        if kind in (self._PC32, self._PLT32, *self.table, *self.thread_local, *self.thread_block):
            struct.pack_into("<i", code, at, target - place)
        elif kind == self._PC64:
            struct.pack_into("<q", code, at, target - place)
        else:
            raise LinkError(f"relocation type {kind}")


class _Aarch64(Relocations):
    elf, page, imported = 183, 1 << 16, 1025  # GLOB_DAT
    _PREL64, _PREL32, _ADR_PAGE, _ADD_LOW = 260, 261, 275, 277
    _JUMPS = (282, 283)  # JUMP26, CALL26
    _GOT_PAGE, _GOT_LOW = 311, 312
    table = frozenset((_GOT_PAGE, _GOT_LOW))
    # Compilers emit descriptors of thread-local variables, which a real linker supports.
    absolute, relative, module = 257, 1027, 1028  # ABS64, RELATIVE, TLS_DTPMOD
    # Relocations of the low 12 bits of an address, by the bytes that the instruction loads or stores.
    _LOW = {_ADD_LOW: 1, 278: 1, 284: 2, 285: 4, 286: 8, 299: 16, _GOT_LOW: 8}
    _ADRP, _LOAD, _JUMP, _NOTHING = 0x90000010, 0xF9400211, 0xD61F0220, 0xD503201F  # x16; x17, [x16]; x17

    def stub(self, at: int, entry: int) -> bytes:
        code = bytearray(struct.pack("<4I", self._ADRP, self._LOAD, self._JUMP, self._NOTHING))
        self.patch(code, 0, self._GOT_PAGE, at, entry)
        self.patch(code, 4, self._GOT_LOW, at + 4, entry)
        return bytes(code)

    def relax(self, code: bytearray, at: int, kind: int) -> int:
        if kind == self._GOT_PAGE:
            return self._ADR_PAGE
        (word,) = struct.unpack_from("<I", code, at)
        if word >> 22 != 0x3E5:  # ldr x, [x, #offset]
            raise LinkError("an entry of the table for a local symbol")
        struct.pack_into("<I", code, at, 0x91000000 | word & 0x3FF)  # add x, x, #low
        return self._ADD_LOW

    def patch(self, code: bytearray, at: int, kind: int, place: int, target: int) -> None:
        if kind == self._PREL32:
            struct.pack_into("<i", code, at, target - place)
            return
        if kind == self._PREL64:
            struct.pack_into("<q", code, at, target - place)
            return
        (word,) = struct.unpack_from("<I", code, at)
        if kind in (self._ADR_PAGE, self._GOT_PAGE):
            pages = _signed((target >> 12) - (place >> 12), 21)
            word |= (pages & 3) << 29 | pages >> 2 << 5
        elif kind in self._JUMPS:
            word |= _signed((target - place) >> 2, 26)
        elif kind in self._LOW:
            word |= (target & 0xFFF) // self._LOW[kind] << 10
        else:
            raise LinkError(f"relocation type {kind}")
        struct.pack_into("<I", code, at, word)


def _signed(value: int, bits: int) -> int:
    """A number in two's complement.

    Raises:
        LinkError: it does not fit.
    """
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise LinkError("an address that is too far away")
    return value & (1 << bits) - 1


RELOCATIONS: dict[int, Relocations] = {r.elf: r for r in (_X86(), _Aarch64())}


def is_linked(machine: str) -> bool:
    """Whether `elf.link` makes libraries for the machine that a Halide target, or `host`, names."""
    arch = arch_of(machine)
    return arch is not None and arch.elf in RELOCATIONS and not machine.startswith("host-")
