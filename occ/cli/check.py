"""`occ check`: whether a target can take a model."""

from __future__ import annotations

import click

from occ.cli import options
from occ.cli.console import say


@click.command("check")
@options.model
@options.target
@options.compile_options
@options.as_json
def command(model: str, target: str, as_json: bool, **how: object) -> None:
    """Report everything in MODEL that the target cannot take, without generating code."""
    from occ.compiler.driver import Compilation

    compilation = Compilation(options.source_of(model), options.settings(target, **how))  # pyright: ignore[reportArgumentType]
    compilation.check()
    if as_json:
        click.echo('{"ok": true}')
    else:
        say(f"{target} takes all of {model}")
