"""Conditions on input extents that a native entry checks, in the order of their numbers.

The texts are for users without Python; `runtime.signature` reports the same for sessions.
"""

from __future__ import annotations

from collections.abc import Iterator

from occ.runtime.dataclass import dataclass
from occ.runtime.dims import MOST_COUNTED, DimExpr, in_order, symbols, text
from occ.runtime.manifest import DimInfo, Manifest


@dataclass(frozen=True)
class Condition:
    """A condition that must hold.

    Attributes:
        kind: `==`, `>=`, `<=`, or `%` if the left side must be a multiple of the right one.
        left, right: sizes; `left` is None for the extent itself.
        input, axis: that extent; -1 if it concerns several.
        text: what the model accepts; follows "axis 1 of the input `x` is 7, " if there is an extent.
    """

    kind: str
    left: DimExpr | None
    right: DimExpr
    input: int
    axis: int
    text: str


def bound_symbols(m: Manifest) -> dict[str, tuple[int, int]]:
    """The symbols that are extents of inputs, with the first input and axis that shows each."""
    found: dict[str, tuple[int, int]] = {}
    for k, info in enumerate(m.inputs):
        for axis, e in enumerate(info.shape if info.kind == "tensor" else ()):
            if isinstance(e, str):
                found.setdefault(e, (k, axis))
    return found


def conditions(m: Manifest) -> Iterator[Condition]:
    """The conditions of a model; symbols stand for the first extents that show them."""
    bound = bound_symbols(m)
    labels = {d.name: d.label for d in m.dims}
    for k, info in enumerate(m.inputs):
        for axis, e in enumerate(info.shape if info.kind == "tensor" else ()):
            if bound.get(e if isinstance(e, str) else "") != (k, axis):
                yield Condition("==", None, e, k, axis, f"the model takes {text(e, labels)}")
    for d in (d for d in m.dims if d.name in bound):
        yield from _of_dim(d, *bound[d.name])
    for c in m.constraints:
        if symbols(c.lhs) | symbols(c.rhs) <= set(bound):
            if (ordered := in_order(c.lhs, c.rhs)) is not None:
                least, size = (text(e, labels) for e in ordered)
                what = f"{size} to be at least {least}, but for these inputs it is not"
                if ordered[1] == MOST_COUNTED:
                    what = f"{least} to be at most {size}, its kernel's limit, but for these inputs it is more"
            else:
                sides = f"{text(c.lhs, labels)} and {text(c.rhs, labels)}"
                what = f"two sizes to be equal, but for these inputs they are not: {sides}"
            yield Condition("==", c.lhs, c.rhs, -1, -1, f"node `{c.node}` needs {what}")


def _of_dim(d: DimInfo, k: int, axis: int) -> Iterator[Condition]:
    text = f"the model takes {d.text}"
    yield Condition(">=", d.name, d.lo, k, axis, text)
    if d.hi is not None:
        yield Condition("<=", d.name, d.hi, k, axis, text)
    if d.divisible_by > 1:
        yield Condition("%", d.name, d.divisible_by, k, axis, text)
