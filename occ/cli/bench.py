"""`occ bench`: speed compared with other runtimes."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from occ.cli import options
from occ.cli.artifact_options import check_as_built, check_sizes
from occ.cli.console import json_line, progress, report_sizes
from occ.cli.numbers import Whole
from occ.inputs import given_inputs
from occ.runtime.dataclass import dataclass

if TYPE_CHECKING:
    import numpy as np

    from occ.runtime.session import Session

_FOR_TEXTS = (
    "model",
    "target",
    "against",
    "generate",
    "sampled",
    "rounds",
    "threads",
    "as_json",
    "given",
    "level",
    "processor",
)  # only with --generate


_PACKAGES = {"llama.cpp": "llama-cpp-python"}  # of runtimes that are called otherwise


@dataclass(frozen=True)
class _Timing:
    """The options of what is timed, and against what."""

    against: str | None
    generate: tuple[int, int] | None
    sampled: bool
    reference: str
    per_op: bool
    npz: str | None
    rounds: int
    threads: int | None


class _Lengths(click.ParamType):
    """`P,N`: number of tokens of the prompt, and to generate."""

    name = "P,N"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        parts = [p.strip() for p in value.split(",")]
        if len(parts) != 2 or not all(p.isdigit() and int(p) for p in parts):
            self.fail(f"takes two numbers of tokens, prompt and generated, such as 128,64, not {value!r}", param, ctx)
        return int(parts[0]), int(parts[1])


@click.command("bench")
@options.model
@options.target
@click.option(
    "--against",
    metavar="NAME,NAME",
    help="Runtimes to compare with: onnxruntime, openvino; with --generate also onnxruntime-genai "
    "and llama.cpp. The default is all installed ones.",
)
@click.option(
    "--generate", type=_Lengths(), help="Time a language model: a prompt of P tokens, then N tokens one by one."
)
@click.option(
    "--sampled", is_flag=True, help="With --generate: sample tokens (temperature 0.8, top_p 0.95) in the timed runs."
)
@click.option(
    "--onnx", "reference", default="", help="The model that an artifact was built from, for the other runtimes."
)
@click.option("--per-op", is_flag=True, help="Compare kernels with onnxruntime's profile, node by node.")
@click.option("--inputs", "npz", metavar="FILE.npz", help="Inputs; seeded random ones by default.")
@click.option(
    "--rounds",
    type=Whole(1),
    default=9,
    show_default=True,
    help="Blocks of each runtime, or texts with --generate.",
)
@options.threads
@options.compile_options
@options.as_json
@click.pass_context
@options.as_record(_Timing, "how")
def command(ctx: click.Context, model: str, target: str, as_json: bool, flags: options.Flags, how: _Timing) -> None:
    """Time MODEL (a model or an artifact), and other runtimes on the same inputs.

    No speed-up is given where the outputs differ; the exit code then is 5. With --generate, MODEL is the folder of a
    language model, and what counts is tokens per second.
    """
    from occ.benchmark import PEERS, compare
    from occ.compiler.driver.sessions import compile_model
    from occ.loading import load

    if how.generate is not None:
        _bench_texts(ctx, flags)
        return
    if how.sampled:
        raise click.UsageError("--sampled needs --generate")
    peers = _peers(how.against or "", PEERS)
    reference = how.reference
    if options.is_artifact(model):
        session = load(model, how.threads)
        check_as_built(model, session.artifact.manifest.target)
        check_sizes(model, session, flags.sizes)
    else:
        reference = reference or model
        with progress() as tell:
            settings = flags.settings(target, several=True, running=True, progress=tell)
            session = compile_model(options.source_of(model), settings, how.threads)
    if (peers or how.per_op) and (not reference or not reference.endswith((".onnx", ".ort"))):
        asked = "--per-op" if how.per_op else f"--against {','.join(peers)}"
        raise click.UsageError(f"{asked} compares with another runtime, which needs the .onnx file: --onnx FILE")
    inputs = given_inputs(session, {}, how.npz, flags.sizes, 0)
    if how.npz is None:
        report_sizes(session, flags.sizes)
    if how.per_op:
        _per_op(session, reference, inputs, as_json=as_json)
        return
    made = compare(session, reference, inputs, peers, rounds=how.rounds)
    click.echo(json_line(made.as_data()) if as_json else "\n".join(made.lines()))
    if any(name in made.reasons for name in made.differences):
        ctx.exit(5)


def _per_op(session: Session, reference: str, inputs: Mapping[str, np.ndarray], *, as_json: bool) -> None:
    from occ.analysis.per_op import per_op

    try:
        made = per_op(session, reference, inputs)
    except ImportError:
        raise click.UsageError("--per-op needs onnxruntime: `pip install onnxruntime`") from None
    except ValueError as e:
        raise click.UsageError(str(e)) from None
    if made is None:
        raise click.UsageError(f"the target `{session.artifact.manifest.target}` has no kernels to profile")
    click.echo(json_line(made.as_data()) if as_json else made.table())


def _peers(against: str, known: tuple[str, ...]) -> list[str]:
    peers = [p.strip() for p in against.split(",") if p.strip()]
    if unknown := [p for p in peers if p not in known]:
        raise click.UsageError(f"--against takes {', '.join(known)}, not {unknown[0]!r}")
    for p in peers:
        try:
            import_module(p.replace("-", "_").replace(".", "_"))
        except ImportError:
            raise click.UsageError(f"--against {p} needs {p}: `pip install {_PACKAGES.get(p, p)}`") from None
    return peers


def _bench_texts(ctx: click.Context, flags: options.Flags) -> None:
    """`--generate`."""
    from occ.generation.benchmark import PEERS, compare

    given = ctx.params
    for p in ctx.command.params:
        if p.name and p.name not in _FOR_TEXTS and ctx.get_parameter_source(p.name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"{p.opts[-1]} cannot be combined with --generate: a language model is compiled as for serving"
            )
    if given["target"] not in ("cpu", "cpu-jit"):
        raise click.UsageError(f"--generate runs on cpu and cpu-jit, not {given['target']!r}")
    peers = None if given["against"] is None else _peers(given["against"], PEERS)
    prompt, count = given["generate"]
    made = compare(
        Path(given["model"]), prompt, count, peers, target=given["target"], threads=given["threads"],
        rounds=given["rounds"], sampled=given["sampled"], options=flags.target_options,
    )  # fmt: skip
    click.echo(json_line(made.as_data()) if given["as_json"] else "\n".join(made.lines()))
    if any(name in made.reasons for name in made.speeds):
        ctx.exit(5)
