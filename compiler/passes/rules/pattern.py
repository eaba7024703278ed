"""Patterns of ops as data, traced from the functions of rules.

A pattern describes one value. `Patterns`, the `p` of a rule, makes them: `p.Relu(p.Conv(x, w))`, `x * p.Sigmoid(x)`,
`a | b`. matcher.py finds them in a module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from difflib import get_close_matches
from typing import Any

import numpy as np

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.operator.registry import builtin
from occ.compiler.ir.operator.spec import OpSpec
from occ.runtime.dataclass import dataclass

Predicate = Callable[[Any], Any]


class Pattern:
    """A pattern of a value.

    Arithmetic makes patterns of the ONNX operators; numbers stand for constants.

    Two occurrences of the same pattern object in a rule stand for the same value.
    """

    def __add__(self, other: Any) -> Pattern:
        return node("Add", self, other)

    def __radd__(self, other: Any) -> Pattern:
        return node("Add", other, self)

    def __sub__(self, other: Any) -> Pattern:
        return node("Sub", self, other)

    def __rsub__(self, other: Any) -> Pattern:
        return node("Sub", other, self)

    def __mul__(self, other: Any) -> Pattern:
        return node("Mul", self, other)

    def __rmul__(self, other: Any) -> Pattern:
        return node("Mul", other, self)

    def __truediv__(self, other: Any) -> Pattern:
        return node("Div", self, other)

    def __rtruediv__(self, other: Any) -> Pattern:
        return node("Div", other, self)

    def __pow__(self, other: Any) -> Pattern:
        return node("Pow", self, other)

    def __matmul__(self, other: Any) -> Pattern:
        return node("MatMul", self, other)

    def __neg__(self) -> Pattern:
        return node("Neg", self)

    def __or__(self, other: Any) -> Pattern:
        return Alternatives((self, as_pattern(other)))

    @property
    def parts(self) -> tuple[Pattern, ...]:
        """The patterns directly inside."""
        return ()

    def walk(self) -> Iterator[Pattern]:
        """This pattern and all inside, outer before inner."""
        yield self
        for part in self.parts:
            yield from part.walk()


@dataclass(frozen=True, eq=False)
class Variable(Pattern):
    """Any value, the same at each occurrence; `optional` operands may be absent. Without a name, a wildcard."""

    name: str = ""
    optional: bool = False


@dataclass(frozen=True, eq=False)
class Constant(Pattern):
    """A constant of the module, with a given value or accepted by a predicate on its array.

    A number stands for all elements.
    """

    name: str = ""
    value: Any = None
    test: Predicate | None = None


@dataclass(frozen=True, eq=False)
class Alternatives(Pattern):
    """The first of several patterns that matches."""

    choices: tuple[Pattern, ...]

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return self.choices


@dataclass(frozen=True, eq=False)
class Optional(Pattern):
    """A pattern for an operand that may also be absent."""

    inner: Pattern

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return (self.inner,)


@dataclass(frozen=True, eq=False)
class Shared(Pattern):
    """An interior value that may have readers outside of the match."""

    inner: Pattern

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return (self.inner,)


@dataclass(frozen=True, eq=False)
class Named(Pattern):
    """A value under a name of its own."""

    name: str
    inner: Pattern

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return (self.inner,)


@dataclass(frozen=True, eq=False)
class Many(Pattern):
    """The remaining operands of an op, all of one pattern."""

    name: str = ""
    each: Pattern | None = None

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return () if self.each is None else (self.each,)


@dataclass(frozen=True)
class Attribute:
    """A pattern of an attribute: a value, or a predicate; with a name it is bound."""

    name: str = ""
    value: Any = None
    test: Predicate | None = None
    any_value: bool = False


@dataclass(frozen=True, eq=False)
class OpPattern:
    """An op: one of some operators, its operands, and the attributes that matter. Attributes not named may be anything."""

    operators: tuple[str, ...]
    operands: tuple[Pattern, ...]
    attrs: dict[str, Attribute] = field(default_factory=dict)
    n_results: int = 1


@dataclass(frozen=True, eq=False)
class Result(Pattern):
    """A result of an op."""

    op: OpPattern
    index: int = 0

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return self.op.operands


def as_pattern(value: Any) -> Pattern:
    """A pattern from what a rule contains: patterns as they are, numbers and arrays as constants."""
    if isinstance(value, Pattern):
        return value
    if isinstance(value, (int, float, list, np.ndarray)):
        return Constant(value=value)
    raise Invalid(f"{value!r} is not a pattern")


def check_names(name: str, keys: Iterable[str], registry: Mapping[str, OpSpec]) -> None:
    """Check that an operator and its attributes exist.

    Raises:
        Invalid: they do not.
    """
    if name not in registry:
        near = get_close_matches(name, registry, 3)
        raise Invalid(f"there is no operator `{name}`", help=f"did you mean {' or '.join(near)}?" if near else "")
    known = registry[name].attrs
    for key in keys if known else ():
        if key not in known:
            near = get_close_matches(key, known, 1)
            hint = f"did you mean `{near[0]}`?" if near else f"attributes: {', '.join(known)}"
            raise Invalid(f"`{name}` has no attribute `{key}`", help=hint)


def _attribute(value: Any) -> Attribute:
    if isinstance(value, Attribute):
        return value
    return Attribute(test=value) if callable(value) else Attribute(value=value)


def node(operators: str | Sequence[str], *operands: Any, n_results: int = 1, **attrs: Any) -> Any:
    """The pattern of an op's result, or a tuple of them when there are several.

    Operators of another domain may be a user's; the compilation that takes the rule knows them (`check_names`).

    Raises:
        Invalid: there is no such operator or attribute.
    """
    names = (operators,) if isinstance(operators, str) else tuple(operators)
    for name in names:
        if "." not in name or name in builtin():
            check_names(name, attrs, builtin())
    given = [Variable(optional=True) if x is None else as_pattern(x) for x in operands]
    made = OpPattern(names, tuple(given), {k: _attribute(v) for k, v in attrs.items()}, n_results)
    return Result(made) if n_results == 1 else tuple(Result(made, k) for k in range(n_results))


class _Opt:
    """`p.opt(b)`: an operand that may be absent. `p.opt.Relu(y)`: an op that may be absent."""

    def __call__(self, inner: Any) -> Pattern:
        return Optional(as_pattern(inner))

    def __getattr__(self, operator: str) -> Callable[..., Pattern]:
        if operator.startswith("_"):
            raise AttributeError(operator)
        return lambda x, *rest, **attrs: node(operator, x, *rest, **attrs) | x


class Patterns:
    """The `p` of a rule. Any attribute that is an operator name makes a pattern of it."""

    opt = _Opt()

    def __getattr__(self, operator: str) -> Callable[..., Any]:
        if operator.startswith("_"):
            raise AttributeError(operator)
        return lambda *operands, **attrs: node(operator, *operands, **attrs)

    def op(self, operators: str | Sequence[str], *operands: Any, **attrs: Any) -> Any:
        """An op of another domain (`"com.example.Scale"`), or of any of several operators."""
        return node(operators, *operands, **attrs)

    def any(self) -> Pattern:
        """Any value."""
        return Variable()

    def const(self, name: Any = "", test: Predicate | None = None) -> Pattern:
        """A constant: bound to a name, of a value, or of a predicate on its array."""
        return Constant(name, test=test) if isinstance(name, str) else Constant(value=name)

    def many(self, name: str = "", each: Any = None) -> Pattern:
        """The remaining operands; `m.name` is the tuple of them."""
        return Many(name, None if each is None else as_pattern(each))

    def shared(self, inner: Any) -> Pattern:
        """An interior value that may have readers outside of the match."""
        return Shared(as_pattern(inner))

    def bind(self, name: str, what: Any = None) -> Any:
        """A name for an attribute (with a predicate if given), or for the value of a pattern."""
        if isinstance(what, Pattern):
            return Named(name, what)
        return Attribute(name, test=what, any_value=what is None)
