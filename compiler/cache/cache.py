"""The build cache: files named by the hash of what they were made from.

Entries are written under a temporary name and renamed, so concurrent or killed builds leave either a complete entry or
none. Nothing is ever changed in place, so no locks are needed; a `turn` only avoids doing expensive work twice.

Disks fill up, machines lose power, people edit: next to each entry is its SHA-256, and an entry without it does not
count. It is then recreated and replaced. Records (.json) have none; their readers treat unparsable ones as missing.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from occ.compiler.cache.installed_store import installed_store

KINDS = ("kernel", "library", "tool", "weights", "device", "artifact", "group", "tuned", "stat")
_SUM = ".sha256"
_STALE = 24 * 3600  # seconds after which a temporary folder belongs to a killed build


def cache_dir() -> Path:
    """OCC_CACHE_DIR, or `occ` in the user's cache folder (XDG base directory specification).

    Users without a home, such as numeric user ids in containers, get a folder for the lifetime of the process.
    """
    given = os.environ.get("OCC_CACHE_DIR")
    if given:
        return Path(given).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "occ"
    try:
        return Path.home() / ".cache" / "occ"
    except RuntimeError:
        return _spare()


def can_write(folder: Path) -> bool:
    """Whether files can be created in a folder, which need not exist yet."""
    with suppress(OSError):
        while not folder.exists():
            folder = folder.parent
        return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    return False


@cache
def _spare() -> Path:
    """A temporary replacement for a read-only cache, until the process ends."""
    made, owner = Path(tempfile.mkdtemp(prefix="occ-")), os.getpid()
    atexit.register(lambda: shutil.rmtree(made, ignore_errors=True) if os.getpid() == owner else None)
    return made


def digest(parts: Iterable[str | bytes]) -> str:
    """A key: the hash of the parts, each with its length."""
    h = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return h.hexdigest()


def file_checksum(path: Path) -> str:
    """The SHA-256 of a file.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()  # processors have instructions for it


def _beside(entry: Path) -> Path:
    """The path of an entry's checksum."""
    return entry.with_name(entry.name + _SUM)


def _write(target: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".new.")
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(data)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


class Cache:
    """A folder of entries.

    Attributes:
        enabled: False makes every look-up miss, and puts entries in a temporary folder.

    Args:
        root: the folder, created on the first write. If it is read-only, as in many containers, entries are read from
            it, and new ones go to a folder for the lifetime of the process. Entries of an installed store are read
            last.
    """

    def __init__(self, root: Path | None = None, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self._root, self._making = (root or cache_dir()) if enabled else None, threading.Lock()
        self._below: list[Path] = []  # additional folders that entries are read from
        if self._root is not None and not can_write(self._root):
            self._below, self._root = [self._root], _spare()
        if enabled and (store := installed_store()) is not None:
            self._below.append(store)

    @property
    def root(self) -> Path:
        """The folder for new entries. Many compilations write none, and then create no temporary folder."""
        with self._making:
            if self._root is None:
                self._root = Path(tempfile.mkdtemp(prefix="occ-"))
                weakref.finalize(self, shutil.rmtree, self._root, ignore_errors=True)
            return self._root

    def path(self, kind: str, key: str, suffix: str = "") -> Path:
        """The path of an entry, existing or not; `kind` is one of `KINDS`."""
        own = self._own(kind, key, suffix)
        if self._below and not own.exists():
            for folder in self._below:
                with suppress(OSError):
                    if (found := folder / own.relative_to(self.root)).exists():
                        return found
        return own

    def _own(self, kind: str, key: str, suffix: str) -> Path:
        """The path to write an entry to."""
        assert kind in KINDS, f"{kind} is not a kind of entry"
        return self.root / kind / key[:2] / f"{key}{suffix}"

    def has(self, kind: str, key: str, suffix: str = "") -> bool:
        """Whether there is a complete entry: a damaged one counts as missing."""
        try:
            return file_checksum(self.path(kind, key, suffix)) == self.checksum(kind, key, suffix)
        except OSError:
            return False

    def has_any(self, kind: str, suffix: str) -> bool:
        """Whether there is an entry of a kind."""
        roots = [*([self._root] if self._root is not None else []), *self._below]
        return any(next((r / kind).glob(f"*/*{suffix}"), None) is not None for r in roots)

    def get(self, kind: str, key: str, suffix: str = "") -> bytes | None:
        """The content of an entry; None if it is missing or damaged."""
        with suppress(OSError):
            data = self.path(kind, key, suffix).read_bytes()
            if hashlib.sha256(data).hexdigest() == self.checksum(kind, key, suffix):
                return data
        return None

    def checksum(self, kind: str, key: str, suffix: str = "") -> str:
        """The SHA-256 that an entry had when it was written; empty if unknown."""
        with suppress(OSError, UnicodeDecodeError):
            return _beside(self.path(kind, key, suffix)).read_text("ascii")
        return ""

    def drop(self, kind: str, key: str, suffix: str = "") -> None:
        """Remove an entry."""
        path = self._own(kind, key, suffix)
        path.unlink(missing_ok=True)
        _beside(path).unlink(missing_ok=True)

    def put(self, kind: str, key: str, data: bytes, suffix: str = "") -> Path:
        """Write an entry."""
        target = self._own(kind, key, suffix)
        target.parent.mkdir(parents=True, exist_ok=True)
        _write(target, data)
        if suffix != ".json":
            _write(_beside(target), hashlib.sha256(data).hexdigest().encode())
        return target

    def adopt(self, kind: str, key: str, made: Path, suffix: str = "", checksum: str = "") -> Path:
        """Move a finished file on the same file system in as an entry, whose checksum may be known."""
        target = self._own(kind, key, suffix)
        target.parent.mkdir(parents=True, exist_ok=True)
        known = checksum or file_checksum(made)
        os.replace(made, target)
        _write(_beside(target), known.encode())
        return target

    @contextmanager
    def turn(self, key: str, *, wait: bool = True) -> Generator[bool]:
        """Hold the lock of a key while an entry is created; other threads and processes wait.

        Without `wait` they continue; the yielded value says whether the lock is theirs.

        File systems without locks, such as some network ones, let everyone in. A killed process releases its lock.
        """
        home = self.root / "tmp"
        home.mkdir(parents=True, exist_ok=True)
        file = home / f"{key}.turn"
        with file.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            except OSError:
                pass
            try:
                yield True
            finally:
                file.unlink(missing_ok=True)
                with suppress(OSError):  # closing is not enough if a forked child has the file open too
                    fcntl.flock(lock, fcntl.LOCK_UN)

    def workspace(self) -> tempfile.TemporaryDirectory[str]:
        """A temporary folder on the file system of the cache; folders of killed builds are removed at the same time."""
        home = self.root / "tmp"
        home.mkdir(parents=True, exist_ok=True)
        for old in home.iterdir():
            try:
                if time.time() - old.stat().st_mtime > _STALE:
                    shutil.rmtree(old, ignore_errors=True)
            except OSError:
                continue  # another build removed it first
        return tempfile.TemporaryDirectory(dir=home, prefix="build-")

    def size(self) -> tuple[int, int]:
        """(number of entries, bytes)."""
        files = [p for kind in KINDS for p in (self.root / kind).rglob("*") if p.is_file() and p.suffix != _SUM]
        return len(files), sum(p.stat().st_size for p in files)

    def clear(self) -> None:
        """Remove all entries, and the folder if it is then empty."""
        for kind in (*KINDS, "tmp"):
            shutil.rmtree(self.root / kind, ignore_errors=True)
        with suppress(OSError):
            self.root.rmdir()
