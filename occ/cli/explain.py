"""`occ explain`: what a diagnostic code means."""

from __future__ import annotations

import textwrap

import click

from occ.cli.console import WIDTH, json_line
from occ.cli.options import as_json


@click.command("explain")
@click.argument("code")
@as_json
def command(code: str, as_json: bool) -> None:
    """Explain a diagnostic CODE such as OCC0202."""
    from occ.compiler.codes import CODES

    code = f"OCC{code:0>4}" if code.isdecimal() else code.upper()
    found = CODES.get(code)
    if found is None:
        first, last = min(CODES), max(CODES)
        raise click.UsageError(
            f"there is no code {code}; codes go from {first} to {last}, and each error names its own"
        )
    if as_json:
        click.echo(json_line({"code": code, "title": found.title, "explanation": found.explanation}))
        return
    click.echo(f"{code}: {found.title}\n")
    click.echo(textwrap.fill(found.explanation, WIDTH))
