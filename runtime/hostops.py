"""Routines of the plan that are not kernels, on numpy arrays. The compiler's oracle calls the same ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

# routine(inputs, attrs, env) -> outputs; env has the values of the symbolic dims
Routine = Callable[[Sequence[np.ndarray], Mapping[str, Any], Mapping[str, int]], list[np.ndarray]]


ROUTINES: dict[str, Routine] = {}
