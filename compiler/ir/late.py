"""Ops that cannot be compiled before their operands are there: what is known of their results all the same.

An op is late when the value of an operand decides its shape and is computed at run time (the `shape` of a Reshape that is
an input of the model), when the rank of an operand is unknown, or when its elements are none that native code has
(strings, complex numbers). The runtime compiles it for what it finds, and keeps what it compiled.
"""

from __future__ import annotations

from collections.abc import Callable

from occ.compiler.diagnostics import Invalid, Unresolved
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.dtype import DType
from occ.compiler.ir.meaning import build_te, infer_results, static_elements
from occ.compiler.ir.op import Op
from occ.compiler.ir.ops.spec import DTYPE_ATTRS, onnx_type_name
from occ.compiler.ir.shape import data_dim, depends_on_data
from occ.compiler.ir.types import TensorType
from occ.compiler.ir.value import Value

_FOREIGN = frozenset("sc")  # kinds of elements that native code does not have: strings and complex numbers


def has_unknown_rank(op: Op) -> bool:
    """Whether an operand is a tensor of unknown rank."""
    return any(isinstance(v.type, TensorType) and v.type.shape is None for v in op.inputs)


def foreign_types(op: Op) -> list[str]:
    """Element types of an op that native code does not have."""
    types = (v.type for v in (*op.inputs, *op.results))
    return [t.dtype.name for t in types if isinstance(t, TensorType) and t.dtype.kind in _FOREIGN]


def is_late(op: Op) -> bool:
    """Whether an op waits for its operands; every value has a type."""
    spec = op.spec
    if spec.host or spec.region or not op.results:
        return False
    types = [v.type for v in (*op.inputs, *op.results)]
    if foreign_types(op) or any(not isinstance(t, TensorType) or t.shape is None for t in types):
        return True
    waiting = any(
        spec.operand_name(k) in spec.static and static_elements(v) is None
        for k, v in enumerate(op.operands)
        if v is not None
    )
    loose = any(isinstance(t, TensorType) and any(map(depends_on_data, t.dims)) for t in types)
    if spec.body is not None and not waiting and not loose:
        return False
    try:
        infer_results(op)
        if spec.body is not None:
            build_te("probe", [op], list(dict.fromkeys(op.inputs)), op.results)
    except Unresolved:
        return True
    except Invalid:
        return False
    return False


def late_types(op: Op) -> tuple[TensorType, ...]:
    """Result types of a late op: element types from the schema, ranks from `RANKS`, extents decided by the data, but for
    those of elementwise ops that broadcasting gives whatever the others are.
    """
    ranks: list[int | None] = [None] * len(op.results)
    if op.name in RANKS and not has_unknown_rank(op):
        ranks = [RANKS[op.name](op)] * len(op.results)
    elif "elementwise" in op.spec.tags and not has_unknown_rank(op):
        return (TensorType(_result_dtype(op, 0), _broadcast(op)),)
    made: list[TensorType] = []
    for k, rank in enumerate(ranks):
        shape = None if rank is None else tuple(data_dim(16 * k + axis) for axis in range(rank))
        made.append(TensorType(_result_dtype(op, k), shape))
    return tuple(made)


def _broadcast(op: Op) -> tuple[Dim, ...]:
    """The shape of an elementwise op: an extent that all operands have is kept, and so is one above 1."""
    rank = max(v.tensor.rank for v in op.inputs)
    made: list[Dim] = []
    for axis in range(rank):
        back = axis - rank
        found = {v.tensor.dims[back] for v in op.inputs if v.tensor.rank >= -back} - {1}
        sure = [d for d in found if isinstance(d, int)] or list(found) * (len(found) == 1) or [1] * (not found)
        made.append(sure[0] if sure else data_dim(axis))
    return tuple(made)


def _result_dtype(op: Op, k: int) -> DType:
    """Element type of a result, by the type variables of the ONNX schema."""
    spec, a = op.spec, op.a
    for name in DTYPE_ATTRS - {"stash_type", "softmax_precision"}:
        stated = getattr(a, name, None)
        if isinstance(stated, DType):
            return stated
    formal = spec.results[min(k, len(spec.results) - 1)] if spec.results else None
    for j, v in enumerate(op.operands):
        if v is None or not isinstance(v.type, TensorType) or not spec.operands or formal is None:
            continue
        if formal.type_var and spec.operands[min(j, len(spec.operands) - 1)].type_var == formal.type_var:
            return v.type.dtype
    if formal is not None and len(formal.types) == 1:
        (only,) = formal.types
        return next(d for d in _every_dtype() if onnx_type_name(d) == only)
    value = getattr(a, "value", None)
    if value is not None:
        from occ.compiler.ir.dtype import from_numpy

        return from_numpy(value.dtype)
    first = next(v.type for v in op.inputs if isinstance(v.type, TensorType))
    return first.dtype


def _every_dtype() -> list[DType]:
    from occ.compiler.ir.dtype import BY_NAME

    return list(BY_NAME.values())


def _rank(v: Value | None) -> int | None:
    return v.tensor.rank if v is not None and isinstance(v.type, TensorType) and v.type.shape is not None else None


def _length(v: Value | None) -> int | None:
    """Elements of a vector, where that is a constant."""
    if v is None or _rank(v) not in (0, 1):
        return None
    return v.tensor.size if isinstance(v.tensor.size, int) else None


def _same(op: Op) -> int | None:
    return _rank(op.operands[0])


def _as_long_as(k: int) -> Callable[[Op], int | None]:
    return lambda op: _length(op.operands[k]) if len(op.operands) > k else None


def _plus(rank: int | None, more: int | None) -> int | None:
    return None if rank is None or more is None else rank + more


def _expand(op: Op) -> int | None:
    given, asked = _rank(op.operands[0]), _length(op.operands[1])
    return None if given is None or asked is None else max(given, asked)


def _reduced(op: Op) -> int | None:
    if op.a.keepdims:
        return _same(op)
    axes = _length(op.operands[1]) if len(op.operands) > 1 else None
    return _plus(_same(op), None if axes is None else -axes)


def _squeezed(op: Op) -> int | None:
    axes = _length(op.operands[1]) if len(op.operands) > 1 else None
    return _plus(_same(op), None if axes is None else -axes)


def _fixed(rank: int) -> Callable[[Op], int | None]:
    return lambda op: rank


RANKS: dict[str, Callable[[Op], int | None]] = {
    **dict.fromkeys(
        (
            "Slice", "Pad", "Tile", "Resize", "Upsample", "Trilu", "CumSum", "CumProd", "Dropout", "CenterCropPad", "Split",
            "TopK", "DFT", "MaxUnpool", "GroupNormalization", "Compress",
        ),
        _same,
    ),
    **dict.fromkeys(
        (
            "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
            "ReduceLogSumExp", "ReduceSumSquare",
        ),
        _reduced,
    ),
    "Reshape": _as_long_as(1),
    "Expand": _expand,
    "ConstantOfShape": _as_long_as(0),
    "Squeeze": _squeezed,
    "Unsqueeze": lambda op: _plus(_same(op), _length(op.operands[1])),
    "OneHot": lambda op: _plus(_same(op), 1),
    "Range": _fixed(1),
    "HannWindow": _fixed(1),
    "HammingWindow": _fixed(1),
    "BlackmanWindow": _fixed(1),
    "MelWeightMatrix": _fixed(2),
    "STFT": _fixed(4),
    "Col2Im": lambda op: _plus(2, _length(op.operands[1])),
    "AffineGrid": _as_long_as(1),
}  # fmt: skip
