"""The build cache as one file, for other machines of a team or for container images.

A store is a zip of entries, each with its SHA-256, and `store.json`, which says what they were built for. Keys include
everything that decides an entry - processor features, toolchain, sources - so unsuitable entries of a store never
match, and damaged or misnamed ones are rejected.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import zipfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from occ.compiler.cache.cache import KINDS, Cache
from occ.compiler.diagnostics import error
from occ.runtime.dataclass import dataclass
from occ.runtime.members import DAMAGE

FORMAT = 1
_HEAD = "store.json"
_SUM = ".sha256"
# kinds worth sharing; `stat` is about files of one machine, and artifacts about its models
SHARED = tuple(k for k in KINDS if k not in ("stat", "artifact"))
_ENTRY = re.compile(rf"({'|'.join(SHARED)})/([0-9a-f]{{2}})/(\2[0-9a-f]+)((?:\.[A-Za-z0-9_]+)*)")
_LONGEST = 200  # characters of an entry: file systems have limits
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@dataclass(frozen=True)
class Store:
    """The contents of a store of kernels.

    Attributes:
        entries: their number.
        size: their bytes.
        made_for: the processor and the version of occ, as text.
    """

    entries: int
    size: int
    made_for: str


def export(cache: Cache, file: Path, made_for: str) -> Store:
    """Write the entries of a cache to a file, under a temporary name until it is complete.

    Raises:
        OSError: the file cannot be written.
    """
    count = size = 0
    handle, name = tempfile.mkstemp(prefix=f".{file.name[:60]}.", suffix=".tmp", dir=file.absolute().parent)
    try:
        with os.fdopen(handle, "wb") as out, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as z:
            for path, entry in _entries(cache):
                data = path.read_bytes()
                digest = hashlib.sha256(data).hexdigest()
                beside = path.with_name(path.name + _SUM)
                if path.suffix != ".json" and (not beside.exists() or beside.read_text("ascii") != digest):
                    continue  # damaged
                z.writestr(entry, data)
                z.writestr(entry + _SUM, digest)
                count, size = count + 1, size + len(data)
            z.writestr(_HEAD, json.dumps({"format": FORMAT, "made_for": made_for, "entries": count}))
        os.chmod(name, 0o644)
        os.replace(name, file)
    finally:
        Path(name).unlink(missing_ok=True)
    return Store(count, size, made_for)


def _entries(cache: Cache) -> Iterator[tuple[Path, str]]:
    for kind in SHARED:
        for path in sorted((cache.root / kind).glob("*/*")):
            name = path.relative_to(cache.root).as_posix()
            if path.is_file() and path.suffix != _SUM and _ENTRY.fullmatch(name):
                yield path, name


def import_(cache: Cache, file: Path) -> Store:
    """Put the entries of a store into a cache; nothing is written if one of them is damaged.

    Raises:
        CompileError: OCC0603 the file is not a store, or is damaged.
        OSError: it cannot be read, or the cache cannot be written.
    """
    size = 0
    with file.open("rb") as opened:
        with _refusing(file):
            z = zipfile.ZipFile(opened)
            if other := [i.filename for i in z.infolist() if i.compress_type not in _METHODS]:
                raise _refused(file, f"`{other[0][:80]}` is compressed by a method that no store uses")
            head = json.loads(z.read(_HEAD))
            if not isinstance(head, dict) or head.get("format") != FORMAT:
                raise _refused(file, f"it has the format {head.get('format') if isinstance(head, dict) else head!r}")
            names = [n for n in z.namelist() if n != _HEAD and not n.endswith(_SUM)]
            for name in names:
                _check(z, file, name)
        for name in names:
            with _refusing(file):
                data = z.read(name)
            kind, _, key, suffix = _parts(file, name)
            cache.put(kind, key, data, suffix)
            size += len(data)
    return Store(len(names), size, str(head.get("made_for", "")))


@contextmanager
def _refusing(file: Path) -> Generator[None]:
    """What zipfile and json say about a damaged file is said as OCC0603."""
    try:
        yield
    except (*DAMAGE, KeyError) as e:
        raise _refused(file, str(e)) from None


def _parts(file: Path, name: str) -> tuple[str, str, str, str]:
    found = _ENTRY.fullmatch(name)
    if found is None or len(name) > _LONGEST:
        raise _refused(file, f"`{name[:80]}` is not an entry of a cache")
    kind, folder, key, suffix = found.groups()
    return kind, folder, key, suffix


def _check(z: zipfile.ZipFile, file: Path, name: str) -> None:
    """An entry has the digest with which it was written."""
    _parts(file, name)
    known = b""
    with suppress(KeyError):
        known = z.read(name + _SUM)
    if hashlib.sha256(z.read(name)).hexdigest().encode() != known:
        raise _refused(file, f"`{name}` is damaged")


def _refused(file: Path, why: str) -> Exception:
    return error("OCC0603", f"`{file}` is not a store of kernels: {why}", help="make one by `occ cache --export FILE`")
