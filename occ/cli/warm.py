"""`occ warm`: builds the kernels of many models into the cache."""

from __future__ import annotations

from pathlib import Path

import click

from occ.cli import options
from occ.cli.console import json_line, progress, say, show_error


@click.command("warm")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@options.workers("Let the workers of a scheduler of dask.distributed compile.")
@options.as_json
def command(models: tuple[str, ...], workers: str | None, as_json: bool) -> int:
    """Compile the kernels of many models for target `cpu` together, so that building each of them takes no compiler.

    A model that cannot be compiled is reported, and does not keep the others back.
    """
    from occ.compiler.diagnostics import shorten
    from occ.compiler.tuning.warm import warm

    with progress() as tell:
        others = options.workers_at(workers)
        made = warm([(m, Path(m)) for m in models], workers=others, progress=tell)
    problems = {**made.refused, **made.failed}
    for label, problem in problems.items():
        for d in problem.diagnostics:
            click.echo(json_line(d.as_data())) if as_json else show_error(
                f"{d.text()}\n   = note: model: {shorten(label)}"
            )
    if as_json:
        counts = {"models": made.models, "compiled": made.compiled, "cached": made.cached, "seconds": made.seconds}
        click.echo(json_line(counts))
    else:
        say(made.text())
    return next((p.exit_code for p in problems.values()), 0)
