"""The `interp` target: an engine for sessions that interprets the canonical module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from occ.compiler.interp.graph import Interpreter
from occ.compiler.ir.module import Module


class InterpEngine:
    """Executes a module with numpy."""

    resident = False

    def __init__(self, m: Module) -> None:
        self.interpreter = Interpreter(m)

    def run(
        self, inputs: Sequence[np.ndarray], env: Mapping[str, int], outputs: Sequence[np.ndarray | None]
    ) -> list[np.ndarray]:
        """One run; see `occ.runtime.native.NativeEngine.run`."""
        made = self.interpreter.run(inputs, env)
        results: list[np.ndarray] = []
        for given, result in zip(outputs, made, strict=True):
            if given is not None:
                given[...] = result
            results.append(np.array(result) if given is None else given)
        return results
