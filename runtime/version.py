"""The version of occ."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def occ_version() -> str:
    """The version that is installed; `unknown` for sources that nobody has installed."""
    try:
        return version("occ-compiler")
    except PackageNotFoundError:
        return "unknown"
