"""Checks the attributes and operands of host routines in a lowered plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from occ.compiler.diagnostics import Invalid, Unresolved
from occ.compiler.ir.builder import OPERATOR_FAILURES, infer_results
from occ.compiler.ir.calls import ROUTINES, agree, call_problems
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import FuncRef, Op
from occ.compiler.ir.operator.registry import builtin
from occ.compiler.ir.types import TensorType

_OWN = {"if": 1, "loop": 2}  # leading operands of a control-flow routine
_COUNTED = ("captures", "num_scan_inputs")  # attributes that count operands


def host_problems(op: Op, m: Module) -> Iterator[str]:
    """Errors in the operands of a runtime step, given what its routine expects."""
    a = op.attrs
    routine, results = a["routine"], a["writes"]
    reads = len(op.operands) - results
    if routine == "copy":
        types = [v.type if v is not None and isinstance(v.type, TensorType) else None for v in op.operands]
        if (reads, results) != (1, 1) or None in types:
            yield f"copies {reads} to {results} tensors; it takes one and one"
        elif not agree(*types):
            yield f"copies {types[0]} to {types[1]}"
    else:
        if a.get("n_results") != results:
            yield f"has {a.get('n_results')} results, and writes {results}"
        rest = reads - _OWN.get(routine, 0) - sum(a.get(key, 0) for key in _COUNTED if is_place(a.get(key)))
        if rest < 0 or any(key in a and not is_place(a[key]) for key in _COUNTED):
            yield f"reads {reads} operands, fewer than its attributes count"
            return
        if routine == "scan":
            yield from _scan_problems(a, rest)
        runs = [m.funcs[f] for f in a.values() if isinstance(f, FuncRef) and f in m.funcs]
        for f in runs if routine in ROUTINES.values() else ():
            yield from call_problems(routine, op.operands[:reads], op.operands[reads:], a, f)
        if (spec := builtin().get(routine)) is not None and spec.host and spec.infer is not None:
            yield from _routine_problems(op, routine, reads)


def _routine_problems(op: Op, operator: str, reads: int) -> Iterator[str]:
    """Why a routine's operator has no result: native code uses shapes according to its attributes."""
    meant = Op(operator, op.operands[:reads], op.attrs, [v and v.type for v in op.operands[reads:]])
    try:
        infer_results(meant)
    except Unresolved:
        return
    except (Invalid, *OPERATOR_FAILURES) as e:
        yield f"does not fit `{operator}`: {e}"
    finally:
        meant.set_operands(())


def _scan_problems(a: Mapping[str, Any], states: int) -> Iterator[str]:
    """Lists of a scan with a length that does not match what they describe."""
    counts = {"input": a.get("num_scan_inputs", 0), "output": a["writes"] - states}
    for what, n in counts.items():
        for key in (f"scan_{what}_axes", f"scan_{what}_directions"):
            given = a.get(key)
            if given and (not isinstance(given, tuple) or len(given) != n):
                yield f"has {key}={given} for {n} tensors"


def is_place(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
