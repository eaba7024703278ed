"""The installed CANN release, from `version.info` files."""

from __future__ import annotations

import re
from pathlib import Path

_VERSION = re.compile(r"^\s*Version\s*=\s*([0-9][\w.]*)", re.MULTILINE | re.IGNORECASE)


def read_release(tool: Path, component: str) -> str:
    """The CANN release that a file belongs to.

    Args:
        tool: a program or library of it, `.../bin/atc` or `.../lib64/libascendcl.so`.
        component: `compiler` or `runtime`, whose versions agree within a release.

    Returns:
        A version such as `7.6.0.1.220`; empty if it cannot be determined.
    """
    for start in (tool, tool.resolve()):
        for folder in list(start.parents)[:4]:
            for path in (folder / component / "version.info", folder / "version.info"):
                try:
                    found = _VERSION.search(path.read_text(encoding="utf-8", errors="replace"))
                except OSError:
                    continue
                if found:
                    return found.group(1)
    return ""


def is_older(release: str, than: str) -> bool:
    """Whether a release is older than another; unknown ones are not."""
    mine, other = ([int(n) for n in re.findall(r"\d+", text)[:3]] for text in (release, than))
    return bool(mine) and bool(other) and mine < other
