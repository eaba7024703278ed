"""Structural keys of groups of ops: equal groups share one te function.

Networks repeat themselves, so building each te function once saves most of the work.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from occ.compiler.ir.attribute_keys import frozen
from occ.compiler.ir.build_te import is_literal, static_elements
from occ.compiler.ir.op import Op, Value


def structural_key(ops: Sequence[Op], args: Sequence[Value], results: Sequence[Value]) -> Hashable:
    """A key that is equal for groups whose te functions differ only in names.

    Args:
        ops: in order.
        args: all values read from outside.
        results: the values returned.
    """
    number: dict[Value, int] = {}
    for value in args:
        number.setdefault(value, len(number))
    given = tuple((str(v.type), _literal(v, ops)) for v in number)
    rows: list[Hashable] = []
    for op in ops:
        read = tuple(None if v is None else (number[v], _static(op, k, v)) for k, v in enumerate(op.operands))
        attrs = tuple(sorted((k, frozen(v)) for k, v in op.attrs.items()))
        rows.append((op.name, read, attrs, tuple(str(r.type) for r in op.results)))
        for r in op.results:
            number[r] = len(number)
    return (given, tuple(rows), tuple(number[v] for v in results))


def _literal(value: Value, ops: Sequence[Op]) -> Hashable:
    """The element of a constant that becomes a literal."""
    return frozen(static_elements(value)) if is_literal(value, ops) else None


def _static(op: Op, k: int, value: Value) -> Hashable:
    """The elements of an operand that the operator's body uses; it sees those of no other operand."""
    return frozen(static_elements(value)) if op.spec.operand_name(k) in op.spec.static else None
