"""`occ rules --schedule`: lists schedule rules, and explains a kernel's schedule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from occ.cli.console import json_line
from occ.cli.source_places import place_of

if TYPE_CHECKING:
    from occ.compiler.driver.compilation import Compilation
    from occ.compiler.driver.plugins import Extensions
    from occ.compiler.passes.rules.schedule_rule import Log, ScheduleRule


def show_listed(extensions: Extensions, *, as_json: bool) -> None:
    """Print all rules in the order in which they are tried."""
    for kind, rule in _rules(extensions):
        facts = _facts(kind, rule)
        click.echo(json_line(facts) if as_json else f"{kind:10} {rule.name:20} {facts['doc']}")


def show_fired(compilation: Compilation, *, as_json: bool) -> None:
    """Print how often each rule fired on a model, and the total time of its answers."""
    log = _log(compilation)
    for kind, rule in _rules(compilation.extensions):
        count, seconds = log.fired[rule.name], log.seconds.get(rule.name, 0.0)
        facts = _facts(kind, rule) | {"fired": count, "seconds": seconds}
        text = f"{count:6} {seconds * 1e3:9.1f} ms  {kind:10} {rule.name:20} {facts['doc']}"
        click.echo(json_line(facts) if as_json else text)


def show_why(compilation: Compilation, kernel: str, *, as_json: bool) -> None:
    """Print each schedule rule's answer for a kernel, or for the kernel of a node.

    Raises:
        CompileError: OCC0205 there is no such kernel.
    """
    from occ.compiler.diagnostics import error

    kernel = kernel.removeprefix("@")
    answers = _log(compilation).about(kernel)
    if not answers:
        help_ = f"`occ dump {compilation.context.source} --stage scheduled` shows the names"
        raise error("OCC0205", f"the model has no kernel `{kernel}` that is scheduled", help=help_)
    kinds = {rule.name: kind for kind, rule in _rules(compilation.extensions)}
    places = {rule.name: _place(rule) for _, rule in _rules(compilation.extensions)}
    for a in answers:
        facts = {"kernel": a.function, "stage": a.stage, "kind": kinds[a.rule], "rule": a.rule, "applies": not a.reason}
        text = f"declines: {a.reason}" if a.reason else f"applies ({places[a.rule]})"
        line = f"{a.function} {a.stage}: {kinds[a.rule]} {a.rule} {text}"
        click.echo(json_line(facts | {"reason": a.reason}) if as_json else line)


def _rules(extensions: Extensions) -> Iterator[tuple[str, ScheduleRule]]:
    """All rules with the kind of each, in order."""
    from occ.compiler.passes.lower.rule_list import FINISHERS, NORMALISERS, RULES, VARIANTS

    rules = (*extensions.schedule_rules, *RULES)
    for kind, listed in ("normaliser", NORMALISERS), ("rule", rules), ("variant", VARIANTS), ("finisher", FINISHERS):
        yield from ((kind, rule) for rule in listed)


def _facts(kind: str, rule: ScheduleRule) -> dict[str, object]:
    facts: dict[str, object] = {"name": rule.name, "kind": kind, "whole": rule.whole, "doc": rule.doc}
    return facts | {"origin": rule.origin, "place": _place(rule)}


def _place(rule: ScheduleRule) -> str:
    """The file and line that define a rule; a file of occ is relative to its package."""
    return place_of(rule.apply) or rule.origin


def _log(compilation: Compilation) -> Log:
    """The log of rules up to the stage `scheduled`.

    Raises:
        CompileError: OCC0602 rules do not schedule the target's kernels.
    """
    from occ.compiler.diagnostics import error
    from occ.compiler.passes.rules.schedule_rule import Log

    passes = compilation.pipeline.get("scheduled", ())
    if not any(p.name == "schedule" for p in passes):
        name = compilation.target.name
        raise error("OCC0602", f"target `{name}` has no pass `schedule`", help="schedule rules are for `-t cpu`")
    compilation.context.schedule_log = log = Log(keep=True)
    compilation.advance("scheduled")
    return log
