"""Imports torch when a function of this package runs."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def torch_module(name: str = "torch") -> Any:
    """torch, or a submodule.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    try:
        import_module("torch")
    except ModuleNotFoundError as e:
        if e.name != "torch":
            raise
        why = "`occ.torch` needs PyTorch: `pip install torch onnxscript`"
        raise ModuleNotFoundError(why, name=e.name) from None
    return import_module(name)
