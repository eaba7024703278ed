"""Applies a rewrite rule at a match: builds the replacement, checks its types, and puts it in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from occ.compiler.diagnostics import CompileError, Invalid, error
from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.kernel import CODE
from occ.compiler.ir.location import fuse
from occ.compiler.ir.op import Op, Value
from occ.compiler.ir.operator.onnx_values import onnx_type_name
from occ.compiler.ir.operator.spec import OpSpec
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.types import TensorType, Type
from occ.compiler.passes.rules.rule import Match, Rejected, Rewrite, call, failed


class Term:
    """A value in a replacement: arithmetic builds ops; everything else (`type`, `tensor`, `data`) is the value's."""

    def __init__(self, value: Value, b: RuleBuilder) -> None:
        self.value, self._b = value, b

    def __getattr__(self, name: str) -> Any:
        return getattr(self.value, name)

    def __add__(self, other: Any) -> Term:
        return self._b.op("Add", self, other)

    def __radd__(self, other: Any) -> Term:
        return self._b.op("Add", other, self)

    def __sub__(self, other: Any) -> Term:
        return self._b.op("Sub", self, other)

    def __rsub__(self, other: Any) -> Term:
        return self._b.op("Sub", other, self)

    def __mul__(self, other: Any) -> Term:
        return self._b.op("Mul", self, other)

    def __rmul__(self, other: Any) -> Term:
        return self._b.op("Mul", other, self)

    def __truediv__(self, other: Any) -> Term:
        return self._b.op("Div", self, other)

    def __rtruediv__(self, other: Any) -> Term:
        return self._b.op("Div", other, self)

    def __pow__(self, other: Any) -> Term:
        return self._b.op("Pow", self, other)

    def __matmul__(self, other: Any) -> Term:
        return self._b.op("MatMul", self, other)

    def __neg__(self) -> Term:
        return self._b.op("Neg", self)


def _untaken(spec: OpSpec, operands: Sequence[Value | None]) -> str:
    """Why an operator does not accept operands, by its schema's types; empty if it does."""
    for k, v in enumerate(operands if spec.operands else ()):
        taken = spec.operands[min(k, len(spec.operands) - 1)].types
        if v is None or not isinstance(v.type, TensorType) or not taken:
            continue
        if onnx_type_name(v.tensor.dtype) not in taken:
            return f"its replacement passes `{spec.name}` an operand of {v.tensor.dtype}, which it does not take"
    return ""


class RuleBuilder(GraphBuilder):
    """The `b` of a replacement: operators by name; numbers are constants of the type of the other operands."""

    def __init__(self, found: Match, before: Op, rw: Rewriter) -> None:
        assert before.parent is not None
        loc = fuse(op.loc for op in found.ops)
        super().__init__(before.parent, before, loc, rw.module)
        self._made: list[Op] = []

    def op(self, name: str, *operands: Any, n_results: int = 1, **attrs: Any) -> Any:
        """An op; see `GraphBuilder.op`."""
        given = [v.value if isinstance(v, Term) else v for v in operands]
        dtype = next((v.tensor.dtype for v in given if isinstance(v, Value)), None)
        plain = [v if v is None or isinstance(v, Value) else super(RuleBuilder, self).constant(v, dtype) for v in given]
        if refused := _untaken(self._registry[name], plain):
            raise Invalid(refused, code=CODE)
        made = super().op(name, *plain, n_results=n_results, **attrs)
        values: tuple[Value, ...] = made if isinstance(made, tuple) else (made,)
        maker = values[0].defining_op
        assert maker is not None
        self._made.append(maker)
        terms = tuple(Term(v, self) for v in values)
        return terms if n_results > 1 else terms[0]

    def constant(self, data: Any, dtype: Any = None) -> Any:
        """A constant from an array or number."""
        return Term(super().constant(data, dtype), self)

    def full(self, number: float, like: TensorType) -> Value:
        """A number everywhere, in the type of a tensor."""
        one = super().constant(number, like.dtype)
        if like.rank == 0:
            return one
        shape: tuple[Dim, ...] = like.dims
        if all(isinstance(d, int) for d in shape):
            extents: Any = super().constant(np.array(shape, np.int64))
        else:
            extents = self.op("dims", values=shape, shape=(len(shape),))
        return self.op("Expand", one, extents).value


def replace(rule: Rewrite, found: Match, rw: Rewriter) -> list[Op] | str:
    """Replace a match; returns the new ops, or the reason for leaving it alone.

    Raises:
        CompileError: OCC0612 the code of the rule failed; OCC0610 it has no replacement.
    """
    if rule.replacement is None:
        raise error(
            "OCC0610", f"rule `{rule.name}` has no replacement", where=rule.origin, help=f"add @{rule.name}.into"
        )
    before = _place(found)
    if before is None:
        return "the matched values are used before all of its operands are known"
    b = RuleBuilder(found, before, rw)
    try:
        made = call(rule, rule.replacement, found, b, wrap=lambda v: _term(v, b))
        values = made.reason if isinstance(made, Rejected) else _values(made, found, b)
    except CompileError:
        _undo(b, rw)
        raise
    except Invalid as e:
        _undo(b, rw)
        raise failed(rule, e) from e
    reason = values if isinstance(values, str) else _objection(found.outputs, values)
    if reason is not None:
        _undo(b, rw)
        return reason
    for old, new in zip(found.outputs, values, strict=True):
        assert isinstance(new, Value)
        rw.replace_value(old, new)
    for op in reversed(sorted_ops(found.ops)):
        if op.parent is not None and not any(r.uses for r in op.results):
            rw.erase(op)
    return [op for op in b._made if op.parent is not None]


def _term(value: Any, b: RuleBuilder) -> Any:
    if isinstance(value, Value):
        return Term(value, b)
    return (
        tuple(_term(v, b) for v in value)
        if isinstance(value, tuple) and any(isinstance(v, Value) for v in value)
        else value
    )


def _values(made: Any, found: Match, b: RuleBuilder) -> tuple[Value, ...] | str:
    if made is None or made is False:
        return "its replacement returns nothing"
    listed = made if isinstance(made, tuple) else (made,)
    if len(listed) != len(found.outputs):
        return f"its replacement returns {len(listed)} values for {len(found.outputs)}"
    plain: list[Value] = []
    for new, old in zip(listed, found.outputs, strict=True):
        value = new.value if isinstance(new, Term) else new
        plain.append(value if isinstance(value, Value) else b.full(value, old.tensor))
    return tuple(plain)


def _objection(old: Sequence[Value], new: Sequence[Value]) -> str | None:
    for a, b in zip(old, new, strict=True):
        if a is b:
            return "its replacement is the same as the match"
        if not _same_type(a.type, b.type):
            return f"%{a.name} is {a.type}, its replacement {b.type}"
    return None


def _same_type(a: Type | None, b: Type | None) -> bool:
    """Equality, not compatibility: a symbolic extent that might be 1 is not 1."""
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        return a.dtype == b.dtype and a.shape == b.shape
    return a == b


def _undo(b: RuleBuilder, rw: Rewriter) -> None:
    for op in reversed(b._made):
        if op.parent is not None:
            rw.erase(op)


def _place(found: Match) -> Op | None:
    """Where the replacement can be inserted: after its operands, and before all readers of what it replaces."""
    maker = found.outputs[0].defining_op
    assert maker is not None
    if len(found.outputs) == 1:
        return maker
    home = maker.parent
    assert home is not None
    order = {op: k for k, op in enumerate(home)}
    if any(op.parent is not home for op in found.ops):
        return None
    inputs = [v for op in found.ops for v in op.inputs]
    inputs += [v for n in found.names.values() for v in (n if isinstance(n, tuple) else (n,)) if isinstance(v, Value)]
    outside = [v.defining_op for v in inputs if v.defining_op is not None and v.defining_op not in found.ops]
    earliest = max((order.get(op, -1) for op in outside), default=-1)
    readers = [order[u] for v in found.outputs for u in v.users if u in order and u not in found.ops]
    if readers and min(readers) <= earliest:
        return None
    return next(op for op in home if order[op] > earliest)


def sorted_ops(ops: Sequence[Op]) -> list[Op]:
    """Ops in the order of their region."""
    if len(ops) < 2:
        return list(ops)
    wanted = set(ops)
    home = ops[0].parent
    assert home is not None
    inside = [op for op in home if op in wanted]
    return [*(op for op in ops if op.parent is not home), *inside]


class PatternRule:
    """A rewrite as a function of an op and a rewriter, as `Rewriter.apply` takes them."""

    def __init__(self, rule: Rewrite) -> None:
        self.rule, self.__name__ = rule, rule.name

    def __call__(self, op: Op, rw: Rewriter) -> bool:
        return any(isinstance(replace(self.rule, found, rw), list) for found in self.rule.matches(op))
