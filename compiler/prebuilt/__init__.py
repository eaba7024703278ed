"""Compiled C++ that a wheel brings along (`make wheels`).

Without it the build cache compiles the same with this machine's compiler.

`index.json` has, by name, a digest of what each was made of, and the machine and the oldest C library that run it. What was made of
other sources than those that are installed, or is for another machine, is not taken: the cache makes it as ever.
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
    """A digest of sources, and of what else something was made of but the compiler."""
    return digest([*texts, *texts.values(), *more])


def prebuilt(name: str, made: str) -> Path | None:
    """A file or folder that was made of the same sources, if it runs here; `made` is from `made_of`."""
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
    """The version of the C library; of another one than glibc a version that is older than all."""
    try:
        name, _, found = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (AttributeError, OSError, ValueError):
        return ()
    return _numbers(found) if name == "glibc" else ()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())
