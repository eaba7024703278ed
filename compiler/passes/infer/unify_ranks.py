"""Unifies ranks that differ between loop iterations, such as `[]` at first and `[1]` later.

Exporters of `while` loops carry computed values through states with arbitrary initial values, and conditions through
one-element tensors, with or without an axis. If no reader can see the difference, the rank of all later iterations is
used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from occ.compiler.ir.func import Func
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.shape import depends_on_data
from occ.compiler.ir.types import TensorType, Type
from occ.compiler.passes.infer.known_elements import Known

# Broadcasting operators: an operand with one more axis of extent 1 yields the same numbers.
_BROADCASTS = frozenset(
    [
        "Cast",
        "Identity",
        "Not",
        "And",
        "Or",
        "Xor",
        "Neg",
        "Abs",
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Min",
        "Max",
        "Equal",
        "Less",
        "LessOrEqual",
        "Greater",
        "GreaterOrEqual",
        "Where",
    ]
)


def unify_ranks(m: Module, known: Known) -> bool:
    """Take the next steps where a rank only seems to vary; returns whether there were any.

    Every value has a type.

    `%y = Loop(%n, %c, @zero) {body=@f}`, where `@f` returns `f32[N,3]` and does not read `%zero` --> the loop begins
    with zeros of that shape
    """
    callers = {name: op for op in m.walk() for name in (f.name for f in m.called(op))} if len(m.funcs) > 1 else {}
    made = False
    for op in list(m.walk()):
        if op.name == "Loop":
            made |= _settle_loop(m, op, known, callers)
        elif op.name == "If":
            made |= _settle_branches(m, op, callers)
    return made


def _settle_loop(m: Module, op: Op, known: Known, callers: Mapping[str, Op]) -> bool:
    (func,) = m.called(op)
    rw, made = Rewriter(m), False
    end = func.body.terminator
    going = end.operands[0]
    if going is not None and _is_one(going.type) and going.tensor.rank == 1:
        rw.replace_operand(end, 0, rw.builder(end).Reshape(going, m.add_weight("scalar", np.empty(0, np.int64))))
        made = True
    for k in range(2, len(op.operands) - op.attrs["captures"]):
        start, arg = op.operands[k], func.args[k]
        if start is None or not _has_no_rank(arg.type) or _has_no_rank(start.type):
            continue
        after = end.operands[k - 1]
        if not arg.uses and after is not None and _is_told(after.type) and _runs(op, known):
            assert isinstance(after.type, TensorType)
            shape = rw.builder(op).op("dims", values=after.tensor.dims, shape=(after.tensor.rank,))
            fill = np.zeros(1, after.tensor.dtype.numpy)
            rw.replace_operand(op, k, rw.builder(op).ConstantOfShape(shape, value=fill))
            made = True
        elif _is_scalar(start.type) and all(_is_harmless(v, m, callers, set()) for v in (arg, op.results[k - 2])):
            rw.replace_operand(op, k, _with_axis(rw, op, start))
            made = True
    return made


def _settle_branches(m: Module, op: Op, callers: Mapping[str, Op]) -> bool:
    rw, made = Rewriter(m), False
    for k, result in enumerate(op.results):
        if not _has_no_rank(result.type) or not _is_harmless(result, m, callers, set()):
            continue
        for func in m.called(op):
            end = func.body.terminator
            value = end.operands[k]
            if value is not None and _is_scalar(value.type):
                rw.replace_operand(end, k, _with_axis(rw, end, value))
                made = True
    return made


def _with_axis(rw: Rewriter, before: Op, value: Value) -> Value:
    """A number as a vector of one element."""
    return rw.builder(before).Reshape(value, rw.module.add_weight("one", np.ones(1, np.int64)))


def _has_no_rank(t: Type | None) -> bool:
    return isinstance(t, TensorType) and t.shape is None


def _is_one(t: Type | None) -> bool:
    return isinstance(t, TensorType) and t.shape is not None and t.size == 1


def _is_scalar(t: Type | None) -> bool:
    return _is_one(t) and isinstance(t, TensorType) and t.shape == ()


def _is_told(t: Type | None) -> bool:
    """Whether a shape is known before the loop runs."""
    return (
        isinstance(t, TensorType)
        and t.shape is not None
        and t.dtype.kind in "fiub"
        and not any(map(depends_on_data, t.dims))
    )


def _runs(op: Op, known: Known) -> bool:
    """Whether a Loop is certain to have a first iteration."""
    limit, going = ((1,) if v is None else known.elements(v) for v in op.operands[:2])
    return bool(limit and going and isinstance(limit[0], int) and limit[0] >= 1 and going[0] in (1, True))


def _is_harmless(value: Value, m: Module, callers: Mapping[str, Op], seen: set[Value]) -> bool:
    """Whether no reader depends on the rank of a one-element value: it broadcasts, or is a condition."""
    if value in seen:
        return True
    seen.add(value)
    for user, k in value.uses:
        if user.name in _BROADCASTS:
            following: Iterator[Value] | None = iter(() if _absorbs(user, value) else user.results)
        elif user.is_terminator:
            following = _after_function(value, k, m, callers)
        elif user.name in ("If", "Loop"):
            following = _inside(user, k, m)
        else:
            following = None
        if following is None or not all(_is_harmless(v, m, callers, seen) for v in following):
            return False
    return True


def _absorbs(op: Op, value: Value) -> bool:
    """Whether another operand of a broadcasting op has an axis."""
    return any(v is not value and isinstance(v.type, TensorType) and v.type.shape for v in op.inputs)


def _inside(op: Op, k: int, m: Module) -> Iterator[Value]:
    """Names of an If's or Loop's operand in its functions, and of the state that follows it."""
    first = 1 if op.name == "If" else 2
    if k < first:
        return
    for func in m.called(op):
        yield func.args[k - 1 if op.name == "If" else k]
    if op.name == "Loop" and k < len(op.operands) - op.attrs["captures"]:
        yield op.results[k - 2]


def _after_function(value: Value, k: int, m: Module, callers: Mapping[str, Op]) -> Iterator[Value] | None:
    """The name of a function's result at its callers; None if its rank may be visible there."""
    func = next((f for f in m.funcs.values() if _defines(f, value)), None)
    op = None if func is None else callers.get(func.name)
    if func is None or op is None:
        return None
    if op.name == "If":
        return iter([op.results[k]])
    states = len(op.operands) - 2 - op.attrs["captures"]
    if op.name != "Loop" or k > states:
        return None
    return iter([func.args[1 + k], op.results[k - 1]] if k else [])


def _defines(func: Func, value: Value) -> bool:
    return any(user is func.body.terminator for user, _ in value.uses) and (
        value in func.args or (value.defining_op is not None and value.defining_op.parent is func.body)
    )
