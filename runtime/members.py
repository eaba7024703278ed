"""Members of an artifact: in a zip, in a folder, or inside another artifact."""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from occ.runtime.errors import RunError
from occ.runtime.file_formats import foreign_file

MANIFEST, WEIGHTS, LIBRARY = "manifest.json", "weights.bin", "kernels/model.so"
ALSO = "machines"  # the folder with the code for further machines, an artifact each
_PIECE = 64 << 10  # bytes


class Members(Protocol):
    """Files by path."""

    def names(self) -> list[str]:
        """Paths of all members, in order."""
        ...

    def read(self, name: str) -> bytes:
        """The bytes of a member.

        Raises:
            RunError: OCC0502 it is missing or damaged.
        """
        ...

    def pieces(self, name: str) -> Iterator[bytes]:
        """The bytes of a member, part by part.

        Raises:
            RunError: as `read`.
        """
        ...

    def map(self, name: str) -> np.ndarray:
        """The bytes of a member as u8, mapped if possible.

        Raises:
            RunError: as `read`.
        """
        ...


def members_of(path: Path) -> Members:
    """The members of the artifact at a path.

    Raises:
        RunError: OCC0502 there is none.
    """
    return Folder(path) if path.is_dir() else Zip(path)


def others(members: Members) -> Mapping[str, bytes]:
    """All members except standard ones and those of further machines."""
    own = (n for n in members.names() if not n.startswith(f"{ALSO}/"))
    return Unread(members, [n for n in own if n not in (MANIFEST, WEIGHTS, LIBRARY)])


class Unread(Mapping[str, bytes]):
    """Members read on demand: most are for people, and no run needs them.

    Args:
        members: where they are.
        names: of these members, in order.
    """

    def __init__(self, members: Members, names: Sequence[str]) -> None:
        self._members, self._names = members, dict.fromkeys(names)

    def __getitem__(self, name: str) -> bytes:
        if name not in self._names:
            raise KeyError(name)
        return self._members.read(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def is_plain(name: str) -> bool:
    """Whether a member's path stays inside of the artifact, on every system."""
    return not re.search(r"[\\:\0]", name) and all(part not in ("", ".", "..") for part in name.split("/"))


class Folder:
    """Members of an artifact that is a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / MANIFEST).is_file():  # before listing the files of a folder, which may be a whole disk
            raise RunError("OCC0502", f"the folder `{path}` is not an artifact: it has no `{MANIFEST}`")

    def read(self, name: str) -> bytes:
        try:
            return self._find(name).read_bytes()
        except OSError as e:
            raise RunError("OCC0502", f"`{name}` of `{self.path}` cannot be read: {e.strerror}") from None

    def pieces(self, name: str) -> Iterator[bytes]:
        yield self.read(name)

    def map(self, name: str) -> np.ndarray:
        found = self._find(name)
        return np.memmap(found, np.uint8, "r").view(np.ndarray) if found.stat().st_size else np.empty(0, np.uint8)

    def names(self) -> list[str]:
        """Paths of the files, in order; links are resolved."""
        root = self.path.resolve()
        found = sorted(p for p in self.path.rglob("*") if p.is_file())
        return [p.relative_to(self.path).as_posix() if _leads_inside(p, root) else str(p.resolve()) for p in found]

    def _find(self, name: str) -> Path:
        found = self.path / name
        if not found.is_file():
            raise RunError("OCC0502", f"`{name}` is missing in the artifact `{self.path}`", "build the artifact again")
        return found


def _leads_inside(path: Path, root: Path) -> bool:
    return path.resolve().is_relative_to(root)


class Nested:
    """Members of an artifact inside another one."""

    def __init__(self, files: Mapping[str, bytes], prefix: str) -> None:
        self.files, self.prefix = files, prefix

    def names(self) -> list[str]:
        return sorted(n.removeprefix(self.prefix) for n in self.files if n.startswith(self.prefix))

    def read(self, name: str) -> bytes:
        if self.prefix + name not in self.files:
            raise RunError("OCC0502", f"`{self.prefix}{name}` is missing in the artifact", "build the artifact again")
        return self.files[self.prefix + name]

    def pieces(self, name: str) -> Iterator[bytes]:
        yield self.read(name)

    def map(self, name: str) -> np.ndarray:
        return np.frombuffer(self.read(name), np.uint8)


class Within:
    """Members of an artifact for another processor, which shares the weights of the outer one."""

    def __init__(self, outer: Members, machine: str) -> None:
        self.outer, self.prefix = outer, f"{ALSO}/{machine}/"

    def names(self) -> list[str]:
        return [n.removeprefix(self.prefix) for n in self.outer.names() if n.startswith(self.prefix)]

    def read(self, name: str) -> bytes:
        return self.outer.read(self.prefix + name)

    def pieces(self, name: str) -> Iterator[bytes]:
        return self.outer.pieces(self.prefix + name)

    def map(self, name: str) -> np.ndarray:
        return self.outer.map(self.prefix + name if self.prefix + name in self.outer.names() else name)


# Exceptions of zipfile for damaged files: encrypted members and unknown methods are RuntimeErrors.
DAMAGE = (
    OSError,
    zipfile.BadZipFile,
    RuntimeError,
    ValueError,
    EOFError,
    struct.error,
    zlib.error,
    OverflowError,
    MemoryError,
)


def _problems(listed: list[zipfile.ZipInfo], size: int) -> Iterator[str]:
    """Errors of a zip of stored members.

    No member is read for it, so nothing exceeds the size of the file.
    """
    names: set[str] = set()
    for i in listed:
        if i.compress_type != zipfile.ZIP_STORED or i.compress_size != i.file_size:
            yield f"its member `{i.filename!a}` is compressed"
        if i.flag_bits & 1:
            yield f"its member `{i.filename!a}` is encrypted"
        if not 0 <= i.header_offset <= size - 30 or i.file_size > size:
            yield f"its member `{i.filename!a}` reaches past its end"
        if i.filename in names:
            yield f"it has two members `{i.filename!a}`"
        names.add(i.filename)
    if sum(i.file_size for i in listed) > size:
        yield "its members are larger than it"


def _no_artifact(path: Path, why: str) -> RunError:
    if (known := foreign_file(path)) is not None:
        return RunError("OCC0502", f"`{path}` is not an artifact but {known[0]}", known[1])
    if path.suffix in (".onnx", ".ort"):
        help_ = f"`occ build {path}` makes an artifact of a model, and `occ.compile` runs the model"
        return RunError("OCC0502", f"`{path}` is not an artifact but a model", help_)
    return RunError("OCC0502", f"`{path}` is not an artifact: {why}", "build the artifact again")


class Zip:
    """Members of an artifact that is a zip.

    It stays open: its members can be read even if another one is now at its path.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
            self.infos = {i.filename: i for i in self._zip.infolist()}
            listed, size = self._zip.infolist(), path.stat().st_size
        except FileNotFoundError:
            raise RunError("OCC0502", f"`{path}` does not exist") from None
        except DAMAGE as e:
            raise _no_artifact(path, str(e)) from None
        for why in [*_problems(listed, size), *([] if MANIFEST in self.infos else [f"it has no `{MANIFEST}`"])]:
            raise _no_artifact(path, why)

    def read(self, name: str) -> bytes:
        return b"".join(self.pieces(name))

    def pieces(self, name: str) -> Iterator[bytes]:
        info = self._find(name)
        try:
            with self._zip.open(info) as f:
                while piece := f.read(_PIECE):
                    yield piece
        except DAMAGE as e:
            raise RunError(
                "OCC0502", f"`{name}` in `{self.path}` is damaged: {e}", "build the artifact again"
            ) from None

    def map(self, name: str) -> np.ndarray:
        info = self._find(name)
        with open(self.path, "rb") as f:
            f.seek(info.header_offset)
            head = f.read(30)
            lengths = (
                struct.unpack("<HH", head[26:]) if len(head) == 30 and head.startswith(b"PK\3\4") else (1 << 62, 0)
            )
            start = info.header_offset + 30 + sum(lengths)
        if start + info.file_size > self.path.stat().st_size:
            raise RunError("OCC0502", f"`{name}` in `{self.path}` is damaged", "build the artifact again")
        if info.file_size == 0:
            return np.empty(0, np.uint8)
        return np.memmap(self.path, np.uint8, "r", start, (info.file_size,)).view(np.ndarray)

    def names(self) -> list[str]:
        """Paths of the members, in order; without the folders that some tools add."""
        return sorted(n for n in self.infos if not n.endswith("/"))

    def _find(self, name: str) -> zipfile.ZipInfo:
        if name not in self.infos:
            raise RunError("OCC0502", f"`{name}` is missing in the artifact `{self.path}`", "build the artifact again")
        return self.infos[name]
