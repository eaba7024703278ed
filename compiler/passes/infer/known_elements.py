"""The interface of an inference to the passes of this folder: which elements of a value it knows."""

from __future__ import annotations

from typing import Protocol

from occ.compiler.ir.build_te import Elements
from occ.compiler.ir.op import Value


class Known(Protocol):
    """Elements that are known at compile time."""

    def elements(self, value: Value) -> Elements | None:
        """The elements of a value in row-major order, None for each unknown one; None if nothing is known."""
        ...
