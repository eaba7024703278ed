"""Schedule rules, and the log of which rules were tried."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from dataclasses import field, replace
from time import perf_counter
from typing import overload

from occ.compiler.diagnostics import CompileError, error
from occ.compiler.ir.te.function import TeFunc
from occ.compiler.ir.te.verify import te_problems
from occ.compiler.passes.rules.rule import failed
from occ.compiler.targets.machine import Machine
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class Declined:
    """The answer of a rule that does not apply.

    Attributes:
        reason: why, as a clause: "it has no reduction".
    """

    reason: str


Apply = Callable[[TeFunc, Machine], TeFunc | Declined | None]


@dataclass(frozen=True)
class ScheduleRule:
    """One step of scheduling: a function in, the same function scheduled (or rewritten, or with a variant) out.

    A normaliser rewrites the function. A rule schedules its last stage and all stages computed in that stage's loops. A
    variant adds a second schedule, chosen by run-time sizes. A finisher rewrites the scheduled function.

    Attributes:
        name: the name of its function; texts say `schedule by NAME`.
        apply: returns the new function; or `Declined`, or None, if it does not apply.
        whole: whether it schedules all stages of a function, not only the last.
        doc: its purpose, in one sentence.
        origin: the file that defines it; empty for the compiler's own.
    """

    name: str
    apply: Apply
    whole: bool = False
    doc: str = ""
    origin: str = ""

    @classmethod
    def of(cls, apply: Apply, *, whole: bool = False) -> ScheduleRule:
        """The rule made of a Python function."""
        doc = (inspect.getdoc(apply) or "").partition("\n")[0]
        return cls(getattr(apply, "__name__", ""), apply, whole, doc)

    def run(self, f: TeFunc, machine: Machine) -> TeFunc | Declined:
        """Apply the rule to a function.

        Raises:
            CompileError: OCC0612 the code of a user's rule raised, or made what is not a valid function.
        """
        if not self.origin:
            return self.apply(f, machine) or _SILENT
        try:
            made = self.apply(f, machine) or _SILENT
        except CompileError:
            raise
        except Exception as e:
            raise failed(self, e) from e
        problems = te_problems(made) if isinstance(made, TeFunc) else ()
        if not isinstance(made, (TeFunc, Declined)):
            problems = [f"it returned {type(made).__name__}"]
        if text := next(iter(problems), ""):
            help_ = "a rule returns the function with a schedule, or `Declined`, or None"
            raise error(
                "OCC0612", f"rule `{self.name}` made no valid schedule", where=self.origin, notes=[text], help=help_
            )
        return made


_SILENT = Declined("it states no reason")


@overload
def schedule_rule(apply: Apply, /) -> ScheduleRule: ...
@overload
def schedule_rule(*, whole: bool = False) -> Callable[[Apply], ScheduleRule]: ...


def schedule_rule(
    apply: Apply | None = None, /, *, whole: bool = False
) -> ScheduleRule | Callable[[Apply], ScheduleRule]:
    """Decorator: turns a function `(f, machine)` into a schedule rule, which is tried before the compiler's own.

    Args:
        apply: returns the function with a schedule for its last stage, see `ScheduleRule`; the first line of its
            docstring is its purpose.
        whole: it schedules all stages of a function, not only the last.
    """
    if apply is None:
        return lambda fn: _defined(fn, whole)
    return _defined(apply, whole)


def _defined(apply: Apply, whole: bool) -> ScheduleRule:
    origin = inspect.getsourcefile(apply) or "a rule"
    if not apply.__name__.isidentifier():
        raise error("OCC0610", "a schedule rule needs a name: it is a function made by `def`", where=origin)
    return replace(ScheduleRule.of(apply, whole=whole), origin=origin)


@dataclass(frozen=True)
class Answer:
    """The answer of one rule.

    Attributes:
        function: name of the te function.
        stage: its last stage, which the rule was to schedule.
        rule: name of the rule.
        reason: why it declined; empty if it applied.
    """

    function: str
    stage: str
    rule: str
    reason: str


@dataclass
class Log:
    """Counts and times the rules that are tried.

    Attributes:
        fired: how often each applied, by name.
        seconds: time spent in each, by name.
        answers: all answers in order, if they are kept.
        nodes: the ONNX nodes that each te function computes, by its name, if answers are kept.
        kernels: the kernel that a te function became, by its name, where it was made one with others.
        keep: whether answers are kept.
    """

    fired: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)
    nodes: dict[str, list[str]] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)
    keep: bool = False

    def about(self, name: str) -> list[Answer]:
        """The answers for a kernel or a node, with the names of kernels; each once where layers share a kernel."""
        asked = {
            f
            for f, nodes in self.nodes.items()
            if name in (f, self.kernels.get(f)) or any(name in n.split(", ") for n in nodes)
        }
        found = (a for a in self.answers if a.function in asked)
        return [*dict.fromkeys(replace(a, function=self.kernels.get(a.function, a.function)) for a in found)]

    def ask(self, rule: ScheduleRule, f: TeFunc, machine: Machine) -> TeFunc | None:
        """The function as a rule rewrites it, its directives marked with the rule's name; None if it declines."""
        start = perf_counter()
        made = rule.run(f, machine)
        self.seconds[rule.name] = self.seconds.get(rule.name, 0.0) + perf_counter() - start
        reason = made.reason if isinstance(made, Declined) else ""
        if self.keep:
            self.answers.append(Answer(f.name, f.stages[-1].name, rule.name, reason))
        if isinstance(made, Declined):
            return None
        self.fired[rule.name] += 1
        return marked(made, rule.name)


def marked(f: TeFunc, rule: str) -> TeFunc:
    """The function with all unmarked directives marked with this rule's name."""
    if all(d.rule for d in f.schedule):
        return f
    return replace(f, schedule=tuple(d if d.rule else replace(d, rule=rule) for d in f.schedule))


def made_by(f: TeFunc, stage: str) -> str:
    """The rule that made a stage's schedule; empty if it has none."""
    return next((d.rule for d in f.schedule if d.stage == stage and not d.variant), "")
