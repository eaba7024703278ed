"""`occ targets`: lists targets and their options."""

from __future__ import annotations

import click

from occ.cli import options
from occ.cli.console import fitted, json_line


@click.command("targets")
@click.argument("name", required=False)
@options.as_json
def command(name: str | None, as_json: bool) -> None:
    """List the targets; with NAME, the options of one."""
    from occ.compiler.targets.registry import all_targets, get_target

    listed = [get_target(name)] if name else all_targets()
    for t in listed:
        if as_json:
            choices = {
                k: {"default": o.default, "choices": list(o.choices), "doc": o.doc} for k, o in t.options.table.items()
            }
            click.echo(json_line({"name": t.name, "doc": t.doc, "options": choices}))
            continue
        click.echo(fitted(f"{t.name:12} ", t.doc))
        if name:
            for key, o in t.options.table.items():
                choices = f" (one of {', '.join(map(str, o.choices))})" if o.choices else ""
                click.echo(f"  -C {key}={o.default}")
                click.echo(fitted("      ", o.doc + choices))
