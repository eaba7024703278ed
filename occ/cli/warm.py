"""`occ warm`: builds the kernels of many models into the cache."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from occ.cli import options
from occ.cli.console import json_line, progress, say, show_error

if TYPE_CHECKING:
    from occ.compiler.driver.source import Source

_BATCH = 32  # kernels compiled together: the work lost if a run is killed


@click.command("warm")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@options.level
@options.workers("Compile on the workers of a dask.distributed scheduler.")
@options.as_json
def command(models: tuple[str, ...], level: str | None, workers: str | None, as_json: bool) -> int:
    """Compile the kernels of many models for target `cpu` together, so that building each of them takes no compiler.

    Without models, those that usual networks need: builds then find most of theirs. What an earlier run compiled is
    there already, also one that was ended. A model that cannot be compiled is reported, and does not keep
    the others back.
    """
    from occ.compiler.diagnostics import shorten
    from occ.compiler.driver.settings import Settings
    from occ.compiler.targets.target import missing_library
    from occ.compiler.tuning.warm import warm

    with progress() as tell:
        others = options.workers_at(workers)
        settings = Settings("cpu", options={"optimize": level} if level else {})
        try:
            made = warm(_sources(models), settings, batch=_BATCH, workers=others, progress=tell)
        except ModuleNotFoundError as e:
            raise missing_library("cpu", e) from e
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


def _sources(models: tuple[str, ...]) -> Iterable[tuple[str, Source]]:
    """The given models, or the usual networks, by label."""
    if models:
        return [(m, Path(m)) for m in models]
    from occ.compiler.tuning.common_nets import common_nets

    return common_nets()
