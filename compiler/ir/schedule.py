"""Schedules as data: directives on the stages of a te function, one to one with Halide's scheduling calls."""

from __future__ import annotations

from dataclasses import dataclass

Arg = int | str


@dataclass(frozen=True, slots=True)
class Directive:
    """`stage.call(args)`, or `stage.update.call(args)` for the update of a reduction.

    Attributes:
        stage: name of the stage.
        call: a scheduling call of Halide (`split`, `reorder`, `vectorize`, `compute_at`, ...).
        args: names of axes, stages and tail strategies, and integers.
        update: whether it schedules the update definition of a reduction instead of its start value.
    """

    stage: str
    call: str
    args: tuple[Arg, ...] = ()
    update: bool = False

    def __str__(self) -> str:
        return f"{self.stage}{'.update' if self.update else ''}.{self.call}({', '.join(map(str, self.args))})"


Schedule = tuple[Directive, ...]


class Scheduler:
    """Writes directives in the form in which they read: `Scheduler("out").split("x", "xo", "xi", 8).vectorize("xi")`."""

    def __init__(self, stage: str, *, update: bool = False) -> None:
        self.stage, self.is_update = stage, update
        self.directives: list[Directive] = []

    def __getattr__(self, call: str):
        if call.startswith("_"):
            raise AttributeError(call)

        def record(*args: Arg) -> Scheduler:
            self.directives.append(Directive(self.stage, call, args, self.is_update))
            return self

        return record
