"""Digests of files, reused while size and modification time stay the same.

A file is identified by its `stat`, as in git's index: device, inode, size, and the times of the last change.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path

from occ.compiler.cache.cache import Cache, digest, file_checksum

_SETTLED = 2_000_000_000  # nanoseconds: a younger file may change again with the same timestamps


class Stamps:
    """Records of files, in a build cache."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache

    def digest_of(self, path: Path) -> str:
        """The SHA-256 of a file, which is read only if it is unknown or has changed.

        Raises:
            OSError: the file cannot be read.
        """
        now, before = time.time_ns(), _stat(path)
        known = self._of(path, before)
        if known is not None:
            return known
        found = file_checksum(path)
        if max(before[-2:]) + _SETTLED < now and _stat(path) == before:
            self._put(path, before, found)
        return found

    def note(self, path: Path, holds: str) -> None:
        """Record the digest of a file that was just written."""
        self._put(path, _stat(path), holds)

    def holds(self, path: Path, what: str) -> bool:
        """Whether a file is known to have that digest."""
        try:
            return self._of(path, _stat(path)) == what
        except OSError:
            return False

    def _of(self, path: Path, stat: list[int]) -> str | None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            note = json.loads(self.cache.path("stat", _key(path), ".json").read_bytes())
            if note["stat"] == stat:
                return str(note["holds"])
        return None

    def _put(self, path: Path, stat: list[int], holds: str) -> None:
        with suppress(OSError):  # a failed write counts as no record
            self.cache.put("stat", _key(path), json.dumps({"stat": stat, "holds": holds}).encode(), ".json")


def _key(path: Path) -> str:
    return digest([os.path.realpath(path)])


def _stat(path: Path) -> list[int]:
    s = os.stat(path)
    return [s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns]
