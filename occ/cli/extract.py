"""`occ extract`: a part of an ONNX model as a model of its own."""

from __future__ import annotations

from pathlib import Path

import click

from occ.cli import options
from occ.cli.console import count, json_line, say


@click.command("extract")
@options.model
@click.option(
    "--from",
    "start",
    multiple=True,
    metavar="NAME",
    help="A value that becomes an input, or a node of the part.",
)
@click.option(
    "--to", "end", multiple=True, metavar="NAME", help="A value that becomes an output, or a node of the part."
)
@click.option("-o", "--out", type=options.OutPath(), required=True, help="The ONNX file to write.")
@options.as_json
def command(model: str, start: tuple[str, ...], end: tuple[str, ...], out: Path, as_json: bool) -> None:
    """Write the part of MODEL, an .onnx file, between two sets of values or nodes; `occ inspect --nodes` names them."""
    from occ.analysis.extract import extract
    from occ.compiler.driver.outputs import check_out

    source = options.source_of(model)
    if isinstance(source, str) or str(model).endswith(".occ"):
        raise click.UsageError("only .onnx files can be divided; `occ dump --format onnx` makes one from .occ text")
    place = check_out(out, [model])
    place.parent.mkdir(parents=True, exist_ok=True)
    made = extract(source, start, end, place)  # pyright: ignore[reportArgumentType] - a path or bytes
    inputs, outputs = ([v.name for v in values] for values in (made.graph.input, made.graph.output))
    nodes, weights = len(made.graph.node), len(made.graph.initializer)
    if as_json:
        facts = {"path": str(out), "nodes": nodes, "weights": weights, "inputs": inputs, "outputs": outputs}
        click.echo(json_line(facts))
        return
    say(f"wrote    {out}: {count(nodes, 'node')}, {count(weights, 'weight')}")
    say(f"inputs   {', '.join(inputs)}")
    say(f"outputs  {', '.join(outputs)}")
