"""Checks output paths: never over a model, a device or a folder that occ did not create."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from occ.compiler.diagnostics import error


def check_out(out: Path, sources: Iterable[object], *, folder: bool = False, streams: bool = False) -> Path:
    """The path to write to: the target of a symbolic link, if it is one.

    Args:
        out: the requested path.
        sources: where the model is read from; anything that is not a file path is ignored.
        folder: whether a folder is written.
        streams: whether the output may be a device, a pipe or a socket, which is kept.

    Raises:
        CompileError: OCC0605 it would replace something that must not be replaced.
    """
    place = out.resolve() if out.is_symlink() else out
    if not place.exists():
        return place
    check_not_read(out, sources)
    if place.is_dir() and not folder:
        raise error("OCC0605", f"`{out}` is a folder", help=f"name a file, such as `{out / 'model.occ'}`")
    if folder and not place.is_dir():
        raise error("OCC0605", f"`{out}` is not a folder", help="name a folder that is empty or not there yet")
    if not (place.is_file() or place.is_dir() or streams):
        raise error("OCC0605", f"`{out}` is a device, a pipe or a socket", help="name a file")
    return place


def check_not_read(out: Path, sources: Iterable[object]) -> None:
    """Raise an error if an output file is one that the model is read from.

    Raises:
        CompileError: OCC0605.
    """
    for source in sources:
        if isinstance(source, (str, os.PathLike)) and _is_same(out, source):
            raise error(
                "OCC0605", f"`{out}` is the file that the model is read from", help="write to another file with -o"
            )


def _is_same(out: Path, source: str | os.PathLike[str]) -> bool:
    try:
        return out.samefile(source)
    except (OSError, ValueError):
        return False  # the text of a model is not a path
