"""Cached artifacts, keyed by the model, the options and the compiler's own sources.

The key covers everything that a build reads: the bytes of the model, the options, the compiler's own sources, the
installed distributions, the C++ compiler and the processor. Other inputs - the user's rules, plugins of other packages
- are not tracked, so such builds are neither stored nor looked up.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from occ.compiler.cache.cache import Cache, digest, file_checksum
from occ.compiler.cache.file_stamps import Stamps
from occ.compiler.cache.sources import files_of
from occ.compiler.diagnostics import error
from occ.compiler.entry_points import GROUPS, installed
from occ.runtime.dataclass import dataclass
from occ.runtime.machine import processors
from occ.runtime.mapped_arrays import copy_in_huge_pages

_LEAST = 2 << 30  # bytes of stored artifacts on a small disk; the least recently used ones go first
_SHARE = 10  # on a larger disk: a tenth of it


def limit(folder: Path) -> int:
    """Bytes of artifacts to keep: OCC_CACHE_ARTIFACTS, or a tenth of the disk, at least 2 GiB.

    Raises:
        CompileError: OCC0603 the variable is not a number.
    """
    given = os.environ.get("OCC_CACHE_ARTIFACTS", "")
    if given and not (given.isascii() and given.isdigit()):
        raise error("OCC0603", f"OCC_CACHE_ARTIFACTS is {given!r}", help="set it to a number of bytes; 0 keeps nothing")
    if given:
        return int(given)
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    with suppress(OSError):
        return max(_LEAST, shutil.disk_usage(folder).total // _SHARE)
    return _LEAST


@dataclass(frozen=True)
class Request:
    """A request to build an artifact, from which its cache key is made.

    Attributes:
        model: path of an .onnx file.
        how: options that affect the artifact, by name.
        stamps: known digests of files.
    """

    model: Path
    how: Mapping[str, Any]
    stamps: Stamps

    @cached_property
    def began(self) -> int:
        """When the model was read for the key, in nanoseconds."""
        return time.time_ns()

    @cached_property
    def key(self) -> str:
        """The cache key of the artifact, from the model as it is before the build."""
        _ = self.began
        how = json.dumps(dict(self.how), sort_keys=True, default=list)
        return digest([self.model.stem, how, self.stamps.digest_of(self.model), *_surroundings()])


@dataclass(frozen=True)
class CachedArtifact:
    """An artifact of an earlier build: its file in the cache, and the facts recorded with it."""

    path: Path
    facts: dict[str, Any]
    request: Request

    def copy_to(self, place: Path) -> bool:
        """Write a copy under a temporary name and move it into place, unless it is there already.

        False if it has just disappeared from the cache.

        Raises:
            OSError: the destination cannot be written.
        """
        if self.request.stamps.holds(place, self.request.key):
            return True
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{place.name[:60]}.", suffix=".tmp", dir=place.parent)
        os.close(handle)
        try:
            copy_in_huge_pages(self.path, Path(name))
            os.chmod(name, 0o644)
            os.replace(name, place)
            self.request.stamps.note(place, self.request.key)
        except FileNotFoundError:
            return False
        finally:
            Path(name).unlink(missing_ok=True)
        return True


class ArtifactCache:
    """The artifacts in a build cache.

    Raises:
        CompileError: as `limit`.
    """

    def __init__(self, cache: Cache) -> None:
        self.cache, self.limit = cache, limit(cache.root)

    def find(self, request: Request) -> CachedArtifact | None:
        """The artifact that building the request would produce, if it was built before and nothing has changed."""
        if not self.limit:
            return None
        try:
            with suppress(FileNotFoundError):
                note = json.loads(self.cache.path("artifact", request.key, ".json").read_bytes())
                folder, stamps = request.model.parent, request.stamps
                if any(stamps.digest_of(folder / name) != seen for name, seen in note["files"].items()):
                    return None
                path = self.cache.path("artifact", request.key, ".occ")
                if stamps.digest_of(path) != self.cache.checksum("artifact", request.key, ".occ"):
                    return None  # damaged: built and stored again
                with suppress(OSError):  # of a read-only cache
                    os.utime(path.with_suffix(".json"))  # used: see `_shrink`
                return CachedArtifact(path, note["facts"], request)
        except (OSError, ValueError, KeyError):
            pass  # an unreadable cache counts as empty
        return None

    def keep(self, request: Request, artifact: Path, files: Iterable[Path], facts: Mapping[str, Any]) -> str:
        """Store a finished artifact; returns why it is not stored, empty if it is.

        The entry and the artifact are one file, where the file system allows it: the memory of a second one of 160 MB
        takes 0.2 s. The checksum shows whether that file was changed in place.

        Args:
            request: what was built.
            artifact: the file.
            files: external data of the model, in its folder or below.
            facts: facts to record, JSON.
        """
        if any(map(installed, GROUPS)):
            return "packages extend the compiler, and their effects are not tracked"
        if why := self._too_large(artifact.stat().st_size):
            return why
        files, folder = list(files), request.model.resolve().parent
        try:
            if any(f.stat().st_mtime_ns > request.began for f in (request.model, *files)):
                return "the model file changed during the build"
            seen = {f.resolve().relative_to(folder).as_posix(): request.stamps.digest_of(f) for f in files}
            checksum = file_checksum(artifact)
            with self.cache.workspace() as work:
                linked = Path(work) / "artifact"
                _link_or_copy(artifact, linked)
                made = self.cache.adopt("artifact", request.key, linked, ".occ", checksum)
            request.stamps.note(made, checksum)
            note = json.dumps({"files": seen, "facts": dict(facts)})
            self.cache.put("artifact", request.key, note.encode(), ".json")
            request.stamps.note(artifact, request.key)
            self._shrink()
        except (OSError, ValueError) as e:  # the build is done: failing to store it is not an error
            return str(e)
        return ""

    def _too_large(self, size: int) -> str:
        """Why an artifact of this size is not stored; empty if it is."""
        if not self.limit:
            return "OCC_CACHE_ARTIFACTS is 0"
        if size > self.limit:
            bound = f"{self.limit / 2**30:.1f} GiB"
            return f"its {size / 2**30:.1f} GiB exceed the limit for cached artifacts, {bound} (OCC_CACHE_ARTIFACTS)"
        free = shutil.disk_usage(self.cache.root if self.cache.root.exists() else self.cache.root.parent).free
        return f"the disk has {free / 2**30:.1f} GiB free" if size > free // 2 else ""

    def adopt(self, key: str, artifact: Path) -> None:
        """Move a finished artifact in, under a key chosen by the caller.

        It must be on the file system of the cache.

        Raises:
            OSError: the cache cannot be written.
        """
        if not self._too_large(artifact.stat().st_size):
            self.cache.put("artifact", key, b'{"files": {}, "facts": {}}', ".json")
            self.cache.adopt("artifact", key, artifact, ".occ")
            self._shrink()

    def _shrink(self) -> None:
        kept = {p: p.stat().st_size for p in (self.cache.root / "artifact").glob("*/*.occ")}
        total = sum(kept.values())
        for path in sorted(kept, key=_last_use):
            if total <= self.limit:
                return
            path.with_suffix(".json").unlink(missing_ok=True)
            self.cache.drop("artifact", path.stem, ".occ")
            total -= kept[path]


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # it is on another file system, or on one without links
        copy_in_huge_pages(source, target)


def _last_use(artifact: Path) -> float:
    """When an artifact was last used: a hit touches its record, not the artifact, whose timestamp matters."""
    note = artifact.with_suffix(".json")
    return (note if note.is_file() else artifact).stat().st_mtime


def _surroundings() -> Iterator[str]:
    """Everything that decides the compiler's output besides the model and its options."""
    yield sys.version
    for folder in map(Path, sys.path):
        if folder.is_dir():
            yield from sorted(n for n in os.listdir(folder) if n.endswith((".dist-info", ".egg-info")))
    yield from (f"{f.name}: {_stamp(f)}" for f in files_of("occ"))  # with the compiler and the runtime
    for name in (os.environ.get("OCC_CXX"), "g++", "c++", "clang++"):
        found = shutil.which(name) if name else None
        yield f"{name}: {_stamp(os.path.realpath(found)) if found else None}"
    if home := os.environ.get("ASCEND_HOME_PATH"):  # the tables of a CANN toolkit, which decide kernels
        yield from (f"{f}: {_stamp(f)}" for f in sorted(Path(home).glob("opp/*/op_impl/ai*/**/config/**/*.json")))
    kernel = os.uname()  # `platform.platform` starts a process
    yield f"{kernel.sysname} {kernel.release} {kernel.machine} {platform.libc_ver()} {os.cpu_count()}"
    yield f"{os.environ.get('OCC_TARGET_CPU')}"
    yield _processor()


def _stamp(path: str | Path) -> str:
    stat = os.stat(path)
    return f"{stat.st_size} bytes of {stat.st_mtime_ns}"


def _processor() -> str:
    """The kernel's description of the first processor, without values that change."""
    first = next(iter(processors()), None) or {"": platform.processor()}
    return "\n".join(f"{k}: {v}" for k, v in first.items() if "MHz" not in k and "bogomips" not in k.lower())
