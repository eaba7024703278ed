"""`occ opt`: passes on .occ text."""

from __future__ import annotations

import click

from occ.cli import options
from occ.cli.console import say


@click.command("opt")
@options.model
@click.option("-p", "--passes", required=True, metavar="'fold,fuse{max-ops=4}'", help="Passes to run, in order.")
@options.target
@click.option("--print-after-change", is_flag=True, help="Print the module after each pass that changed it, on stderr.")
@click.option("--time-passes", is_flag=True, help="Print the time of each pass, on stderr.")
@click.option("--verify", is_flag=True, help="Check the module after every pass.")
def command(model: str, passes: str, target: str, print_after_change: bool, time_passes: bool, verify: bool) -> None:
    """Run passes on MODEL and print the result."""
    from occ.compiler.driver import load_module
    from occ.compiler.ir.printer import module_text
    from occ.compiler.passes.base import Context
    from occ.compiler.passes.manager import Manager
    from occ.compiler.passes.pipeline import parse_pipeline
    from occ.compiler.target import get_target

    pipeline = parse_pipeline(passes)
    m = load_module(options.source_of(model))
    manager = Manager(verify=verify)
    if print_after_change:
        manager.listeners.append(lambda p, m, changed: say(f"# after {p}\n{module_text(m)}") if changed else None)
    manager.run(m, pipeline, Context(get_target(target), source=model), typed=m.stage != "imported")
    if time_passes:
        for name, seconds in manager.seconds:
            say(f"{seconds * 1e3:10.2f} ms  {name}")
    from occ.cli.dump import module_with_weights

    click.echo(module_with_weights(m, None), nl=False)
