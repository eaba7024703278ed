"""User-supplied C functions: their signatures, and calls.

An argument is one of: `tensor TYPE K` (a pointer to the elements of tensor K: operands, then results; -1 for a null
pointer), `size TYPE K` (its number of elements), `rank TYPE K`, `dim TYPE K AXIS`, `shape i64 K` (a pointer to its
extents), `value TYPE NUMBER`.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from occ.runtime.errors import RunError
from occ.runtime.native.library import load_code

SCALARS: Mapping[str, Any] = {
    "f32": ctypes.c_float, "f64": ctypes.c_double, "bool": ctypes.c_bool,
    "i8": ctypes.c_int8, "i16": ctypes.c_int16, "i32": ctypes.c_int32, "i64": ctypes.c_int64,
    "u8": ctypes.c_uint8, "u16": ctypes.c_uint16, "u32": ctypes.c_uint32, "u64": ctypes.c_uint64,
}  # fmt: skip


class ForeignLibrary:
    """A user's library, loaded.

    Raises:
        RunError: OCC0502 it does not load.
    """

    def __init__(self, code: bytes, name: str) -> None:
        self.name = name
        self._dll, self._descriptor = load_code(code, name)  # never unloaded: it may have threads of its own

    def has(self, symbol: str) -> bool:
        """Whether the library exports a function of that name."""
        return hasattr(self._dll, symbol)

    def call(self, symbol: str, arguments: Sequence[str], tensors: Sequence[Any], *, gives_code: bool) -> int:
        """Call a function; returns its code, 0 for a void one.

        Args:
            symbol: its name.
            arguments: its arguments.
            tensors: contiguous arrays, operands and then results.
            gives_code: whether it returns an int, 0 for success.

        Raises:
            RunError: OCC0502 the library has no such function.
        """
        kinds = [_kind(a) for a in arguments]
        prototype = ctypes.CFUNCTYPE(ctypes.c_int if gives_code else None, *kinds)
        try:
            function = prototype((symbol, self._dll))
        except AttributeError:
            raise RunError("OCC0502", f"the library `{self.name}` has no function `{symbol}`") from None
        kept: list[Any] = []
        code = function(*(_argument(a, tensors, kept) for a in arguments))
        return int(code or 0)


def run_foreign(
    library: ForeignLibrary, symbol: str, arguments: Sequence[str], tensors: Sequence[Any], nodes: Sequence[str], *,
    gives_code: bool,
) -> None:  # fmt: skip
    """Call the function of a step.

    Raises:
        RunError: OCC0505 it returns an error; OCC0502 the library has no such function.
    """
    code = library.call(symbol, arguments, tensors, gives_code=gives_code)
    if code:
        where = ", ".join(nodes[:3]) or symbol
        raise RunError(
            "OCC0505", f"the kernel of node `{where}` failed: `{symbol}` of `{library.name}` returned {code}"
        )


@lru_cache(maxsize=4096)
def _words(argument: str) -> tuple[str, ...]:
    return tuple(argument.split())


def _kind(argument: str) -> Any:
    what, type_, *_ = _words(argument)
    return ctypes.c_void_p if what in ("tensor", "shape") else SCALARS[type_]


def _argument(argument: str, tensors: Sequence[Any], kept: list[Any]) -> Any:
    what, type_, *rest = _words(argument)
    if what == "value":
        return bool(int(rest[0])) if type_ == "bool" else float(rest[0]) if type_[0] == "f" else int(rest[0])
    k = int(rest[0])
    x = None if k < 0 else tensors[k]
    match what:
        case "tensor":
            return None if x is None else x.ctypes.data
        case "size":
            return 0 if x is None else math.prod(x.shape)
        case "rank":
            return 0 if x is None else x.ndim
        case "dim":
            return 0 if x is None else x.shape[int(rest[1])]
        case "shape":
            kept.append(np.array(() if x is None else x.shape, np.int64))
            return kept[-1].ctypes.data
        case _:
            raise RunError(
                "OCC0502", f"the manifest is damaged: `{argument}` is not an argument", "build the artifact again"
            )
