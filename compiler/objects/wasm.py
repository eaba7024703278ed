"""Symbols of WebAssembly object files: visibility and names.

The format is that of the tool conventions (WebAssembly/tool-conventions, Linking.md) around the binary format of the
core specification.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from occ.runtime.dataclass import dataclass

MAGIC = b"\0asm\1\0\0\0"
_CUSTOM, _IMPORT = 0, 2
_SYMBOL_TABLE = 8  # subsection of `linking`
_FUNCTION, _DATA, _SECTION = 0, 1, 3  # kinds of symbols
_LOCAL, _UNDEFINED, _EXPLICIT_NAME = 0x02, 0x10, 0x40  # flags of a symbol


@dataclass
class _Reader:
    data: bytes
    at: int = 0

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def bytes(self) -> bytes:
        size = self.number()
        self.at += size
        return self.data[self.at - size : self.at]

    @property
    def more(self) -> bool:
        return self.at < len(self.data)


def _number(n: int) -> bytes:
    made = bytearray()
    while n >= 0x80:
        made.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*made, n])


def _sized(data: bytes) -> bytes:
    return _number(len(data)) + data


def _sections(data: bytes) -> Iterator[tuple[int, bytes]]:
    r = _Reader(data, len(MAGIC))
    while r.more:
        kind = r.number()
        yield kind, r.bytes()


def with_symbols(data: bytes, keep: Callable[[str], bool], renamed: Mapping[str, str]) -> bytes:
    """An object file with its definitions made local, except for some, and its undefined names renamed.

    Args:
        data: the object file.
        keep: whether a definition stays visible to others.
        renamed: new names of undefined symbols, by their old ones.

    Raises:
        ValueError: it is not a WebAssembly object file.
    """
    if not data.startswith(MAGIC):
        raise ValueError("no object file of WebAssembly")
    made = bytearray(MAGIC)
    for kind, content in _sections(data):
        if kind == _IMPORT:
            content = _with_imports(content, renamed)
        elif kind == _CUSTOM and content.startswith(_sized(b"linking")):
            content = _with_linking(content, keep)
        made += bytes([kind]) + _sized(content)
    return bytes(made)


def _with_imports(content: bytes, renamed: Mapping[str, str]) -> bytes:
    r, made = _Reader(content), bytearray()
    count = r.number()
    made += _number(count)
    for _ in range(count):
        module, name = r.bytes(), r.bytes().decode()
        start = r.at
        _skip_import(r)
        made += _sized(module) + _sized(renamed.get(name, name).encode()) + content[start : r.at]
    return bytes(made)


def _skip_import(r: _Reader) -> None:
    """Go on after the type of an import."""
    kind = r.number()
    if kind == 1:  # a table
        r.number()
    if kind in (1, 2):  # limits, of a memory too
        limits = r.number()
        r.number()
        if limits & 1:
            r.number()
    elif kind in (3, 4):  # a global, a tag
        r.number()
        r.number()
    else:
        r.number()


def exported(data: bytes) -> list[str]:
    """Symbols of an object file that others see."""
    linking = next((c for kind, c in _sections(data) if kind == _CUSTOM and c.startswith(_sized(b"linking"))), b"")
    tables = (part for kind, part in _subsections(linking) if kind == _SYMBOL_TABLE)
    return [s.name for table in tables for s in _symbols(table) if s.is_definition and not s.flags & _LOCAL]


def _subsections(linking: bytes) -> Iterator[tuple[int, bytes]]:
    r = _Reader(linking)
    if r.more:
        r.bytes()
        r.number()  # version
    while r.more:
        kind = r.number()
        yield kind, r.bytes()


def _with_linking(content: bytes, keep: Callable[[str], bool]) -> bytes:
    r = _Reader(content)
    r.bytes()
    r.number()
    made = bytearray(content[: r.at])
    for kind, part in _subsections(content):
        made += _number(kind) + _sized(_with_table(part, keep) if kind == _SYMBOL_TABLE else part)
    return bytes(made)


def _with_table(table: bytes, keep: Callable[[str], bool]) -> bytes:
    made = bytearray(table)
    for s in _symbols(table):
        if s.is_definition and not keep(s.name):
            made[s.at] |= _LOCAL  # within the first seven bits: same length as before
    return bytes(made)


@dataclass(frozen=True)
class _Symbol:
    at: int  # of the flags in the table
    flags: int
    is_definition: bool  # of a function or of data
    name: str


def _symbols(table: bytes) -> Iterator[_Symbol]:
    r = _Reader(table)
    for _ in range(r.number()):
        kind = r.number()
        at = r.at
        flags = r.number()
        defined, name = not flags & _UNDEFINED, ""
        if kind == _SECTION:
            r.number()
        elif kind == _DATA:
            name = r.bytes().decode()
            for _ in range(3 if defined else 0):
                r.number()
        else:
            r.number()
            name = r.bytes().decode() if defined or flags & _EXPLICIT_NAME else ""
        yield _Symbol(at, flags, defined and kind in (_FUNCTION, _DATA), name)
