"""`occ extract`: a part of an ONNX model as a model of its own."""

from __future__ import annotations

from pathlib import Path

import click

from occ.cli import options
from occ.cli.console import say


@click.command("extract")
@options.model
@click.option(
    "--from",
    "start",
    multiple=True,
    metavar="NAME",
    help="A value that becomes an input, or a node that is in the part.",
)
@click.option(
    "--to", "end", multiple=True, metavar="NAME", help="A value that becomes an output, or a node that is in the part."
)
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="The ONNX file to write.")
def command(model: str, start: tuple[str, ...], end: tuple[str, ...], out: Path) -> None:
    """Write the part of MODEL, an .onnx file, between two sets of values or nodes; `occ inspect` and viewers name them."""
    from occ.analysis.extract import extract
    from occ.compiler.driver.outputs import check_out

    source = options.source_of(model)
    if isinstance(source, str) or str(model).endswith(".occ"):
        raise click.UsageError(
            "parts of .onnx files can be extracted; of .occ text, `occ dump --format onnx` makes one"
        )
    place = check_out(out, [model])
    made = extract(source, start, end, place)  # pyright: ignore[reportArgumentType] - a path or bytes
    say(f"wrote    {out}: {len(made.graph.node)} nodes, {len(made.graph.initializer)} weights")
    say(f"inputs   {', '.join(v.name for v in made.graph.input)}")
    say(f"outputs  {', '.join(v.name for v in made.graph.output)}")
