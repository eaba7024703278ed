"""String constants."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np


def constant(*, a: SimpleNamespace) -> tuple[np.ndarray]:
    return (a.value,)


ROUTINES: dict[str, Callable[..., Any]] = {"constant": constant}
