"""The `interp` target: an engine for sessions that interprets the canonical module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from occ.compiler.interp.graph import Interpreter
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.runtime.errors import RunError

Specialise = Callable[[str, Sequence[Any]], list[Any]]


class InterpEngine:
    """Executes a module with numpy."""

    resident = False

    def __init__(self, m: Module, run_deferred: Callable[[Op, Sequence[Any]], list[Any]] | None = None) -> None:
        self.interpreter = Interpreter(m, run_deferred)

    def run(self, inputs: Sequence[Any], env: Mapping[str, int], outputs: Sequence[np.ndarray | None]) -> list[Any]:
        """One run; see `occ.runtime.native.engine.NativeEngine.run`."""
        try:
            made = self.interpreter.run(inputs, env)
        except MemoryError as e:
            text = f"the interpreter keeps every value in memory, which cannot be allocated: {e}"
            raise RunError(
                "OCC0505", text, "it depends on the shapes of the inputs and the sizes of the model"
            ) from None
        results: list[Any] = []
        for given, result in zip(outputs, made, strict=True):
            if given is not None:
                given[...] = result
                results.append(given)
            else:  # a result may be a view of an input
                results.append(np.array(result) if isinstance(result, (np.ndarray, np.generic)) else result)
        return results
