"""The digest of the compiler's own source files, which is part of every cache key."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from occ.compiler.cache.cache import digest


def files_of(package: str) -> Iterator[Path]:
    """The files of a package and its subpackages, in order, without compiled Python."""
    for folder, folders, names in os.walk(import_module(package).__path__[0], followlinks=True):
        folders.sort()
        yield from (Path(folder, n) for n in sorted(names) if not n.endswith(".pyc"))


@cache
def source_digest(*packages: str) -> str:
    """A digest of the files of packages, for the keys of their products."""
    return digest(part for p in packages for f in files_of(p) for part in (f.name, f.read_bytes()))


def version_of(distribution: str) -> str:
    """The version of a library; empty if it is not an installed distribution."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
