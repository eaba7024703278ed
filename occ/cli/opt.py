"""`occ opt`: passes on .occ text."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click

from occ.cli import options
from occ.cli.console import say
from occ.cli.option_values import pairs
from occ.cli.passes import Looking, pass_options
from occ.runtime.dataclass import dataclass

if TYPE_CHECKING:
    from occ.compiler.driver.plugins import Extensions
    from occ.compiler.ir.module import Module
    from occ.compiler.targets.option import Options
    from occ.compiler.targets.target import Target


@dataclass(frozen=True)
class _Running:
    """The options about which passes run, and with what."""

    passes: str
    given: tuple[str, ...]
    rules: tuple[str, ...]
    verify: bool


@click.command("opt")
@options.model
@click.option("-p", "--passes", default="", metavar="'fold,fuse{max-ops=4}'", help="Passes to run, in order.")
@options.target
@options.target_options
@click.option("--rules", "rules", multiple=True, metavar="FILE", help="Load rules, passes and operators.")
@click.option("--verify", is_flag=True, help="Check the module after every pass.")
@click.option("--list", "list_", is_flag=True, help="Print the pipeline of the target, in the form that -p takes.")
@pass_options
@options.as_record(_Running, "how")
def command(model: str, target: str, list_: bool, looking: Looking, how: _Running) -> None:
    """Run passes on MODEL and print the result. `occ opt - -t cpu --list` prints a target's own pipeline."""
    from occ.compiler.driver.plugins import extensions
    from occ.compiler.targets.registry import target_for

    loaded = extensions([*options.project_rules(), *how.rules])
    found, read = target_for(target, pairs(how.given, "-C"))
    if list_:
        from occ.compiler.passes.pipeline import pipeline_for

        for stage, inside in pipeline_for(found, read, loaded.passes).items():
            click.echo(f"{stage:10} {','.join(map(str, inside))}")
        return
    _run(model, found, read, loaded, looking, how)


def _run(model: str, target: Target, read: Options, loaded: Extensions, looking: Looking, how: _Running) -> None:
    from occ.analysis.dump import module_with_weights
    from occ.compiler.driver.source import load_module
    from occ.compiler.passes.base import Context
    from occ.compiler.passes.manager import Manager, Stopped
    from occ.compiler.passes.registry import parse_pipeline

    pipeline = parse_pipeline(how.passes, loaded.passes)
    source = options.source_of(model)
    m = load_module(source, registry=loaded.registry)

    def context() -> Context:
        return Context(target, read.machine, source=model, rules=tuple(loaded.rules))

    def restore(number: int) -> Module:
        again, first = load_module(source, registry=loaded.registry), Manager(limit=number)
        with suppress(Stopped):
            first.run(again, pipeline, context(), typed=False)
        return again

    listeners = looking.listeners(looking.validator({}))
    manager = Manager(how.verify, listeners, looking.bisect_limit, looking.stop_after, restore, loaded.files)
    try:
        manager.run(m, pipeline, context(), typed=m.stage != "imported")
    except Stopped:
        say(f"stopped after {len(manager.ran)} passes")
    if manager.ran and not any(ran.changed for ran in manager.ran):
        say(f"no pass changed anything at the stage `{m.stage}`; `occ dump --stage` prints text of other stages")
    looking.report(manager.ran)
    click.echo(module_with_weights(m, None), nl=False)
