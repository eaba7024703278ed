"""Checks shared libraries: that files are complete, and which glibc they need.

ELF of 64 bits, little-endian: https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html; symbol versions: the Linux
Standard Base.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from occ.runtime.dataclass import dataclass

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_LOAD, _DYNAMIC = 1, 2
_STRINGS, _NEEDED_VERSIONS, _NEEDED_COUNT = 5, 0x6FFFFFFE, 0x6FFFFFFF


@dataclass(frozen=True)
class _Segment:
    kind: int
    offset: int
    address: int
    size: int


def _segments(code: bytes) -> list[_Segment]:
    """The program headers.

    Raises:
        ValueError: it is not a 64-bit library. struct.error: it is truncated.
    """
    head = _HEADER.unpack_from(code)
    if head[0][:6] != b"\x7fELF\x02\x01":
        raise ValueError("no ELF file of 64 bits")
    start, size, count = head[5], head[9], head[10]
    found: list[_Segment] = []
    for k in range(count):
        kind, _, offset, address, _, stored, *_ = _SEGMENT.unpack_from(code, start + k * size)
        found.append(_Segment(kind, offset, address, stored))
    return found


def is_whole(code: bytes) -> bool:
    """Whether everything that a loader maps exists: it would not notice, and the process would end with SIGBUS."""
    try:
        return all(s.offset + s.size <= len(code) for s in _segments(code))
    except (struct.error, ValueError):
        return False


def needed_versions(code: bytes) -> list[str]:
    """Versions of symbols that one needs from other libraries, such as `GLIBC_2.34`; empty if unstated."""
    try:
        return sorted(set(_versions(code)))
    except (struct.error, ValueError, IndexError):
        return []


def _versions(code: bytes) -> Iterator[str]:
    segments = _segments(code)

    def place(address: int) -> int:
        found = next(s for s in segments if s.kind == _LOAD and s.address <= address < s.address + s.size)
        return address - found.address + found.offset

    entries: dict[int, int] = {}
    for s in segments:
        if s.kind == _DYNAMIC:
            entries |= dict(struct.iter_unpack("<qQ", code[s.offset : s.offset + s.size // 16 * 16]))
    if _NEEDED_VERSIONS not in entries:
        return
    at, texts = place(entries[_NEEDED_VERSIONS]), place(entries[_STRINGS])
    for _ in range(entries.get(_NEEDED_COUNT, 0)):
        _, count, _, first, following = struct.unpack_from("<HHIII", code, at)
        inner = at + first
        for _ in range(count):
            _, _, _, name, step = struct.unpack_from("<IHHII", code, inner)
            yield code[texts + name : code.index(b"\0", texts + name)].decode("ascii", "replace")
            inner += step
        at += following
