"""Rules as data: a fusion puts the matched ops into one kernel, a rewrite replaces them.

A rule is written as plain functions, which are traced once when it is defined; what is kept is data (pattern.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatch
from typing import Any, Protocol

from occ.compiler.diagnostics import CompileError, Invalid, error
from occ.compiler.ir.kernel import CODE, CKernel, HalideKernel
from occ.compiler.ir.op import Op, Value
from occ.compiler.passes.rules.matcher import Matcher, State
from occ.compiler.passes.rules.pattern import (
    Alternatives,
    Named,
    Optional,
    Pattern,
    Result,
    Shared,
)
from occ.runtime.dataclass import dataclass

STAGES = ("inferred", "canonical", "fused")  # stages in which rewrites can be applied


class Defined(Protocol):
    """The definitions of a rule file."""

    @property
    def name(self) -> str: ...

    @property
    def origin(self) -> str: ...


class Rejected:
    """The result of `m.reject(reason)`: false, with the reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __bool__(self) -> bool:
        return False


class Match:
    """A place where a rule matches. The rule's names are attributes: values, constants, attributes of ops.

    Attributes:
        ops: the matched ops, each once, in the order of the module.
        outputs: the values that the rule's patterns stand for.
        rule: the rule.
    """

    def __init__(self, rule: Rule, state: State, outputs: tuple[Value, ...]) -> None:
        self.rule, self.outputs = rule, outputs
        self.names, self.shared = state.names, state.shared
        self.ops = list(dict.fromkeys(state.ops.values()))
        self.reason = ""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self.names:
            raise AttributeError(f"rule `{self.rule.name}` binds no `{name}`")
        return self.names[name]

    def reject(self, reason: str) -> Rejected:
        """Refuse the match; `occ rules --why` shows the reason."""
        return Rejected(reason)

    @property
    def escaping(self) -> Value | None:
        """An interior value that has a reader outside of the match without being shared.

        None if there is none.
        """
        inside = set(self.ops)
        for op in self.ops:
            for result in op.results:
                if (
                    result not in self.outputs
                    and op not in self.shared
                    and any(u not in inside for u, _ in result.uses)
                ):
                    return result
        return None


Condition = Callable[..., Any]


@dataclass(eq=False)
class Rule:
    """A fusion or rewrite rule: patterns, and conditions under which they match.

    Attributes:
        name: shown in dumps and messages; an identifier.
        patterns: of its outputs; the first is the anchor.
        params: names of its value parameters.
        targets: the targets that it applies to, as a file name pattern (`cpu*`).
        stage: the stage in which it is applied.
        benefit: rules of greater benefit come first; then the name decides.
        conditions: functions of the match that must all accept it.
        sampler: returns operands to check the rule with, if `occ check-rules` cannot find some by itself.
        doc: one line.
        origin: the file that defines it.
    """

    name: str
    patterns: tuple[Pattern, ...]
    params: tuple[str, ...]
    targets: str = "*"
    stage: str = "canonical"
    benefit: int = 0
    conditions: tuple[Condition, ...] = ()
    sampler: Callable[[Any], dict[str, Any]] | None = None
    doc: str = ""
    origin: str = ""

    kind = "rule"

    def when(self, condition: Condition) -> Condition:
        """Decorator: a condition on the match. It takes names of the rule, or `m`, the match."""
        self.conditions = (*self.conditions, condition)
        return condition

    def sample(self, sampler: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
        """Decorator: `fn(rng)` returns arrays by parameter name, for `occ check-rules`."""
        self.sampler = sampler
        return sampler

    @property
    def roots(self) -> tuple[str, ...]:
        """Names of operators whose results the first pattern matches."""
        return tuple(dict.fromkeys(root_operators(self.patterns[0])))

    def applies_to(self, target: str) -> bool:
        """Whether the rule is for a target."""
        return fnmatch(target, self.targets)

    def matches(self, op: Op, matcher: Matcher | None = None) -> Iterator[Match]:
        """The matches with a result of `op` as first output, all conditions accepted.

        Raises:
            CompileError: OCC0612 a condition failed.
        """
        matcher = matcher or Matcher()
        for state, outputs in matcher.outputs(self.patterns, op):
            found = Match(self, state, outputs)
            if len(set(outputs)) != len(outputs):
                continue
            escaping = found.escaping
            if escaping is not None:
                matcher.fail(state, lambda v=escaping, inside=found.ops: _escapes(v, inside))
                continue
            reason = self._refusal(found)
            if reason is None:
                yield found
            else:
                matcher.fail(state, lambda text=reason: text)

    def _refusal(self, found: Match) -> str | None:
        for condition in self.conditions:
            verdict = call(self, condition, found)
            if not verdict:
                return getattr(verdict, "reason", "") or "its `when` condition is false"
        return None


def _escapes(value: Value, inside: Sequence[Op]) -> str:
    reader = next(u for u in value.users if u not in inside)
    what = "it is an output of the model" if reader.is_terminator else f"`{reader.name}` reads it too"
    return f"%{value.name} would disappear, but {what}"


def root_operators(pattern: Pattern) -> Iterator[str]:
    match pattern:
        case Result():
            yield from pattern.op.operators
        case Alternatives():
            for choice in pattern.choices:
                yield from root_operators(choice)
        case Named() | Shared() | Optional():
            yield from root_operators(pattern.inner)
        case _:
            raise Invalid("a rule has to match an operator, not any value")


def call(
    rule: Rule, fn: Callable[..., Any], found: Match, *first: Any, wrap: Callable[[Any], Any] = lambda v: v
) -> Any:
    """Call a function of a rule with the values of its parameter names.

    Raises:
        CompileError: OCC0612 it raised; the error says where.
    """
    names = list(inspect.signature(fn).parameters)[len(first) :]
    unknown = [n for n in names if n != "m" and n not in found.names and n not in rule.params]
    if unknown and (first or len(names) > 1):
        raise error("OCC0610", f"rule `{rule.name}` binds no `{unknown[0]}`", where=rule.origin)
    given = [found if n == "m" or n in unknown else wrap(found.names.get(n)) for n in names]
    try:
        return fn(*first, *given)
    except CompileError:
        raise
    except Exception as e:
        if isinstance(e, Invalid) and e.code == CODE:  # an operator whose kernel does not accept these operands
            return Rejected(str(e))
        raise failed(rule, e) from e


def failed(rule: Defined, e: Exception) -> CompileError:
    """The error of a rule whose own code raised."""
    frames = inspect.getinnerframes(e.__traceback__) if e.__traceback__ else []
    own = [f for f in frames if f.filename == rule.origin] or frames[-1:]
    notes = [f"{type(e).__name__}: {e}"[:300], *(f"{f.filename}:{f.lineno} in {f.function}" for f in own[-1:])]
    return error("OCC0612", f"the code of rule `{rule.name}` failed", where=rule.origin, notes=notes)


@dataclass(eq=False)
class Fusion(Rule):
    """Groups the matched ops into a `fuse` region of its name, one kernel; it cannot change what is computed.

    Attributes:
        schedule: hints for the kernel's schedule (`cpu`), as `Hint` parses them; empty to leave it to the compiler.
        kernel: a kernel of the user, which replaces the compiler's on targets that can use it.
    """

    stage: str = "fused"
    schedule: str = ""
    kernel: CKernel | HalideKernel | None = None

    @property
    def results(self) -> list[str]:
        """Names of the results, for the kernel: `y`, or `y0`, `y1`, ..."""
        return ["y"] if len(self.patterns) == 1 else [f"y{k}" for k in range(len(self.patterns))]

    @property
    def bound(self) -> list[str]:
        """Names of attributes that the pattern binds."""
        results = [p for pattern in self.patterns for p in pattern.walk() if isinstance(p, Result)]
        return [a.name for r in results for a in r.op.attrs.values() if a.name]

    kind = "fusion"


@dataclass(eq=False)
class Rewrite(Rule):
    """Replaces the matched ops.

    Attributes:
        replacement: a function of a builder and names of the rule that returns the new value(s).
        finite: whether it is valid for finite numbers only, and not checked with infinities and NaN.
    """

    replacement: Callable[..., Any] | None = None
    finite: bool = False

    kind = "rewrite"

    def into(self, replacement: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: the replacement, a function of a builder `b` and names of the rule."""
        self.replacement = replacement
        return replacement


def in_order(rules: Iterable[Rule], target: str) -> list[Rule]:
    """The rules for a target, in the order in which they are tried: by benefit, then by name."""
    return sorted((r for r in rules if r.applies_to(target)), key=lambda r: (-r.benefit, r.name))
