"""What a schedule rule is, and the log of which rules were asked."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import perf_counter

from occ.compiler.ir.te.function import TeFunc
from occ.compiler.targets.machine import Machine


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

    A normaliser rewrites the function. A rule schedules its last stage and all that is computed in the loops of that. A
    variant adds another schedule, which the sizes of a run decide for. A finisher rewrites what is scheduled.

    Attributes:
        name: of the function that it is; texts say `schedule by NAME`.
        apply: returns the new function; or `Declined`, or None, where it does not apply.
        whole: a rule that schedules all stages of a function, not its last one alone.
        doc: what it is for, in a sentence.
        origin: where it was defined, for messages.
    """

    name: str
    apply: Apply
    whole: bool = False
    doc: str = ""
    origin: str = ""

    @classmethod
    def of(cls, apply: Apply, *, whole: bool = False) -> ScheduleRule:
        """The rule that a Python function is."""
        doc = (inspect.getdoc(apply) or "").partition("\n\n")[0].replace("\n", " ")
        name = getattr(apply, "__name__", "")
        return cls(name, apply, whole, doc)


@dataclass(frozen=True)
class Answer:
    """What one rule answered.

    Attributes:
        function: name of the te function.
        stage: its last stage, which the rule was asked to schedule.
        rule: name of the rule.
        reason: why it declined; empty where it applied.
    """

    function: str
    stage: str
    rule: str
    reason: str


@dataclass
class Log:
    """Counts and times the rules that are asked.

    Attributes:
        fired: how often each applied, by name.
        seconds: how long each took, by name.
        answers: all answers for functions of a name, in order; none unless `of` says so.
        of: name of the function whose answers are kept.
    """

    fired: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)
    of: str = ""

    def ask(self, rule: ScheduleRule, f: TeFunc, machine: Machine) -> TeFunc | None:
        """The function as a rule makes it, its directives marked with the name of the rule; None where it declines."""
        start = perf_counter()
        made = rule.apply(f, machine)
        self.seconds[rule.name] = self.seconds.get(rule.name, 0.0) + perf_counter() - start
        applied = made if isinstance(made, TeFunc) else None
        if applied is not None:
            self.fired[rule.name] += 1
        if self.of == f.name:
            reason = made.reason if isinstance(made, Declined) else "it gives no reason" if made is None else ""
            self.answers.append(Answer(f.name, f.stages[-1].name, rule.name, reason))
        return None if applied is None else _marked(applied, rule.name)


def _marked(f: TeFunc, rule: str) -> TeFunc:
    """The function with the directives that have no rule yet marked as those of this one."""
    if all(d.rule for d in f.schedule):
        return f
    return replace(f, schedule=tuple(d if d.rule else replace(d, rule=rule) for d in f.schedule))


def made_by(f: TeFunc, stage: str) -> str:
    """The rule that made the schedule of a stage; empty where it has none."""
    return next((d.rule for d in f.schedule if d.stage == stage and not d.variant), "")
