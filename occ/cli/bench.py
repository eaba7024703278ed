"""`occ bench`: speed compared with other runtimes."""

from __future__ import annotations

import json

import click

from occ.cli import options
from occ.cli.console import progress, tell_sizes
from occ.inputs import given_inputs


@click.command("bench")
@options.model
@options.target
@click.option("--against", default="", metavar="NAME,NAME", help="Runtimes to compare with: onnxruntime, openvino.")
@click.option(
    "--onnx", "reference", default="", help="The model that an artifact was built from, for the others to run."
)
@click.option("--inputs", "npz", metavar="FILE.npz", help="Inputs; seeded random ones by default.")
@click.option("--rounds", type=click.IntRange(1), default=9, show_default=True, help="Blocks of each runtime.")
@options.threads
@options.compile_options
@options.as_json
@click.pass_context
def command(
    ctx: click.Context, model: str, target: str, against: str, reference: str, npz: str | None, rounds: int,
    threads: int | None, as_json: bool, flags: options.Flags,
) -> None:  # fmt: skip
    """Time MODEL (a model or an artifact), and other runtimes on the same inputs.

    No speed-up is given where the outputs differ; the exit code then is 5.
    """
    from occ.benchmark import PEERS, compare
    from occ.compiler.driver.sessions import compile_model
    from occ.loading import load

    peers = [p.strip() for p in against.split(",") if p.strip()]
    if unknown := [p for p in peers if p not in PEERS]:
        raise click.UsageError(f"--against takes {', '.join(PEERS)}, not {unknown[0]!r}")
    if options.is_artifact(model):
        session = load(model, threads)
        options.check_as_built(model, session.artifact.manifest.target)
    else:
        reference = reference or model
        with progress() as tell:
            settings = flags.settings(target, progress=tell)
            session = compile_model(options.source_of(model), settings, threads)
    if peers and (not reference or not reference.endswith(".onnx")):
        raise click.UsageError("the others need the model as an .onnx file: --onnx FILE")
    inputs = given_inputs(session, {}, npz, flags.sizes, 0)
    if npz is None:
        tell_sizes(session, flags.sizes)
    made = compare(session, reference, inputs, peers, rounds=rounds)
    click.echo(json.dumps(made.as_data()) if as_json else "\n".join(made.lines()))
    if any(name in made.reasons for name in made.differences):
        ctx.exit(5)
