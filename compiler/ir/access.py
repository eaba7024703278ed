"""Access relations of operators: which elements of each operand an element of the result reads.

The body is built for operands with the same types and ranks but symbolic extents, so the result holds for all extents,
and depends on no values.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from occ.compiler.ir.attribute_keys import frozen
from occ.compiler.ir.build_te import attributes, typed_operands
from occ.compiler.ir.dim import symbol
from occ.compiler.ir.op import Op
from occ.compiler.ir.operator.spec import Access
from occ.compiler.ir.te.expr import Index, Load, Reduce
from occ.compiler.ir.te.function import Builder, Tensor, TeStage, position
from occ.compiler.ir.te.index import simplify_stage
from occ.compiler.ir.te.walks import walk
from occ.compiler.ir.types import TensorType

ANY, CHANNELS, FIRST, LAST, PLANES, ROWS = "any", "channels", "first", "last", "planes", "rows"


def access(op: Op) -> Access:
    """The memory accesses of an operator's body; every operand has a type."""
    spec, operands = op.spec, _ranks(op)
    if spec.body is None or op.regions or len(op.results) != 1 or spec.tags & {"contraction", "declared"}:
        return Access()
    if not op.inputs or operands is None:
        return Access()
    if any(spec.operand_name(k) in spec.static for k, v in enumerate(op.operands) if v is not None):
        return Access()
    key = (operands, tuple(sorted((k, frozen(v)) for k, v in op.attrs.items())))
    if key not in spec.accesses:
        spec.accesses[key] = _read_off(op)
    return spec.accesses[key]


def _ranks(op: Op) -> Hashable:
    """Element types and ranks of the operands; None if one is not a tensor of known rank."""
    types = [None if v is None else v.type for v in op.operands]
    if any(t is not None and (not isinstance(t, TensorType) or t.shape is None) for t in types):
        return None
    return tuple((t.dtype, t.rank) if isinstance(t, TensorType) else None for t in types)


def _read_off(op: Op) -> Access:
    operands = [None if x is None else _generic(x) for x in typed_operands(op)]
    shape = max((x.shape for x in operands if x is not None), key=len)
    t = Builder()
    assert op.spec.body is not None
    try:
        result = op.spec.body(t, *operands, a=attributes(op))
    except Exception:
        return Access()  # the body needs more than types: constant extents, or extents that match
    stages = [simplify_stage(s) for s in t.stages]
    if not isinstance(result, Tensor) or not stages or result.name != stages[-1].name:
        return Access()
    elementwise = result.shape == shape and all(isinstance(s, TeStage) and _reads_here(s) for s in stages)
    (x, *more) = [x for x in operands if x is not None]
    return Access(elementwise, None if more or len(stages) != 1 else _permutation(stages[0], x))


def _generic(x: Tensor) -> Tensor:
    """The tensor with symbolic extents, shared by axes that broadcasting pairs."""
    dims = tuple(symbol(f"_from_end{x.rank - k}") for k in range(x.rank))
    return Tensor(x.name, TensorType(x.dtype, dims))


def _reads_here(stage: TeStage) -> bool:
    here = position(stage.axes)
    nodes = list(walk(stage.expr))
    if any(isinstance(n, Reduce) for n in nodes):
        return False
    return all(n.index == here[len(here) - len(n.index) :] for n in nodes if isinstance(n, Load))


def _permutation(stage: Any, x: Tensor) -> tuple[int, ...] | None:
    if not isinstance(stage, TeStage) or not isinstance(stage.expr, Load) or len(stage.axes) != x.rank:
        return None
    names = [a.name for a in stage.axes]
    read = [i.name for i in stage.expr.index if isinstance(i, Index)]
    if sorted(read) != sorted(names):
        return None
    axes = tuple(read.index(name) for name in names)
    return axes if stage.shape == tuple(x.shape[k] for k in axes) else None


def reads(op: Op) -> str:
    """The axis order in which an operator reads fastest, one of the values of `OpSpec.reads`."""
    return _stated(op, op.spec.reads) or ANY


def writes(op: Op) -> str:
    """The axis order in which an operator writes, one of the values of `OpSpec.writes`."""
    follows = access(op).elementwise and "view" not in op.spec.tags
    return _stated(op, op.spec.writes) or (ANY if follows else ROWS)


def _stated(op: Op, given: str | Callable[..., str]) -> str:
    return given(*typed_operands(op), a=attributes(op)) if callable(given) else given
