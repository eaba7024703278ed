"""`occ cache`: the build cache."""

from __future__ import annotations

import click

from occ.cli import options
from occ.cli.console import json_line


@click.command("cache")
@click.option("--clear", is_flag=True, help="Remove everything in it.")
@options.as_json
def command(clear: bool, as_json: bool) -> None:
    """Show where the build cache is and how large it is, or clear it."""
    from occ.compiler.cache.cache import Cache

    cache = Cache()
    if clear:
        cache.clear()
    count, size = cache.size()
    if as_json:
        click.echo(json_line({"path": str(cache.root), "entries": count, "bytes": size}))
    else:
        click.echo(f"{cache.root}: {count} entries, {size / 2**20:.1f} MiB")
