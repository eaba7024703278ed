"""Checks values against their IR types: element type, rank, extents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from occ.compiler.ir.dim import Dim, Sym, evaluate, symbols
from occ.compiler.ir.dtype import STR
from occ.compiler.ir.types import MapType, OptionalType, SequenceType, TensorType, Type


def type_problem(x: Any, type_: Type | None, dims: Mapping[str, int]) -> str:
    """How a value differs from its type; empty if it does not.

    Args:
        x: an array with its axes in memory order; a list, a dict, or None for non-tensors.
        type_: its type; None if the IR has none.
        dims: known sizes; other extents are arbitrary.
    """
    match type_:
        case TensorType():
            return _tensor_problem(x, type_, dims)
        case OptionalType():
            return "" if x is None else type_problem(x, type_.elem, dims)
        case SequenceType():
            if not isinstance(x, (list, tuple)):
                return f"{type(x).__name__} instead of {type_}"
            return next((text for v in x if (text := type_problem(v, type_.elem, dims))), "")
        case MapType():
            return "" if isinstance(x, dict) else f"{type(x).__name__} instead of {type_}"
        case None:
            return ""


def _tensor_problem(x: Any, type_: TensorType, dims: Mapping[str, int]) -> str:
    if not isinstance(x, (np.ndarray, np.generic)):
        return f"{type(x).__name__} instead of {type_}"
    if x.dtype != type_.dtype.numpy:
        return f"elements of {x.dtype} instead of {type_}"
    if type_.dtype == STR and (wrong := [v for v in x.reshape(-1) if not isinstance(v, (str, bytes))]):
        return f"an element of {type(wrong[0]).__name__} instead of {type_}"
    if type_.shape is None:
        return ""
    if x.ndim != len(type_.physical) or _expected(type_.physical, x.shape, dims) != [*x.shape]:
        return f"extents {[*x.shape]} instead of {type_}"
    return ""


def _expected(stated: Sequence[Dim], shape: Sequence[int], dims: Mapping[str, int]) -> list[int]:
    """The stated extents, with those of `shape` for sizes that nothing shows yet: the first of equal ones decides."""
    known, made = dict(dims), list[int]()
    for d, n in zip(stated, shape, strict=True):
        if isinstance(d, Sym) and d.is_symbol:
            known.setdefault(str(d), n)
        made.append(evaluate(d, known) if symbols(d).keys() <= known.keys() else n)
    return made


def is_of_a_run(type_: Type | None) -> bool:
    """Whether only a run shows the extents of a tensor."""
    return isinstance(type_, TensorType) and type_.shape is not None and any(symbols(d) for d in type_.physical)
