"""Trip counts of Loops: constant, or from a condition that compares a counter with a bound."""

from __future__ import annotations

from collections.abc import Iterator

from occ.compiler.ir.dim import Dim, Sym, ceildiv, lower, maximum, minimum
from occ.compiler.ir.func import Func
from occ.compiler.ir.op import Op, Value
from occ.compiler.ir.types import TensorType
from occ.compiler.passes.infer.known_elements import Known

_ENDLESS = 1 << 62  # what exporters write for a Loop that only its condition ends
_COMPARED = {"Less": (False, 0), "LessOrEqual": (False, 1), "Greater": (True, 0), "GreaterOrEqual": (True, 1)}
Linear = tuple[Dim, int]  # a number as a function of the iterations before: initial value and increments


def trip_count(known: Known, op: Op, func: Func) -> Dim | None:
    """The number of iterations of a Loop, None if it depends on run-time data.

    A condition is read as a conjunction of comparisons `counter < bound`, as exporters of `while` loops write them:
    counters that each iteration changes by a constant, against loop invariants. Float comparisons are read as exact,
    which they are below 2**24; a run that then differs is rejected, as for every size that a build assumes.

    Args:
        known: elements of values in and around the body, whose types are known.
        op: the Loop: `(limit, condition, *carried, *captures)`.
        func: its body: `(iteration, condition, *carried, *captures) -> (condition, *carried, *scanned)`.
    """
    limit, start = op.operands[:2]
    if limit is not None and known_number(known, limit) is None:
        return None
    most = max_trip_count(known, op)
    counts = [] if most is None else [most]
    before = _gaps_before(known, start)
    during = _Body(known, op, func).gaps()
    if before is None or during is None:
        return None
    for gap, rate in during:
        if gap + rate in before:  # the same comparison, one iteration earlier
            before.remove(gap + rate)
            counts.append(maximum(ceildiv(gap + rate, rate), 0))
        else:
            counts.append(maximum(ceildiv(gap, rate), 0) + 1)
    if any(lower(gap) <= 0 for gap in before) or not counts:
        return None
    made = counts[0]
    for other in counts[1:]:
        made = minimum(made, other)
    return made


def max_trip_count(known: Known, op: Op) -> Dim | None:
    """The maximum number of iterations of a Loop, if sizes bound it."""
    limit = op.operands[0]
    most = None if limit is None else known_number(known, limit)
    return None if most is None or (isinstance(most, int) and most >= _ENDLESS) else maximum(most, 0)


def _gaps_before(known: Known, start: Value | None) -> list[Dim] | None:
    """Quantities that must be positive for the first iteration to run; None where unknown."""
    gaps: list[Dim] = []
    for part in _parts(known, start):
        sides = _sides(part)
        numbers = [known_number(known, v) for v in sides[:2]] if sides else [None]
        if sides is None or numbers[0] is None or numbers[1] is None:
            return None
        gaps.append(numbers[1] - numbers[0] + sides[2])
    return gaps


class _Body:
    """The body of a Loop, seen from its condition."""

    def __init__(self, known: Known, op: Op, func: Func) -> None:
        self.known, self.op, self.func = known, op, func
        self._carried = func.args[2 : 2 + len(op.operands) - 2 - op.attrs["captures"]]

    def gaps(self) -> list[tuple[Dim, int]] | None:
        """Each comparison's slack after the first iteration, and its decrease in an iteration."""
        found: list[tuple[Dim, int]] = []
        for part in _parts(self.known, self.func.results[0]):
            if part is self.func.args[1]:
                continue  # as before the iteration
            sides = _sides(part)
            least, most = (self._linear(v) for v in sides[:2]) if sides else (None, None)
            if sides is None or least is None or most is None:
                return None
            gap, rate = most[0] - least[0] + sides[2], least[1] - most[1]
            if rate > 0:
                found.append((gap, rate))
            elif lower(gap) <= 0:
                return None
        return found

    def _linear(self, value: Value) -> Linear | None:
        """A value in terms of the number of preceding iterations."""
        number = known_number(self.known, value)
        if number is not None:
            return number, 0
        if value is self.func.args[0]:
            return 0, 1
        if value in self._carried:
            return self._counter(self._carried.index(value))
        op = value.defining_op
        if op is None:
            return None
        if (source := _same_number(op)) is not None:
            return self._linear(source)
        if op.name not in ("Add", "Sub"):
            return None
        a, b = (self._linear(v) for v in op.inputs)
        if a is None or b is None:
            return None
        return (a[0] + b[0], a[1] + b[1]) if op.name == "Add" else (a[0] - b[0], a[1] - b[1])

    def _counter(self, k: int) -> Linear | None:
        """A loop-carried value to which each iteration adds a constant."""
        given = self.op.operands[2 + k]
        first = None if given is None else known_number(self.known, given)
        step = self._step(self.func.results[1 + k], self._carried[k])
        return None if first is None or step is None else (first, step)

    def _step(self, value: Value, arg: Value) -> int | None:
        """The increment of an argument in an iteration, after which it is `value`."""
        if value is arg:
            return 0
        op = value.defining_op
        if op is None:
            return None
        if (source := _same_number(op)) is not None:
            return self._step(source, arg)
        if op.name not in ("Add", "Sub"):
            return None
        for at, (a, b) in enumerate((op.inputs, op.inputs[::-1])):
            step, more = self._step(a, arg), known_number(self.known, b)
            if step is not None and isinstance(more, int) and not (op.name == "Sub" and at):
                return step + more if op.name == "Add" else step - more
        return None


def _parts(known: Known, condition: Value | None) -> Iterator[Value]:
    """The conjuncts of a condition, without those that always hold."""
    found = None if condition is None else known.elements(condition)
    if condition is None or (found and isinstance(found[0], int) and found[0]):
        return
    op = condition.defining_op
    source = None if op is None else _same_number(op)
    if op is not None and op.name == "And":
        for v in op.inputs:
            yield from _parts(known, v)
    elif source is not None:
        yield from _parts(known, source)
    else:
        yield condition


def _sides(part: Value) -> tuple[Value, Value, int] | None:
    """`(a, b, more)` of a condition that is `a < b + more` of two integers."""
    op = part.defining_op
    if op is None or op.name not in _COMPARED or not all(map(_is_scalar, op.inputs)):
        return None
    swapped, more = _COMPARED[op.name]
    a, b = op.inputs[::-1] if swapped else op.inputs
    return a, b, more


def _is_scalar(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.shape is not None and value.tensor.size == 1


def _same_number(op: Op) -> Value | None:
    """The operand of Identity, and of casts that keep the integers."""
    if op.name == "Identity":
        return op.inputs[0]
    if op.name != "Cast" or not isinstance(op.inputs[0].type, TensorType):
        return None
    source, target = op.inputs[0].tensor.dtype, op.result.tensor.dtype
    if source.kind == target.kind == "b":
        return op.inputs[0]
    return op.inputs[0] if source.name in ("i32", "i64") and target.name in ("i32", "i64", "f32", "f64") else None


def known_number(known: Known, value: Value) -> Dim | None:
    """A known integer."""
    found = known.elements(value) if isinstance(value.type, TensorType) else None
    if not found or len(found) != 1:
        return None
    (n,) = found
    if isinstance(n, float):
        return int(n) if n.is_integer() else None
    return n if isinstance(n, (int, Sym)) and not isinstance(n, bool) else None
