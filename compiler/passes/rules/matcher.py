"""The pattern matcher, with backtracking over all assignments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from itertools import permutations
from typing import Any

from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.passes.rules.attribute_match import accepts, equals, same, wanted_text
from occ.compiler.passes.rules.pattern import (
    Alternatives,
    Constant,
    Many,
    Named,
    OpPattern,
    Optional,
    Pattern,
    Result,
    Shared,
    Variable,
)
from occ.runtime.dataclass import dataclass

_MOST_PERMUTED = 4  # operands of a commutative op for which every order is tried


@dataclass(frozen=True)
class State:
    """The state of a partial match: the values and attributes bound so far.

    Attributes:
        names: variables, constants and attributes by name.
        ops: the op that each op pattern stands for.
        shared: ops whose results may have readers outside.
        values: the values of unnamed patterns and alternatives that occur again.
    """

    names: dict[str, Any] = field(default_factory=dict)
    ops: dict[OpPattern, Op] = field(default_factory=dict)
    shared: frozenset[Op] = frozenset()
    values: dict[Pattern, Value | None] = field(default_factory=dict)

    def bind(self, name: str, value: Any) -> State | None:
        """The bindings with one more name; None if it is bound to something else."""
        if not name:
            return self
        if name in self.names:
            return self if same(self.names[name], value) else None
        return replace(self, names=self.names | {name: value})

    def hold(self, pattern: Pattern, value: Value | None) -> State:
        """The bindings with one more pattern, which must be the same value where it occurs again."""
        return replace(self, values=self.values | {pattern: value})


class Matcher:
    """Matches patterns; with `explain`, records why the attempt that came furthest failed."""

    def __init__(self, *, explain: bool = False) -> None:
        self._explain = explain
        self._furthest = (-1, "")

    @property
    def reason(self) -> str:
        """Why the attempt that came furthest failed."""
        return self._furthest[1]

    def fail(self, state: State, text: Callable[[], str]) -> None:
        """Record a failure; the text is built only on request."""
        if self._explain and len(state.ops) > self._furthest[0]:
            self._furthest = (len(state.ops), text())

    def outputs(self, patterns: Sequence[Pattern], op: Op) -> Iterator[tuple[State, tuple[Value, ...]]]:
        """Matches of a rule whose first pattern is a result of `op`, with the bound values."""
        first, *rest = patterns
        for value in op.results:
            for state in self.value(first, value, State()):
                yield from self._others(rest, (value,), state)

    def _others(
        self, patterns: Sequence[Pattern], found: tuple[Value, ...], state: State
    ) -> Iterator[tuple[State, tuple[Value, ...]]]:
        if not patterns:
            yield state, found
            return
        first, *rest = patterns
        for value in _candidates(first, state, found):
            for following in self.value(first, value, state):
                yield from self._others(rest, (*found, value), following)

    def value(self, pattern: Pattern, value: Value | None, state: State) -> Iterator[State]:
        """The ways in which a value fits a pattern."""
        if pattern in state.values:
            if state.values[pattern] is value:
                yield state
            else:
                self.fail(
                    state, lambda: f"one value of the pattern is %{_name(state.values[pattern])} and %{_name(value)}"
                )
            return
        match pattern:
            case Variable():
                yield from self._variable(pattern, value, state)
            case Optional():
                if value is None:
                    yield state
                else:
                    yield from self.value(pattern.inner, value, state)
            case Alternatives():
                held = state.hold(pattern, value)
                for choice in pattern.choices:
                    yield from self.value(choice, value, held)
            case Named():
                bound = state.bind(pattern.name, value)
                if bound is not None:
                    yield from self.value(pattern.inner, value, bound)
            case Shared():
                yield from self._shared(pattern, value, state)
            case Constant():
                yield from self._constant(pattern, value, state)
            case Result():
                yield from self._result(pattern, value, state)
            case _:
                raise AssertionError(pattern)

    def _variable(self, pattern: Variable, value: Value | None, state: State) -> Iterator[State]:
        if value is None and not pattern.optional:
            self.fail(state, lambda: f"the operand `{pattern.name or '_'}` is absent")
            return
        bound = state.bind(pattern.name, value) if pattern.name else state.hold(pattern, value)
        if bound is not None:
            yield bound
            return
        first = state.names[pattern.name]
        self.fail(state, lambda: f"`{pattern.name}` stands for %{_name(first)} and %{_name(value)}")

    def _shared(self, pattern: Shared, value: Value | None, state: State) -> Iterator[State]:
        for found in self.value(pattern.inner, value, state):
            maker = value.defining_op if value is not None else None
            yield found if maker is None else replace(found, shared=found.shared | {maker})

    def _constant(self, pattern: Constant, value: Value | None, state: State) -> Iterator[State]:
        if not isinstance(value, Weight):
            self.fail(state, lambda: f"%{_name(value)} is not a constant")
            return
        if pattern.value is not None and not equals(value, pattern.value):
            self.fail(state, lambda: f"the constant @{value.name} is not {pattern.value}")
            return
        if pattern.test is not None and not pattern.test(value.data):
            self.fail(state, lambda: f"the constant @{value.name} does not satisfy the condition on `{pattern.name}`")
            return
        bound = state.bind(pattern.name, value) if pattern.name else state.hold(pattern, value)
        if bound is not None:
            yield bound

    def _result(self, pattern: Result, value: Value | None, state: State) -> Iterator[State]:
        op = value.defining_op if value is not None else None
        wanted = pattern.op
        if op is None or op.name not in wanted.operators:
            self.fail(state, lambda: f"%{_name(value)} is {_given_by(value)}, not by `{' or '.join(wanted.operators)}`")
            return
        if (len(op.results) != wanted.n_results and pattern.index) or op.results[pattern.index] is not value:
            self.fail(state, lambda: f"%{_name(value)} is another result of `{op.name}`")
            return
        if wanted in state.ops:
            if state.ops[wanted] is op:
                yield state
            else:
                self.fail(state, lambda: f"two different `{op.name}` stand where the pattern has one")
            return
        bound = self._attributes(wanted, op, state)
        if bound is None:
            return
        bound = replace(bound, ops=bound.ops | {wanted: op})
        orders = list(_orders(wanted, op))
        if not orders:
            self.fail(bound, lambda: f"`{op.name}` has {len(op.operands)} operands, the pattern {len(wanted.operands)}")
        for order in orders:
            yield from self._operands(order, bound)

    def _operands(self, order: _Order, state: State) -> Iterator[State]:
        if not order:
            yield state
            return
        (pattern, given), *rest = order
        if isinstance(pattern, Many):
            found = self._many(pattern, given, state)
        else:
            found = self.value(pattern, given, state)
        for following in found:
            yield from self._operands(rest, following)

    def _many(self, pattern: Many, given: tuple[Value, ...], state: State) -> Iterator[State]:
        bound = state.bind(pattern.name, given)
        if bound is None:
            return
        for value in given if pattern.each is not None else ():
            fresh = replace(bound, ops={}, values={})  # `each` stands for other ops at each operand
            found = next(self.value(pattern.each, value, fresh), None)  # pyright: ignore[reportArgumentType]
            if found is None:
                return
            ops = bound.ops | {OpPattern(k.operators, k.operands): op for k, op in found.ops.items()}
            bound = State(bound.names, ops, found.shared, bound.values)
        yield bound

    def _attributes(self, pattern: OpPattern, op: Op, state: State) -> State | None:
        actual = op.a
        for key, wanted in pattern.attrs.items():
            value = getattr(actual, key, None)
            if not accepts(wanted, value):
                self.fail(state, lambda k=key, v=value, w=wanted: f"`{op.name}` has {k}={v}{wanted_text(w)}")
                return None
            bound = state.bind(wanted.name, value)
            if bound is None:
                self.fail(state, lambda k=key, v=value: f"`{op.name}` has {k}={v}, another op of the match another")
                return None
            state = bound
        return state


_Order = Sequence[tuple[Pattern, Any]]


def _orders(pattern: OpPattern, op: Op) -> Iterator[_Order]:
    """The ways to pair operand patterns with operands; remaining operands go to `Many`."""
    given = op.operands
    fixed = [p for p in pattern.operands if not isinstance(p, Many)]
    rest = next((p for p in pattern.operands if isinstance(p, Many)), None)
    if len(given) < len(fixed):
        given = (*given, *(None,) * (len(fixed) - len(given)))
    if rest is None and any(v is not None for v in given[len(fixed) :]):
        return
    if rest is None:
        given = given[: len(fixed)]
    if not op.spec.commutes or len(given) > _MOST_PERMUTED:
        at = next((k for k, p in enumerate(pattern.operands) if isinstance(p, Many)), len(fixed))
        behind = len(fixed) - at
        last = given[len(given) - behind :] if behind else ()
        pairs: list[tuple[Pattern, Any]] = list(zip(fixed, (*given[:at], *last), strict=True))
        yield pairs if rest is None else [*pairs, (rest, given[at : len(given) - behind])]
        return
    for chosen in permutations(range(len(given)), len(fixed)):
        pairs = [(p, given[k]) for p, k in zip(fixed, chosen, strict=True)]
        left = tuple(v for k, v in enumerate(given) if k not in chosen)
        yield pairs if rest is None else [*pairs, (rest, left)]


def _candidates(pattern: Pattern, state: State, found: Sequence[Value]) -> Iterator[Value]:
    """Candidates for a further output: results of ops near the ones already matched."""
    roots = {name for p in pattern.walk() if isinstance(p, Result) for name in p.op.operators}
    start = [v for v in state.names.values() if isinstance(v, Value)]
    start += [r for op in state.ops.values() for r in op.results] + list(found)
    seen: dict[Value, None] = dict.fromkeys(start)
    frontier = list(seen)
    for _ in range(sum(isinstance(p, Result) for p in pattern.walk())):
        frontier = [r for v in frontier for op in v.users if op.name in roots for r in op.results if r not in seen]
        seen |= dict.fromkeys(frontier)
    yield from list(seen)


def _name(value: Any) -> str:
    return value.name if isinstance(value, Value) else "none"


def _given_by(value: Value | None) -> str:
    if value is None:
        return "absent"
    if isinstance(value, Weight):
        return "a constant"
    op = value.defining_op
    return "an input" if op is None else f"defined by `{op.name}`"
