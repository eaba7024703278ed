"""`occ quantize`: a model in 8 or 4 bits, and what that gains and loses."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from occ.cli import options
from occ.cli.console import json_line, progress, report_sizes, say
from occ.cli.numbers import Whole
from occ.runtime.dataclass import dataclass

if TYPE_CHECKING:
    from occ.quantization.comparison import Comparison
    from occ.quantization.quantize import Quantized

_BLOCKS = ("16", "32", "64", "128", "256")


@dataclass(frozen=True)
class _Coding:
    """The options about how weights and activations are quantised."""

    calibrate: str | None
    weights: Any
    keep: tuple[str, ...]
    operators: str
    method: Any
    block: str
    per_tensor: bool
    reduce_range: bool

    def check(self) -> None:
        """Reject mutually exclusive options, named as on the command line."""
        if self.calibrate is not None and self.weights is not None:
            raise click.UsageError("--weights does not quantise activations: leave --calibrate out")

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `occ.quantize`."""
        return {
            "calibrate": self.calibrate,
            "weights": self.weights,
            "method": self.method,
            "keep": self.keep,
            "operators": [t.strip() for t in self.operators.split(",") if t.strip()],
            "block": int(self.block),
            "per_channel": not self.per_tensor,
            "reduce_range": self.reduce_range,
        }


@dataclass(frozen=True)
class _Comparing:
    """The options of the comparison between the written and the original model."""

    npz: str | None
    rounds: int
    no_compare: bool
    threads: int | None


@click.command("quantize")
@options.model
@options.target
@click.option("-o", "--out", type=options.OutPath(), required=True, help="The ONNX file to write.")
@click.option(
    "--calibrate",
    metavar="DATA",
    help="Static int8: the inputs of typical runs, in an .npz file or a folder of them. Without this and without "
    "--weights, activations are quantised at run time (dynamic int8).",
)
@click.option(
    "--weights",
    type=click.Choice(["int8", "int4"]),
    help="Quantise only the matrices of products; activations stay in floats.",
)
@click.option(
    "--keep",
    multiple=True,
    metavar="NAME",
    help="Leave a node in floats, named by itself or its result. Repeat for more.",
)
@click.option(
    "--operators", metavar="TYPE,TYPE", default="", help="Quantise only operators of these types, such as Conv,MatMul."
)
@click.option(
    "--method",
    type=click.Choice(["minmax", "entropy", "percentile"]),
    default="minmax",
    show_default=True,
    help="With --calibrate: how to determine the ranges of activations.",
)
@click.option(
    "--block",
    type=click.Choice(_BLOCKS),
    default="32",
    show_default=True,
    help="With --weights: elements that share a scale.",
)
@click.option("--per-tensor", is_flag=True, help="One scale per weight instead of one per channel.")
@click.option(
    "--reduce-range", is_flag=True, help="Weights of 7 bits, for runtimes that saturate on processors without VNNI."
)
@click.option(
    "--inputs", "npz", metavar="FILE.npz", help="Inputs to compare with; the first of DATA, or random ones, by default."
)
@click.option(
    "--rounds",
    type=Whole(0),
    default=5,
    show_default=True,
    help="Timed blocks of runs; 0 measures nothing.",
)
@click.option("--no-compare", is_flag=True, help="Write the model and compare nothing.")
@options.threads
@options.compile_options
@options.as_json
@options.as_record(_Coding, "coding")
@options.as_record(_Comparing, "comparing")
def command(
    model: str, target: str, out: Path, as_json: bool, flags: options.Flags, coding: _Coding, comparing: _Comparing
) -> None:
    """Write MODEL, an .onnx file in f32, in 8 or 4 bits, and say what that gains and loses.

    Speed, on one thread unless --threads says more, and differences are of occ and of onnxruntime, whose quantiser it
    is.
    """
    from occ.compiler.ir.module import Module
    from occ.quantization.quantize import quantize

    coding.check()
    source = options.source_of(model)
    if options.is_artifact(model):
        raise click.UsageError(
            f"`{model}` is an artifact: quantise the .onnx file that it was built from, and build that"
        )
    if isinstance(source, (str, Module)) or model.endswith(".occ"):
        raise click.UsageError("only .onnx files can be quantised; `occ dump --format onnx` makes one from .occ text")
    with progress() as tell:
        tell("quantising")
        made = quantize(source, out, target=target, **coding.arguments())
    facts = {"path": str(out), "form": made.form, "nodes": made.nodes, "runs": made.samples}
    if not as_json:
        say(f"wrote    {out}: {made.form}")
        say(f"codes    {made.types}")
    found = None if comparing.no_compare else _compared(made, model, target, coding.calibrate, comparing, flags)
    if as_json:
        click.echo(json_line(facts | (found.as_data() if found is not None else {})))
    elif found is not None:
        click.echo("\n".join(found.lines()))


def _compared(
    made: Quantized, model: str, target: str, calibrate: str | None, how: _Comparing, flags: options.Flags
) -> Comparison:
    """The table of a quantised model; failed comparisons become notes, since the model is already written."""
    from occ.compiler.driver.sessions import compile_model
    from occ.quantization.comparison import Comparison, compare
    from occ.quantization.settings import form_of

    threads = how.threads or 1
    found = Comparison(made.bytes_before, made.bytes_after, threads)
    here = not form_of(target).device
    if not here:
        found.notes.append(
            f"`{target}` does not run here: `occ diff {made.path} -t {target} --simulate` runs the model on the "
            "simulator"
        )
    settings = flags.settings(target if here else "interp", running=True)
    floats = made.floats if model == "-" else model
    session = compile_model(floats, settings, threads)
    inputs = _inputs(made, session, calibrate, how.npz, flags)
    opened = (lambda m: session if m is floats else compile_model(m, settings, threads)) if here else None
    compare(found, floats, str(made.path), inputs, opened, how.rounds)
    with suppress(MemoryError):
        found.losses = made.losses(inputs)
    return found


def _inputs(
    made: Quantized, session: Any, calibrate: str | None, npz: str | None, flags: options.Flags
) -> dict[str, Any]:
    """Inputs to compare with: the given ones, the first calibration samples, or random ones."""
    from occ.inputs import given_inputs
    from occ.quantization.calibration import samples_of

    if npz is None and calibrate is not None:
        return next(iter(samples_of(calibrate, made.floats.graph)))
    if npz is None:
        report_sizes(session, flags.sizes)
    return given_inputs(session, {}, npz, flags.sizes, 0)
