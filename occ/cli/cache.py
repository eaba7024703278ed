"""`occ cache`: the build cache, and stores of kernels made from it."""

from __future__ import annotations

import platform
from pathlib import Path

import click

from occ.cli import options
from occ.cli.console import json_line


class _Words(click.Command):
    """A command that suggests the option if its dashes were forgotten, as in `occ cache clear`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and any(f"--{args[0]}" in p.opts for p in self.params):
            ctx.fail(f"did you mean `--{args[0]}`?")
        return super().parse_args(ctx, args)


@click.command("cache", cls=_Words)
@click.option("--clear", is_flag=True, help="Remove all entries.")
@click.option(
    "--export",
    "to",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Export its kernels and tools to a file, for other machines of this kind.",
)
@click.option(
    "--import",
    "of",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Import entries that another cache has exported; each is checked.",
)
@options.as_json
def command(clear: bool, to: Path | None, of: Path | None, as_json: bool) -> None:
    """Show the location and size of the build cache, clear it, or share its kernels as a file.

    Entries are found by processor features, toolchain and version of occ, so that a store of another kind of machine
    does no harm, and is of no use.
    """
    from occ.compiler.cache.cache import Cache

    if sum((clear, to is not None, of is not None)) > 1:
        raise click.UsageError("use one of --clear, --export and --import")
    cache = Cache()
    facts: dict[str, object] = {}
    if clear:
        cache.clear()
    if to is not None or of is not None:
        from occ.compiler.cache.store import export, import_
        from occ.runtime.machine import features_of, flags
        from occ.runtime.version import occ_version

        here = f"occ {occ_version()} on {platform.machine()} with {' '.join(features_of(flags()))}"
        done = export(cache, to, here) if to is not None else import_(cache, of or Path())
        facts = {"exported" if to else "imported": done.entries, "of_bytes": done.size, "made_for": done.made_for}
    count, size = cache.size()
    if as_json:
        click.echo(json_line({"path": str(cache.root), "entries": count, "bytes": size, **facts}))
        return
    if facts:
        done_what = f"exported {facts['exported']} entries to {to}" if to else f"imported {facts['imported']} entries"
        click.echo(f"{done_what}, made for {facts['made_for']}")
    click.echo(f"{cache.root}: {count} entries, {size / 2**20:.1f} MiB")
