"""`occ dump`: a model at a stage of its compilation."""

from __future__ import annotations

from pathlib import Path

import click

from occ.cli import options
from occ.cli.console import progress, say
from occ.cli.passes import Looking, pass_options
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class _Text:
    """The options about what is printed."""

    stage: str
    form: str
    weights: str
    out: Path | None


@click.command("dump")
@options.model
@click.option(
    "--stage",
    default="",
    help="imported, inferred, canonical, fused, layout, scheduled, lowered; then halide (cpu), llvm (cpu-jit), ge "
    "and atc (ascend*). With --stop-after, the default is the last.",
)
@options.target
@click.option("-o", "--out", type=options.OutPath(), help="File to write; large weights go to OUT.weights next to it.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "onnx", "cpp", "dot", "mermaid"]),
    default="text",
    show_default=True,
    help="Text; JSON; onnx, for viewers and other runtimes, up to stage layout and of ge; cpp of ge; dot and "
    "mermaid, drawings.",
)
@click.option(
    "--weights",
    type=click.Choice(["full", "names", "none"]),
    default="full",
    show_default=True,
    help="Weights in the text: all that a build needs, only their types, or none.",
)
@options.compile_options
@pass_options
@options.as_record(_Text, "what")
def command(model: str, target: str, flags: options.Flags, looking: Looking, what: _Text) -> None:
    """Print MODEL at a stage.

    Text of every stage up to `lowered` can be built, dumped and run again, with its weights.

    On standard output the text refers to its large weights in the build cache; with -o they are next to the file.
    """
    from occ.analysis.dump import stage_dump
    from occ.compiler.driver.compilation import Compilation
    from occ.compiler.driver.outputs import check_out

    out, stage = what.out, what.stage
    if out is not None:
        out = check_out(out, [model], streams=True)
    validator = looking.validator(flags.sizes)
    with progress() as tell:
        settings = flags.settings(target, running=looking.validate, progress=tell, **looking.settings(validator))
        compilation = Compilation(options.source_of(model), settings)
        if not stage and looking.stops:
            stage = compilation.last_stage
        if not stage:
            raise click.UsageError(f"choose the stage to print: --stage {', '.join(compilation.stages)}")
        text = stage_dump(compilation, stage, what.form, what.weights, out)
    looking.report(compilation.manager.ran, compilation.phases)
    if validator is not None:
        say(validator.summary)
    if out is None or what.form in ("onnx", "cpp"):
        click.echo(text, nl=False)
    elif isinstance(text, str):
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text)
