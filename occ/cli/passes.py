"""Options that print or trace passes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from occ.cli.console import say
from occ.cli.numbers import Whole
from occ.cli.options import Decorator, gathered, project_rules
from occ.runtime.dataclass import dataclass

if TYPE_CHECKING:
    from occ.compiler.debugging.validate import Validate
    from occ.compiler.passes.manager import Listener, Ran

_OPTIONS = (
    click.option("--print-before", multiple=True, metavar="PASS", help="Print the module before a pass, or `all`."),
    click.option("--print-after", multiple=True, metavar="PASS", help="Print the module after a pass, or `all`."),
    click.option("--print-after-change", is_flag=True, help="Print the module after each pass that changed it."),
    click.option(
        "--print-to",
        type=click.Path(path_type=Path),
        help="Folder for the printed modules, in numbered files; stderr by default.",
    ),
    click.option(
        "--time-passes",
        is_flag=True,
        help="Print the time of each pass, and of the kernels that take longest to compile, as a tree on stderr.",
    ),
    click.option("--trace", type=click.Path(path_type=Path), help="Write the times as a Chrome trace (Perfetto)."),
    click.option("--statistics", is_flag=True, help="Print how often each rule fired, on stderr."),
    click.option("--validate", is_flag=True, help="Interpret the model before and after each pass, on small inputs."),
)


def _stops(*, hidden: bool) -> tuple[Decorator, ...]:
    """Options that end the passes early, after which there is only a module to print."""
    return (
        click.option("--stop-after", default="", metavar="PASS", help="Stop after a pass.", hidden=hidden),
        click.option(
            "--bisect-limit", type=Whole(0), default=None, metavar="N", help="Run the first N passes only.",
            hidden=hidden,
        ),
    )  # fmt: skip


def pass_options(command: Any) -> Any:
    """The options; the command receives them as `looking`."""
    return gathered(command, (*_OPTIONS, *_stops(hidden=False)), Looking, "looking")


def pass_options_of_builds(command: Any) -> Any:
    """The same for a command that runs all passes; early ends receive a function that prints the module."""

    @wraps(command)
    def whole(*args: Any, looking: Looking, **how: Any) -> Any:
        if looking.stops:
            option = (
                f"--stop-after {looking.stop_after}" if looking.stop_after else f"--bisect-limit {looking.bisect_limit}"
            )
            raise click.UsageError(
                f"a build runs all passes: `occ dump {how['model']} {option}` prints the model there"
            )
        return command(*args, looking=looking, **how)

    return gathered(whole, (*_OPTIONS, *_stops(hidden=True)), Looking, "looking")


@dataclass(frozen=True)
class Looking:
    """The options that print or check passes."""

    print_before: Sequence[str]
    print_after: Sequence[str]
    print_after_change: bool
    print_to: Path | None
    time_passes: bool
    trace: Path | None
    statistics: bool
    validate: bool
    stop_after: str
    bisect_limit: int | None

    def __post_init__(self) -> None:
        names = {self.stop_after, *self.print_before, *self.print_after} - {"", "all"}
        if names and not click.get_current_context().params.get("rules") and not project_rules():
            _check(names)

    @property
    def stops(self) -> bool:
        """Whether the passes end early."""
        return bool(self.stop_after) or self.bisect_limit is not None

    @property
    def is_requested(self) -> bool:
        """Whether any of them was given."""
        return self.bisect_limit is not None or any(v for k, v in vars(self).items() if k != "bisect_limit")

    def validator(self, dims: Mapping[str, int]) -> Validate | None:
        """The validator of `--validate`; `dims` are values of symbolic dims."""
        from occ.compiler.debugging.validate import Validate

        return Validate(dims) if self.validate else None

    def listeners(self, validator: Validate | None) -> list[Listener]:
        """The instruments that print and validate."""
        from occ.compiler.passes.instruments import Print

        made: list[Listener] = []
        if self.print_before or self.print_after or self.print_after_change:
            before, after = frozenset(self.print_before), frozenset(self.print_after)
            made.append(Print(before, after, self.print_after_change, self.print_to, say))
        return [*made, validator] if validator is not None else made

    def settings(self, validator: Validate | None) -> dict[str, Any]:
        """Fields of `Settings`."""
        return {
            "listeners": self.listeners(validator),
            "stop_after": self.stop_after,
            "limit": self.bisect_limit,
        }

    def report(
        self,
        ran: Sequence[Ran],
        phases: Mapping[str, float] | None = None,
        kernels: Sequence[tuple[float, str, Sequence[str]]] = (),
    ) -> None:
        """Print the requested information about the passes that ran."""
        from occ.compiler.passes.instruments import statistics, time_tree, trace

        if self.time_passes:
            say(time_tree(ran, phases or {}, kernels))
        if self.statistics:
            say(statistics(ran))
        if self.trace is not None:
            self.trace.parent.mkdir(parents=True, exist_ok=True)
            self.trace.write_text(trace(ran))


def _check(names: Iterable[str]) -> None:
    """Reject names that no pass has; passes of rule files may have any name."""
    from occ.compiler.diagnostics import closest
    from occ.compiler.passes.registry import PASSES

    for name in names:
        if name not in PASSES:
            hint = closest(name, PASSES) or "`occ opt - --list` lists them"
            raise click.UsageError(f"no pass is called `{name}`; {hint}")
