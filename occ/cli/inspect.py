"""`occ inspect`: describes a model or an artifact."""

from __future__ import annotations

import click

from occ.analysis.inspect import inspect
from occ.analysis.nodes import nodes
from occ.cli import options
from occ.cli.console import fitted, json_line


@click.command("inspect")
@options.model
@click.option(
    "--nodes", "listed", is_flag=True, help="List the nodes of the graph, or the steps of an artifact, instead."
)
@options.as_json
def command(model: str, listed: bool, as_json: bool) -> None:
    """Describe MODEL: signature, dims, operators and weights of a model; target, plan and kernels of an artifact."""
    source = options.source_of(model)
    if listed:
        for node in nodes(source):
            click.echo(json_line(node.as_data()) if as_json else str(node))
        return
    facts = inspect(source)
    if as_json:
        click.echo(json_line(facts))
        return
    for key, value in facts.items():
        if value in ([], {}) or key == "placed":  # a line for each node of the device: with --json
            continue
        if isinstance(value, list):
            click.echo(f"{key}:")
            for item in value:
                click.echo(fitted("  ", str(item)))
        elif isinstance(value, dict):
            click.echo(fitted(f"{key}: ", ", ".join(f"{k} {v}" for k, v in value.items())))
        else:
            click.echo(fitted(f"{key}: ", str(value)))
