"""Rows of a comparison: one value as both sides compute it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class Row:
    """One value on both sides.

    Attributes:
        output: name of the value.
        shape: its shape on this side.
        ok: whether the sides agree.
        node: the node that computes it, if nodes are compared.
        difference: the largest one, relative to the largest value; None if type or shape differ.
        small: whether the sides agree only thanks to the absolute tolerance.
        worst: the positions that differ most, with `at`, `ours`, `theirs`.
        reason: why the values cannot be compared.
        optimiser: the difference with onnxruntime's optimiser, if only that causes it.
    """

    output: str
    shape: tuple[int, ...]
    ok: bool
    node: str = ""
    difference: float | None = None
    small: bool = False
    worst: tuple[dict[str, Any], ...] = ()
    reason: str = ""
    optimiser: float | None = None

    def as_data(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)
