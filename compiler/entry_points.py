"""Extensions from installed packages: entry points, loaded on demand."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from occ.compiler.diagnostics import error

GROUPS = ("occ.targets", "occ.passes", "occ.rules", "occ.ops")


_all = cache(entry_points)  # it reads files of each installed package


@cache
def installed(group: str) -> dict[str, EntryPoint]:
    """Entry points of a group by name.

    Raises:
        CompileError: OCC0610 two distributions use the same name.
    """
    found: dict[str, EntryPoint] = {}
    for point in _all().select(group=group):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            names = [p.dist.name if p.dist else "?" for p in (other, point)]
            raise error("OCC0610", f"two packages install `{point.name}` in {group}", notes=names, help="remove one")
    return found


def load_point(point: EntryPoint) -> Any:
    """Load the object that an entry point names.

    Raises:
        CompileError: OCC0610 it cannot be imported.
    """
    try:
        return point.load()
    except Exception as e:
        owner = point.dist.name if point.dist else point.value
        message = f"`{point.name}` of the package `{owner}` cannot be loaded: {type(e).__name__}: {e}"
        raise error("OCC0610", message, help=f"fix or uninstall `{owner}`") from e
