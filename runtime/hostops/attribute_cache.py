"""Values computed from a node's attributes in its first run, and cached."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from types import SimpleNamespace
from typing import Any


def once(a: SimpleNamespace, what: Hashable, make: Callable[[], Any]) -> Any:
    """The result of `make`, cached with the attributes `a`, since runs on a few rows take less time than it."""
    kept: dict[Hashable, Any] = a.__dict__.setdefault("kept", {})
    found = kept.get(what)
    if found is None:
        found = kept[what] = make()
    return found
