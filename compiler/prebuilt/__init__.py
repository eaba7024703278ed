"""Compiled C++ in a wheel (`make wheels`).

Without it the build cache compiles the same with this machine's compiler.

`index.json` lists, by name, a digest of each one's sources, and the machine and the oldest C library that run it. If
the installed sources or the machine differ, it is not used: the cache compiles as usual.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from occ.compiler.cache.cache import digest

FOLDER = Path(__file__).parent
INDEX = "index.json"


def made_of(texts: Mapping[str, str], *more: str) -> str:
    """A digest of sources, and of everything else an output depends on except the compiler."""
    return digest([*texts, *texts.values(), *more])


def prebuilt(name: str, made: str) -> Path | None:
    """A file or folder built from the same sources, if it runs here; `made` is from `made_of`."""
    index = _index()
    if index.get("entries", {}).get(name) != made or index["machine"] != platform.machine():
        return None
    return FOLDER / name if _glibc() >= _numbers(index["glibc"]) and (FOLDER / name).exists() else None


@cache
def _index() -> dict[str, Any]:
    try:
        return json.loads((FOLDER / INDEX).read_text("utf-8"))
    except (OSError, ValueError):
        return {}


def _glibc() -> tuple[int, ...]:
    """The version of the C library; for others than glibc a version older than all."""
    try:
        name, _, found = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (AttributeError, OSError, ValueError):
        return ()
    return _numbers(found) if name == "glibc" else ()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())
