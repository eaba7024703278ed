"""`occ check`: whether a target can take a model."""

from __future__ import annotations

import click

from occ.cli import options
from occ.cli.console import count, json_line, say, show_error

_AI_CPU = "OCC0311"


@click.command("check")
@options.model
@options.target
@options.compile_options
@options.as_json
def command(model: str, target: str, as_json: bool, flags: options.Flags) -> None:
    """Report everything in MODEL that the target cannot take, without generating code; fails where `occ build` would."""
    from occ.compiler.driver.compilation import Compilation

    compilation = Compilation(options.source_of(model), flags.settings(target))
    warnings = compilation.check()
    if as_json:
        click.echo(json_line({"ok": True} | ({"warnings": [w.as_data() for w in warnings]} if warnings else {})))
        return
    for warning in warnings:
        show_error(warning.text())
    slow = sum(w.code == _AI_CPU for w in warnings)
    left = len(warnings) - slow
    say(
        f"{target} supports all of {model}"
        + (f" but {count(left, 'node')}, which the CPU runs" if left else "")
        + (f"; {count(slow, 'kind')} of nodes on its AI CPU" if slow else "")
    )
