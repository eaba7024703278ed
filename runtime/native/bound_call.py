"""A call of a native entry on arrays that stay the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from occ.runtime.native.entry_block import Block


class BoundCall:
    """A call of an entry with its own memory, and fixed arrays.

    For one thread at a time.

    Args:
        execute: runs a prepared call.
        block: the call.
        inputs: arrays that it reads.
        outputs, made: the arrays that a run returns, and those that kernels write, copied where they differ.

    Attributes:
        outputs: the arrays that a run writes, the caller's if given.
        extents: of all inputs, one after the other. A caller may change them: then its arrays have room for the inputs
            and outputs of a run, and start where they do.
    """

    def __init__(
        self,
        execute: Callable[[Block], None],
        block: Block,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        made: Sequence[np.ndarray],
    ) -> None:
        self.outputs = outputs
        self.extents = np.array([n for x in inputs for n in x.shape], np.int64)
        block.call.extents = self.extents.ctypes.data
        self._execute, self._block, self._held = execute, block, inputs
        self._copied = [
            (y, m) for y, m in zip(outputs, made, strict=True) if y is not m
        ]  # outputs that are not aligned

    @property
    def writes_in_place(self) -> bool:
        """Whether kernels write to all arrays of the caller, without a copy."""
        return not self._copied

    def __call__(self) -> None:
        """Run once.

        Raises:
            RunError: a kernel fails, or a node cannot process its data.
        """
        self._execute(self._block)
        self._block.values.clear()
        for y, m in self._copied:
            y[...] = m
