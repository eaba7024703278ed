"""Source locations: the ONNX nodes that an op stands for."""

from __future__ import annotations

from collections.abc import Iterable

from occ.runtime.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Location:
    """Names of ONNX nodes, outermost function first in each (`graph/stem/conv1`); empty for compiler-made ops."""

    nodes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ", ".join(self.nodes) or "<compiler>"


UNKNOWN = Location()


def fuse(locations: Iterable[Location]) -> Location:
    """One location for the replacement of several ops; each node once, in order."""
    return Location(tuple(dict.fromkeys(node for loc in locations for node in loc.nodes)))
