"""Which files a process opens: what reads changed files may touch their folder, and what is installed."""

from __future__ import annotations

import gc
import sys
import tempfile
from pathlib import Path
from typing import Any


class Escape(Exception):
    """A file outside of the folder was opened."""


_FOLDER: list[str] = []  # that files may be written in and read from, while there is one
_READ = (
    sys.prefix,
    sys.base_prefix,
    "/dev/shm",
    "/usr",
    "/lib",
    "/etc/ld.so",
    "/proc/self/maps",
    "/sys/devices",
    "/proc/cpuinfo",
)


class watched:
    """Raises where a file outside of a folder is opened; what is installed may be read.

    Garbage is not collected meanwhile: finalizers of what was made before remove folders of their own, which opens them.
    """

    _hooked = False

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        tempfile.gettempdir()  # which opens a file, under a lock, when it is asked first

    def __enter__(self) -> None:
        if not watched._hooked:
            sys.addaudithook(_audit)
            watched._hooked = True
        self._collects = gc.isenabled()
        gc.disable()
        _FOLDER.append(self.folder)

    def __exit__(self, *_: object) -> None:
        _FOLDER.clear()
        if self._collects:
            gc.enable()


def _audit(event: str, args: Any) -> None:
    if event != "open" or not _FOLDER or not isinstance(args[0], (str, bytes)):
        return
    path = args[0].decode() if isinstance(args[0], bytes) else args[0]
    reads = not isinstance(args[1], str) or not set(args[1]) & set("wax+")
    root = str(Path(__file__).parents[2])
    if path.startswith((_FOLDER[0], tempfile.gettempdir() + "/occ-")) or (reads and path.startswith((*_READ, root))):
        return
    raise Escape(f"{path} was opened")
