"""The version of occ."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def occ_version() -> str:
    """The installed version; `unknown` for sources that are not installed."""
    try:
        return version("occ-compiler")
    except PackageNotFoundError:
        return "unknown"
