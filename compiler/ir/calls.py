"""Checks calls of functions by control flow: operands, results and types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from occ.compiler.ir.func import Func
from occ.compiler.ir.op import Value
from occ.compiler.ir.shape import surely_different
from occ.compiler.ir.types import TensorType, Type

# By routine: operands before those that it passes on, operands that its functions have before these, and results that
# they have before its own.
_OWN = {"if": (1, 0, 0), "loop": (2, 2, 1), "scan": (0, 0, 0), "map": (0, 0, 0)}
ROUTINES = {"If": "if", "Loop": "loop", "Scan": "scan", "SequenceMap": "map"}


def call_problems(
    routine: str, operands: Sequence[Value | None], results: Sequence[Value | None], attrs: Mapping[str, Any], f: Func
) -> Iterator[str]:
    """How a function differs from what a control-flow routine passes to it and expects from it.

    Args:
        routine: one of the values of `ROUTINES`.
        operands: operands that it reads.
        results: results that it returns, or where it writes them.
        attrs: include `captures`, the number of trailing operands passed to functions unchanged, and `num_scan_inputs`.
        f: a function that it runs.
    """
    own, passed, returned = _OWN[routine]
    given, n_sliced = operands[own:], attrs.get("num_scan_inputs", 0) if routine == "scan" else 0
    states = len(given) - n_sliced - attrs.get("captures", 0)
    if len(f.args) != len(given) + passed:
        yield f"passes {len(given) + passed} operands to @{f.name}, which takes {len(f.args)}"
    elif len(f.results) != len(results) + returned:
        yield f"uses {len(results) + returned} results of @{f.name}, which returns {len(f.results)}"
    elif states < 0 or (routine in ("loop", "scan") and states > len(results)):
        yield f"has {len(operands)} operands and {len(results)} results, which contradict its attributes"
    elif routine != "map":  # which runs on elements of sequences
        sliced = range(states, states + n_sliced)
        for k, (outer, arg) in enumerate(zip(given, f.args[passed:], strict=True)):
            if not _fits(outer, arg, sliced=k in sliced):
                yield f"passes {_shown(outer)} to %{arg.name} : {arg.type} of @{f.name}"
        stacked = range(states, len(results)) if routine in ("loop", "scan") else range(0)
        for k, (outer, inner) in enumerate(zip(results, f.results[returned:], strict=True)):
            if not _fits(outer, inner, sliced=k in stacked):
                yield f"takes {inner.type} of @{f.name} for {_shown(outer)}"


def agree(stated: Type | None, inferred: Type | None) -> bool:
    """Whether two types can be the same; symbolic extents are compatible unless proven different."""
    if not isinstance(stated, TensorType) or not isinstance(inferred, TensorType):
        return type(stated) is type(inferred)
    if stated.shape is None or inferred.shape is None:
        return stated.dtype == inferred.dtype
    if stated.dtype != inferred.dtype or len(stated.dims) != len(inferred.dims):
        return False
    return not any(surely_different(a, b) for a, b in zip(stated.dims, inferred.dims, strict=True))


def _fits(outer: Value | None, inner: Value | None, *, sliced: bool) -> bool:
    """Whether an outer value can be the inner one, directly or by slicing."""
    a, b = (v.type if v is not None else None for v in (outer, inner))
    if a is None or b is None:
        return True
    if not sliced:
        return agree(a, b)
    if not isinstance(a, TensorType) or not isinstance(b, TensorType):
        return False
    ranked = a.shape is not None and b.shape is not None
    return a.dtype == b.dtype and (not ranked or len(a.dims) == len(b.dims) + 1)


def _shown(value: Value | None) -> str:
    return f"%{value.name} : {value.type}" if value is not None else "nothing"
