"""`occ report`: one HTML file about a model's compilation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from occ.cli import options
from occ.cli.console import json_line, progress, report_sizes, say
from occ.runtime.dataclass import dataclass

if TYPE_CHECKING:
    from occ.runtime.session import Session


@dataclass(frozen=True)
class _Page:
    """The options about what the page shows."""

    stage: str
    npz: str | None
    threads: int | None
    against: str


@click.command("report")
@options.model
@options.target
@click.option("-o", "--out", type=options.OutPath(), default=Path("report.html"), show_default=True)
@click.option(
    "--stage",
    type=click.Choice(["imported", "inferred", "canonical", "fused", "layout", "scheduled"]),
    default="scheduled",
    show_default=True,
    help="Stage whose graph is drawn; at the last one kernels have times and code.",
)
@click.option("--inputs", "npz", metavar="FILE.npz", help="Inputs of the measured run; seeded random ones by default.")
@options.threads
@click.option(
    "--against",
    type=click.Choice(["onnxruntime", "none"]),
    default="onnxruntime",
    show_default=True,
    help="Runtime whose times are listed next to the kernels', if installed.",
)
@options.compile_options
@options.as_json
@options.as_record(_Page, "page")
def command(model: str, target: str, out: Path, as_json: bool, flags: options.Flags, page: _Page) -> None:
    """Write a page with the graph of MODEL, the times of its kernels, memory, code and passes.

    It needs no network.
    """
    from occ.analysis.report import PAGE_SUFFIXES, Measuring, page_of
    from occ.compiler.driver.outputs import check_out
    from occ.inputs import named_arrays

    if out.suffix.lower() not in PAGE_SUFFIXES:
        raise click.UsageError(f"a report is a page in HTML: -o {out.with_suffix('.html')}")
    place = check_out(out, [model])
    opened: list[Session] = []
    with progress() as tell:
        settings = flags.settings(target, running=True, progress=tell)
        given = named_arrays(page.npz) if page.npz else None
        how = Measuring(page.stage, given, flags.sizes, page.threads, page.against)
        text = page_of(options.source_of(model), settings, how, opened.append)
    if given is None:
        report_sizes(opened[0], flags.sizes)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text, "utf-8")
    size = place.stat().st_size
    if as_json:
        click.echo(json_line({"path": str(out), "bytes": size}))
        return
    say(f"wrote {out}: {size >> 10} KiB")
