"""`occ rules`: lists rules, counts their matches, and explains mismatches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from occ.cli import options
from occ.cli.console import json_line, say
from occ.cli.schedule_rules import show_fired, show_listed, show_why

if TYPE_CHECKING:
    from occ.compiler.debugging.explain_rules import MatchExplainer
    from occ.compiler.driver.compilation import Compilation
    from occ.compiler.passes.rules.rule import Rule


@click.command("rules")
@click.argument("model", required=False)
@options.target
@click.option(
    "--why",
    metavar="VALUE",
    help="Explain for each rule why it does or does not match at a value (or a node) of MODEL; with --schedule, for a "
    "kernel.",
)
@click.option(
    "--schedule", is_flag=True, help="The rules that schedule kernels; --why takes the name of a kernel (or a node)."
)
@options.compile_options
@options.as_json
def command(
    model: str | None, target: str, why: str | None, schedule: bool, as_json: bool, flags: options.Flags
) -> None:
    """List the rules that are loaded; with MODEL, how often each fired on it, the compiler's own rewrites too.

    Values have the names that `occ dump MODEL --stage canonical` shows.
    """
    from occ.compiler.driver.plugins import extensions

    settings = flags.settings(target)
    if model is None:
        if why is not None:
            raise click.UsageError("--why needs a MODEL")
        if schedule:
            show_listed(extensions(settings.rules), as_json=as_json)
            return
        loaded = extensions(settings.rules).rules
        for rule in loaded:
            click.echo(json_line(_facts(rule)) if as_json else _line(rule))
        if not loaded:
            say("no rules are loaded: --rules FILE loads some, and `occ rules MODEL` lists the compiler's own rewrites")
        return
    from occ.compiler.debugging.explain_rules import MatchExplainer
    from occ.compiler.driver.compilation import Compilation

    if schedule:
        compilation = Compilation(options.source_of(model), settings)
        show_fired(compilation, as_json=as_json) if why is None else show_why(compilation, why, as_json=as_json)
    elif why is not None:
        heard = MatchExplainer(why.removeprefix("%").strip('"'))
        _why(Compilation(options.source_of(model), replace(settings, why=heard)), heard, as_json=as_json)
    else:
        _fired(Compilation(options.source_of(model), settings), as_json=as_json)


def _applied(compilation: Compilation) -> None:
    stage = "fused" if "fused" in compilation.pipeline else compilation.last_stage
    compilation.advance(stage)


def _fired(compilation: Compilation, *, as_json: bool) -> None:
    from occ.compiler.passes.canonical.canonical_rules import ALL

    _applied(compilation)
    hits = compilation.context.hits
    own = [r.name for r in compilation.extensions.rules]
    for rule in [*compilation.extensions.rules, *ALL]:
        facts = _facts(rule) | {"fired": hits[rule.name], "builtin": rule in ALL}
        click.echo(json_line(facts) if as_json else f"{hits[rule.name]:6}  {_line(rule)}")
    if not as_json:
        others = {n: k for n, k in sorted(hits.items()) if n not in own and n not in {r.name for r in ALL} and k}
        say("passes: " + ", ".join(f"{n} {k}" for n, k in others.items()))


def _why(compilation: Compilation, heard: MatchExplainer, *, as_json: bool) -> None:
    from occ.compiler.diagnostics import error

    value = heard.value
    if not any(r.name == value for op in compilation.module.walk() for r in op.results) and not any(
        value in op.loc.nodes for op in compilation.module.walk()
    ):
        help_ = (
            f"`occ dump {compilation.context.source} --stage canonical` shows the names; with --schedule it is a kernel"
        )
        raise error("OCC0205", f"the model has no value or node `{value}`", help=help_)
    _applied(compilation)
    if not compilation.extensions.rules:
        say("no rules are loaded: --rules FILE loads some, and --schedule explains how kernels are scheduled")
    for rule in compilation.extensions.rules:
        other = "" if rule.applies_to(compilation.target.name) else f"not for target {compilation.target.name}"
        text = other or heard.explain(rule)
        if as_json:
            click.echo(
                json_line({"rule": rule.name, "value": value, "matches": text.startswith("matches"), "text": text})
            )
        else:
            click.echo(f"{rule.name} ({rule.kind}): {text}")


def _facts(rule: Rule) -> dict[str, object]:
    return {
        "name": rule.name, "kind": rule.kind, "stage": rule.stage, "targets": rule.targets, "benefit": rule.benefit,
        "doc": rule.doc, "origin": rule.origin,
    }  # fmt: skip


def _line(rule: Rule) -> str:
    return f"{rule.name:24} {rule.kind:8} {rule.stage:10} {rule.targets:10} {rule.doc or rule.origin}"
