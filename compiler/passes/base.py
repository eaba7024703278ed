"""The base class of passes, and the context that they run in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields
from typing import TYPE_CHECKING, ClassVar

from occ.compiler.diagnostics import Sink
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.targets.machine import Machine
from occ.compiler.targets.option import Options
from occ.compiler.targets.target import Target
from occ.runtime.dataclass import dataclass

if TYPE_CHECKING:
    from occ.compiler.passes.rules.rule import Rule
    from occ.compiler.passes.rules.schedule_rule import Log, ScheduleRule

HintSource = Callable[[Module], Mapping[str, str]]  # the schedule choices (`Hint`) of each te function
MatchListener = Callable[
    ["Rule", Op, str, Sequence[Op]], None
]  # (rule, op, why it does not match there, what it matched)


@dataclass
class Context:
    """State that passes share during one compilation.

    Attributes:
        target: the target compiled for.
        machine: the CPU that schedules are chosen for.
        sink: diagnostics.
        hits: how often each rule fired, by rule name.
        source: how messages name the model.
        options: of the target; None for its defaults.
        rules: user rules, in no particular order.
        tune: returns the schedule choices (`Hint`) that measurements prefer for a te function; None to leave all to the
            rules.
        schedule_rules: the user's, tried before the compiler's own.
        schedule_log: records the answers of schedule rules; None if nobody reads them.
        why: called with the outcome of a rule at an op: the rule, the op, and either the reason for no match or the
            matched ops.
    """

    target: Target
    machine: Machine
    sink: Sink = field(default_factory=Sink)
    hits: Counter[str] = field(default_factory=Counter)
    source: str = ""
    options: Options | None = None
    rules: tuple[Rule, ...] = ()
    tune: HintSource | None = None
    schedule_rules: tuple[ScheduleRule, ...] = ()
    schedule_log: Log | None = None
    why: MatchListener | None = None


@dataclass(frozen=True)
class Pass:
    """A change of a module.

    Fields of a subclass are its options; the name is its name on the command line.

    A pass may assume a module that verifies and has the invariants of its stage, and must preserve both. A pass of a
    user has a `stage`, for which it runs after the compiler's own passes, and may restrict itself to some `targets`.
    One that runs before types are inferred is `untyped`.
    """

    name: ClassVar[str] = ""
    stage: ClassVar[str] = ""
    targets: ClassVar[str] = "*"
    untyped: ClassVar[bool] = False

    def run(self, m: Module, ctx: Context) -> bool:
        """Change `m` in place; returns whether anything changed.

        Raises:
            CompileError: the model cannot be compiled.
        """
        raise NotImplementedError

    def __str__(self) -> str:
        """The text that `occ opt -p` takes: `fuse{max-ops=4}`, options at their defaults left out."""
        given = [
            f"{f.name.replace('_', '-')}={str(value).lower() if isinstance(value, bool) else value}"
            for f in fields(self)
            if (value := getattr(self, f.name)) != f.default
        ]
        return self.name + (f"{{{','.join(given)}}}" if given else "")


def finish(rw: Rewriter, ctx: Context, changes: int) -> bool:
    """Record the statistics of a rewriter; returns whether it changed anything."""
    ctx.hits.update(rw.hits)
    return changes > 0
