"""A node that is being imported, which the steps of an upgrade change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from occ.compiler.ir.op import Value
from occ.runtime.dataclass import dataclass


@dataclass
class Node:
    """A node being imported; rules change it in place.

    Attributes:
        name: operator.
        operands: values, None where absent.
        attrs: attributes as plain values.
        n_results: number of results that the node names.
        constant: creates a constant value from an array.
        emit: adds another op before this one; returns its results.
    """

    name: str
    operands: list[Value | None]
    attrs: dict[str, Any]
    n_results: int
    constant: Callable[[np.ndarray], Value]
    emit: Callable[[str, Sequence[Value | None], dict[str, Any]], Value]

    def put(self, k: int, value: Value) -> None:
        """Set operand `k`, with absent operands before it if necessary."""
        self.operands += [None] * (k + 1 - len(self.operands))
        self.operands[k] = value

    def to_operand(self, attr: str, k: int, dtype: Any = np.int64) -> None:
        """Turn an attribute into operand `k`."""
        value = self.attrs.pop(attr, None)
        if value is not None:
            self.put(k, self.constant(np.asarray(value, dtype)))


UpgradeStep = Callable[[Node], None]
