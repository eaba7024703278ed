"""`occ explain`: what a diagnostic code means."""

from __future__ import annotations

import textwrap

import click


@click.command("explain")
@click.argument("code")
def command(code: str) -> None:
    """Explain a diagnostic CODE such as OCC0202."""
    from occ.compiler.codes import CODES

    found = CODES.get(code.upper())
    if found is None:
        first, last = min(CODES), max(CODES)
        raise click.UsageError(f"there is no code {code}: they go from {first} to {last}, and errors name theirs")
    click.echo(f"{code.upper()}: {found.title}\n")
    click.echo(textwrap.fill(found.explanation, 100))
