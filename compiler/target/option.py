"""Options of targets: `-C key=value`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Option:
    """A `-C` option: its default, what it may be, and what it does."""

    default: Any
    choices: tuple[Any, ...] = ()
    doc: str = ""
