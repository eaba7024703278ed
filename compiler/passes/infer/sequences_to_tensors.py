"""Rewrites sequences of equally shaped tensors as tensors.

Exporters write `for x in xs: out.append(f(x))` and `stack(out)` with sequences, which only Python supports. If all
elements have one shape, taking one out is a Gather, and appending is what a Loop does with its scanned results.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from occ.compiler.ir.containers import is_empty
from occ.compiler.ir.func import Func
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value
from occ.compiler.ir.ops.own.stacked import JOINED, LAID
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.shape import depends_on_data, normalize_axis
from occ.compiler.ir.types import SequenceType, TensorType, Type
from occ.compiler.passes.infer.known_elements import Known

Use = tuple[Op, int]


def sequences_to_tensors(m: Module, known: Known) -> bool:
    """Take the next steps where a sequence can become a tensor; returns whether there were any.

    Every value has a type.

    A growing tensor is such a sequence too: `%y = Loop(%n, %c, %x)`, where `@f` only joins rows to the end of `%x`
     --> `%t = Loop(%n, %c)  %y = Concat(%x, end_to_end(%t))`.

    `%s = Loop(%n, %c, SequenceEmpty()) {body=@f}  %y = ConcatFromSequence(%s)`, where `@f` appends a tensor of the same
    shape in each iteration --> `%t = Loop(%n, %c) {body=@f}  %y = concat_stacked(%t)`, where `@f` returns it as a
    scanned result
    """
    made = False
    for func in list(m.funcs.values()):
        for op in func.body.body:
            if op.name == "SplitToSequence":
                made |= _even(m, op) or _take_from_whole(m, op, known)
            elif op.name == "Loop":
                made |= any(_scan_appended(m, op, k) or _scan_joined(m, op, k) for k in reversed(range(_states(op))))
    return made


def _states(op: Op) -> int:
    return len(op.operands) - 2 - op.attrs["captures"]


# the tensor that is split


def _even(m: Module, op: Op) -> bool:
    """The common size of all pieces, if the sizes are a constant of unknown length."""
    sizes = op.operands[1] if len(op.operands) > 1 else None
    maker = None if sizes is None else sizes.defining_op
    if maker is None or maker.name != "ConstantOfShape" or sizes is None or sizes.tensor.rank != 1:
        return False
    value = maker.a.value
    number = 0 if value is None else int(value.reshape(-1)[0])
    if number < 1:
        return False
    Rewriter(m).replace_operand(op, 1, m.add_weight("piece", np.array(number, np.int64)))
    return True


def _take_from_whole(m: Module, op: Op, known: Known) -> bool:
    """Redirect reads of extent-1 pieces of a sequence to the tensor that was split."""
    whole, sizes = op.inputs[0], op.operands[1] if len(op.operands) > 1 else None
    if not isinstance(whole.type, TensorType) or whole.type.shape is None:
        return False
    if sizes is not None and known.elements(sizes) != (1,):
        return False
    axis = normalize_axis(op.a.axis, whole.tensor.rank, "SplitToSequence")
    kept = sizes is not None or bool(op.a.keepdims)
    if not all(_is_taken(m, use, "SequenceAt", "SequenceLength") for use in op.result.uses):
        return False
    _replace_sequence(m, op.result, whole, axis, keep=kept)
    Rewriter(m).erase(op)
    return True


def _is_taken(m: Module, use: Use, *names: str) -> bool:
    """Whether all readers of a sequence, functions included, can read a tensor instead."""
    op, k = use
    inner = list(_captured(m, op, k))
    return op.name in names or (bool(inner) and all(_is_taken(m, u, *names) for v in inner for u in v.uses))


def _captured(m: Module, op: Op, k: int) -> Iterator[Value]:
    """The name of a captured operand in the functions that read it."""
    if "control" in op.spec.tags and k >= len(op.operands) - op.attrs["captures"]:
        for func in m.called(op):
            yield func.args[k - len(op.operands)]


def _replace_sequence(m: Module, old: Value, new: Value, axis: int, *, keep: bool) -> None:
    """Redirect all readers of a sequence to a tensor whose slices along an axis are the elements."""
    rw = Rewriter(m)
    for op, k in list(old.uses):
        b = rw.builder(op)
        match op.name:
            case "SequenceAt":
                at = b.Reshape(op.inputs[1], m.add_weight("at", np.array([1] * keep, np.int64)))
                rw.replace(op, [b.Gather(new, at, axis=axis)])
            case "SequenceLength":
                rw.replace(op, [b.Squeeze(b.Shape(new, start=axis, end=axis + 1))])
            case "ConcatFromSequence":
                rw.replace(op, [b.op(JOINED, new, axis=op.a.axis, new_axis=int(bool(op.a.new_axis)))])
            case _:
                inner = list(_captured(m, op, k))
                rw.replace_operand(op, k, new)
                for arg in inner:
                    arg.type = new.type
                    _replace_sequence(m, arg, arg, axis, keep=keep)


# the appended value


def _scan_appended(m: Module, op: Op, k: int) -> bool:
    """Return the elements that a Loop's body appends to its k-th state as a scanned result."""
    (func,) = m.called(op)
    value = _appended(func, k)
    start, result = op.operands[2 + k], op.results[k]
    if value is None or start is None or not is_empty(start):
        return False
    if not _has_one_shape(result.type) or not all(
        _is_taken(m, u, "SequenceAt", "SequenceLength", "ConcatFromSequence") for u in result.uses
    ):
        return False
    stacked = _without_state(m, op, func, k, value)
    _replace_sequence(m, result, stacked, 0, keep=False)
    Rewriter(m).erase(op)
    return True


def _scan_joined(m: Module, op: Op, k: int) -> bool:
    """The same for a state that the body concatenates to; otherwise each iteration copies the state."""
    (func,) = m.called(op)
    join, arg, start = func.results[1 + k].defining_op, func.args[2 + k], op.operands[2 + k]
    if join is None or join.name != "Concat" or start is None or len(join.operands) != 2 or join.operands[0] is not arg:
        return False
    value = join.inputs[1]
    if len(arg.uses) != 1 or len(join.result.uses) != 1 or not _is_of_one_shape(value.type):
        return False
    axis = normalize_axis(join.a.axis, value.tensor.rank, "Concat")
    stacked = _without_state(m, op, func, k, value)
    rw = Rewriter(m)
    b = rw.builder(op)
    rw.replace_value(op.results[k], b.Concat(start, b.op(LAID, stacked, axis=axis), axis=axis))
    rw.erase(op)
    return True


def _appended(func: Func, k: int) -> Value | None:
    """The value that a body appends to a state, if it does nothing else with the state."""
    insert = func.results[1 + k].defining_op
    arg = func.args[2 + k]
    if insert is None or insert.name != "SequenceInsert" or len(insert.inputs) != 2:
        return None
    alone = len(arg.uses) == len(insert.result.uses) == 1 and insert.inputs[0] is arg
    return insert.inputs[1] if alone else None


def _has_one_shape(t: Type | None) -> bool:
    """Whether the elements of a sequence are tensors of one shape, known before the run."""
    return isinstance(t, SequenceType) and _is_of_one_shape(t.elem)


def _is_of_one_shape(t: Type | None) -> bool:
    """Whether a tensor has the same shape in every iteration, known before the run."""
    return isinstance(t, TensorType) and t.shape is not None and not any(map(depends_on_data, t.shape))


def _without_state(m: Module, op: Op, func: Func, k: int, value: Value) -> Value:
    """Replace a Loop that appends `value` to its k-th state by one that scans it; returns the scanned result."""
    rw, end = Rewriter(m), func.body.terminator
    insert = func.results[1 + k].defining_op
    assert insert is not None
    given = list(end.operands)
    rw.replace_operands(end, [*given[: 1 + k], *given[2 + k :], value])
    rw.erase(insert)
    del func.body.args[2 + k]
    operands = [*op.operands[: 2 + k], *op.operands[3 + k :]]
    others = [*op.results[:k], *op.results[k + 1 :]]
    stacked = TensorType(value.tensor.dtype, (m.data_symbol(), *value.tensor.dims))
    made = Op(
        op.operator, operands, dict(op.attrs), [*(r.type for r in others), stacked],
        result_names=[*(r.name for r in others), op.results[k].name], loc=op.loc,
    )  # fmt: skip
    assert op.parent is not None
    op.parent.insert(made, op)
    for old, new in zip(others, made.results, strict=False):
        rw.replace_value(old, new)
    return made.results[-1]
