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
    from occ.compiler.target.target import get_target

    on_device = _device_operators() if target is not None and get_target(target).family == "ascend" else None
    kinds = {"body": "te", "composite": "composite", "host": "host", "region": "region", "kernel": "kernel"}
    for spec in sorted(extensions().registry.values(), key=lambda s: (s.domain, s.operator)):
        if spec.is_internal or (on_device is not None and spec.name not in on_device and not spec.composite):
            continue
        row = {
            "name": spec.name,
            "since": spec.since,
            "kind": "ge" if on_device is not None and spec.name in on_device else kinds[spec.meaning],
            "limits": spec.limits,
        }
        if as_json:
            click.echo(json.dumps(row))
        else:
            click.echo(f"{row['name']:32} {row['since']:4}  {row['kind']:10} {row['limits']}".rstrip())


def _device_operators() -> frozenset[str]:
    """The operators that an Ascend device takes by name; composite ones it takes as what they are made of."""
    from occ.compiler.codegen_cann.mapping.table import rows

    return frozenset(rows())
