"""`occ run`: run a model or an artifact once."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from click.core import ParameterSource

from occ.cli import options
from occ.cli.artifact_options import check_as_built, check_sizes
from occ.cli.console import json_line, progress, real_inputs_wanted, report_sizes, say
from occ.cli.deadline import Note, loops, run_within
from occ.cli.numbers import Seconds, Whole
from occ.cli.option_values import pairs
from occ.inputs import given_inputs
from occ.runtime.dataclass import dataclass

if TYPE_CHECKING:
    from occ.runtime.session import Session

_FEW = 16  # elements up to which arrays are printed completely
_NUMBERS = "iufbV"  # kinds of dtypes; those of ml_dtypes are V


@dataclass(frozen=True)
class _Running:
    """The options about inputs, execution and output."""

    single: tuple[str, ...]
    npz: str | None
    folder: Path | None
    seed: int
    profiled: bool
    trace: Path | None
    simulate: bool
    wait: bool
    threads: int | None
    as_json: bool

    @property
    def waits(self) -> bool:
        """Whether the run must use the target's own kernels."""
        return self.wait or self.profiled or self.simulate or self.trace is not None

    @property
    def random(self) -> bool:
        """Whether no inputs are given."""
        return self.npz is None and not self.single


@click.command("run")
@options.model
@options.target
@click.option(
    "--input",
    "single",
    multiple=True,
    metavar="[NAME=]FILE",
    help="An input from an .npy or .pb file (a sequence from an .npz file); NAME is optional if there is only one.",
)
@click.option("--inputs", "npz", metavar="FILE.npz", help="All inputs from one file.")
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(path_type=Path),
    help="Folder to write the outputs to, one .npy each; .npz of sequences, .json of maps.",
)
@click.option(
    "--seed",
    type=Whole(0),
    default=0,
    show_default=True,
    help="Seed of the random inputs that are used if none are given.",
)
@click.option("--profile", "profiled", is_flag=True, help="Print the time of each kernel instead of the outputs.")
@click.option(
    "--trace", type=click.Path(path_type=Path), help="With --profile: write a trace for chrome://tracing to this file."
)
@click.option("--simulate", is_flag=True, help="Run the device parts of an Ascend artifact on the simulator.")
@click.option(
    "--timeout",
    type=Seconds(),
    metavar="SECONDS",
    help="Stop after that long, compilation included. A Loop may run for ever.",
)
@click.option(
    "--wait",
    is_flag=True,
    help="Compile kernels that are not in the build cache before the run, as -t, --profile and --trace do. "
    "Otherwise `cpu-jit` runs MODEL at once, and they are compiled in the background for later runs.",
)
@options.threads
@options.compile_options
@options.as_json
@options.as_record(_Running, "how")
def command(model: str, target: str, timeout: float | None, flags: options.Flags, how: _Running) -> None:
    """Run MODEL (a model or an artifact) once, on inputs from files or on seeded random ones.

    Symbolic dims of random inputs have the values of --dim; else those that come first, as batches do, are 1, and
    others 32.
    """
    if code := run_within(timeout, lambda note: _run(note, model, target, flags, how)):
        raise click.exceptions.Exit(code)


def _run(note: Note, model: str, target: str, flags: options.Flags, how: _Running) -> None:
    session = _opened(model, target, flags, how)
    manifest = session.artifact.manifest
    if how.simulate and manifest.engine != "ascend":
        raise click.UsageError(
            f"--simulate runs the device parts of an Ascend artifact; `{model}` is for `{manifest.target}`"
        )
    if how.folder is not None and how.folder.exists() and not how.folder.is_dir():
        raise click.UsageError(f"-o takes a folder for the outputs, and `{how.folder}` is a file")
    inputs = given_inputs(session, _named(how.single, session), how.npz, flags.sizes, how.seed)
    if how.random:
        report_sizes(session, flags.sizes)
    note(loops(session))
    if how.profiled or how.trace is not None:
        _profile(session, inputs, how.trace, as_json=how.as_json)
        return
    start = time.perf_counter()
    with real_inputs_wanted(how.random):
        outputs = session.run(inputs)
    seconds = time.perf_counter() - start
    if how.folder is not None:
        how.folder.mkdir(parents=True, exist_ok=True)
        for k, (name, value) in enumerate(outputs.items()):
            _save(how.folder / file_name(name, k), value)
    if how.as_json:
        click.echo(json_line({"seconds": seconds, "outputs": [_facts(n, v) for n, v in outputs.items()]}))
        return
    _print(outputs)
    where = f"on {session.threads} thread{'s' if session.threads > 1 else ''}, first run"
    say(f"{seconds * 1e3:.2f} ms {'on the simulator, whose time says nothing of a device' if how.simulate else where}")


def _opened(model: str, target: str, flags: options.Flags, how: _Running) -> Session:
    """The session of an artifact, or of a model that is compiled for it."""
    from occ.loading import opened
    from occ.runtime.artifact import Artifact

    if options.is_artifact(model):
        artifact = Artifact.load(model)
        check_as_built(model, artifact.manifest.target)
        session = opened(artifact, how.threads, simulate=how.simulate, options=flags.target_options)
        check_sizes(model, session, flags.sizes)
        return session
    return _compiled(model, target, flags, how)


def _compiled(model: str, target: str, flags: options.Flags, how: _Running) -> Session:
    """The session of a model: of another target if kernels are missing and -t was not given."""
    from occ.cli import fill_cache
    from occ.compiler.diagnostics import shorten
    from occ.compiler.driver.sessions import compile_model, compile_soon

    typed = click.get_current_context().get_parameter_source("target") is ParameterSource.COMMANDLINE
    with progress() as tell:
        settings = flags.settings(target, several=True, running=True, progress=tell)
        if how.waits or typed or flags.no_cache or flags.verify or settings.special or not model.endswith(".onnx"):
            return compile_model(options.source_of(model), settings, how.threads, simulate=how.simulate)
        soon = compile_soon(Path(model), settings, how.threads)
    if soon.missing:
        fill_cache.start(Path(model), settings)
        say(
            f"{soon.session.artifact.manifest.target} runs {shorten(model)}: {soon.missing} kernels for {target} are "
            "compiled in the background, for later runs (--wait waits for them)"
        )
    return soon.session


def _print(outputs: Mapping[str, Any]) -> None:
    """Print outputs for people."""
    for name, value in outputs.items():
        click.echo("\n".join(_lines(name, value)))


def _named(single: Sequence[str], session: Session) -> dict[str, str]:
    """The files of `--input`, by name; the name of a model's only input may be omitted.

    Raises:
        click.UsageError: one is not NAME=FILE; or a name occurs twice.
    """
    names = [p.name for p in session.inputs]
    if len(single) == 1 and len(names) == 1 and not single[0].startswith(f"{names[0]}="):
        (only,) = single
        if "=" not in only or Path(only).exists():
            return {names[0]: only}
    for text in single:
        if "=" not in text:
            raise click.UsageError(f"--input takes NAME=FILE, not {text!r}; the inputs: {', '.join(names)}")
    return pairs(single, "--input", once=True)


def _profile(session: Session, inputs: dict[str, np.ndarray], trace: Path | None, *, as_json: bool) -> None:
    from occ.runtime.profile import profile

    made = profile(session, inputs)
    if made is None:
        raise click.UsageError(f"the target `{session.artifact.manifest.target}` has no kernels to profile")
    if trace is not None:
        trace.write_text(json.dumps(made.as_trace()))
        say(f"wrote {trace}")
    click.echo(json_line(made.as_data()) if as_json else made.table())


def file_name(name: str, k: int) -> str:
    """A safe file name for an output, whose name may be anything."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name)[:100].lstrip(".")
    return plain or f"output_{k}"


def _save(path: Path, value: Any) -> None:
    """Write an output: an array as .npy, a sequence of arrays as .npz, anything with maps as .json."""
    if isinstance(value, np.ndarray):
        np.save(f"{path}.npy", value.astype(str) if value.dtype.kind == "O" else value)
    elif isinstance(value, list) and all(isinstance(v, np.ndarray) for v in value):
        np.savez(f"{path}.npz", *value)
    else:
        Path(f"{path}.json").write_text(json_line(_plain(value)) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def _facts(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, list):
        return {"name": name, "elements": [_facts(f"{name}[{k}]", v) for k, v in enumerate(value)]}
    if not isinstance(value, np.ndarray):
        return {"name": name, "value": _plain(value)}
    dtype = "string" if value.dtype.kind == "O" else str(value.dtype)
    facts: dict[str, Any] = {"name": name, "dtype": dtype, "shape": list(value.shape)}
    if value.size and value.dtype.kind in _NUMBERS:
        wide = value.astype(np.float64)
        facts |= {"min": float(wide.min()), "max": float(wide.max()), "mean": float(wide.mean())}
    return facts


def _lines(name: str, value: Any) -> list[str]:
    """An output for people, with its elements if there are few."""
    from occ.compiler.diagnostics import shorten

    if isinstance(value, list):
        parts = [line for k, v in enumerate(value[:_FEW]) for line in _lines(f"{name}[{k}]", v)]
        return [f"{shorten(name, 60)}: sequence of {len(value)}", *parts, *(["..."] if len(value) > _FEW else [])]
    f = _facts(name, value)
    if "shape" not in f:
        return [f"{shorten(name, 60)}: {shorten(str(f['value']))}"]
    numbers = f"  min {f['min']:.6g}  max {f['max']:.6g}  mean {f['mean']:.6g}" if "min" in f else ""
    head = f"{shorten(name, 60)}: {f['dtype']}{f['shape']}{numbers}"
    if not 1 < value.size <= _FEW and not (value.size == 1 and f["dtype"] == "string"):
        return [head]
    if f["dtype"] == "string":
        return [head, "  " + shorten(str(value.tolist()), 200)]
    return [head, "  " + np.array2string(value, max_line_width=78, precision=4, suppress_small=True, prefix="  ")]
