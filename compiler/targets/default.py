"""The default target of this machine."""

from __future__ import annotations

from importlib.util import find_spec

# Halide has no wheels for ARM servers, for musl, or for the newest Python: the default there needs no compiler either.
DEFAULT = "cpu" if find_spec("halide") is not None else "cpu-jit"
