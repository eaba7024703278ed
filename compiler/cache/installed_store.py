"""Kernels from an installed package: entries of the build cache, for some processors.

`make store` builds that package. With it, `-t cpu` needs no C++ compiler for models whose kernels it has.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "occ_kernels"
TARGETS = "targets.json"  # its Halide targets


@cache
def installed_store() -> Path | None:
    """The folder of the package, laid out like the build cache; None if it is not installed."""
    try:
        found = find_spec(PACKAGE)
    except (ImportError, ValueError):
        return None
    folder = Path(found.origin).parent if found is not None and found.origin else None
    return folder if folder is not None and (folder / TARGETS).is_file() else None


def stored_targets() -> tuple[str, ...]:
    """The Halide targets with kernels; none if the list is damaged."""
    folder = installed_store()
    try:
        listed = [] if folder is None else json.loads((folder / TARGETS).read_text("utf-8"))
    except (OSError, ValueError):
        return ()
    return tuple(listed) if isinstance(listed, list) and all(isinstance(t, str) for t in listed) else ()
