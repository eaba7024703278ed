"""`occ ops`: the operators, those of installed packages included."""

from __future__ import annotations

import json

import click

from occ.cli import options


@click.command("ops")
@click.option("-t", "--target", default=None, help="Only what this target supports.")
@options.as_json
def command(target: str | None, as_json: bool) -> None:
    """List the operators: name, newest schema version, kind of definition, known limits."""
    from occ.compiler.driver.plugins import extensions
    from occ.compiler.target.registry import get_target

    operators = get_target(target).operators if target is not None else None
    by_name = operators() if operators is not None else {}
    kinds = {"body": "te", "composite": "composite", "host": "host", "region": "region", "kernel": "kernel"}
    for spec in sorted(extensions().registry.values(), key=lambda s: (s.domain, s.operator)):
        if spec.is_internal or (operators is not None and spec.name not in by_name and not spec.composite):
            continue  # composite ones are taken as what they are made of
        row = {
            "name": spec.name,
            "since": spec.since,
            "kind": by_name.get(spec.name, kinds[spec.meaning]),
            "limits": spec.limits,
        }
        if as_json:
            click.echo(json.dumps(row))
        else:
            click.echo(f"{row['name']:32} {row['since']:4}  {row['kind']:10} {row['limits']}".rstrip())
