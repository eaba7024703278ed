"""Control flow: If, Loop, Scan, SequenceMap.

Sub-graphs are functions of the module. Captured values follow the formal operands.

`If(cond, *captures) {then_branch=@f, else_branch=@g, captures=k}`; `passes/infer/infer_control.py` infers the types,
and `runtime/native/control.py` defines the execution.
"""

from __future__ import annotations

from occ.compiler.ir.operator.spec import OpSpec, op

_DECLARED = ("declared", "control")


@op("If", region=True, tags=_DECLARED)
class If:
    """One of two branches."""


@op("Loop", region=True, tags=_DECLARED)
class Loop:
    """A body, repeated while its condition holds and the trip count is not reached."""


@op("Scan", region=True, tags=_DECLARED)
class Scan:
    """A body, run for each slice of the scanned operands."""


@op("SequenceMap", region=True, tags=_DECLARED)
class SequenceMap:
    """A body, run for each element of a sequence."""


ALL: tuple[OpSpec, ...] = (If, Loop, Scan, SequenceMap)
