"""What GE's recurrent operators compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from occ.compiler.ge_simulator.reader import Node

Arrays = list[Any]
Kernel = Callable[[Node, Arrays], Any]

KERNELS: dict[str, Kernel] = {}
