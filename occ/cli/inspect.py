"""`occ inspect`: what a model or an artifact is."""

from __future__ import annotations

import click

from occ.analysis.inspect import inspect
from occ.cli import options
from occ.cli.console import fitted, json_line


@click.command("inspect")
@options.model
@options.as_json
def command(model: str, as_json: bool) -> None:
    """Describe MODEL: signature, dims, operators and weights of a model; target, plan and kernels of an artifact."""
    facts = inspect(options.source_of(model))
    if as_json:
        click.echo(json_line(facts))
        return
    for key, value in facts.items():
        if value == []:
            continue
        if isinstance(value, list):
            click.echo(f"{key}:")
            for item in value:
                click.echo(fitted("  ", str(item)))
        elif isinstance(value, dict):
            click.echo(fitted(f"{key}: ", ", ".join(f"{k} {v}" for k, v in value.items())))
        else:
            click.echo(fitted(f"{key}: ", str(value)))
