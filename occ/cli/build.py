"""`occ build`: a model to an artifact."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from occ.cli import options
from occ.cli.artifact_reuse import ArtifactReuse
from occ.cli.atc_spellings import AtcSpellings
from occ.cli.build_onnxruntime import emit_ort
from occ.cli.build_outputs import EMITS, EMITS_HELP, Output, compile_parts_of, write
from occ.cli.build_summary import facts_of, print_summary
from occ.cli.console import json_line, progress, say, show_error
from occ.cli.numbers import Bytes, Number, Seconds
from occ.cli.passes import Looking, pass_options_of_builds
from occ.cli.resource_limits import bounded
from occ.runtime.dataclass import dataclass

if TYPE_CHECKING:
    from occ.compiler.driver.compilation import Compilation
    from occ.compiler.driver.settings import Settings
    from occ.compiler.tuning.calibrate import Calibration
    from occ.compiler.tuning.tune import Tuner


@dataclass(frozen=True)
class _Tuning:
    """The options of builds that measure: schedules on machines, or values of calibration runs."""

    tune: float | None
    workers: str | None
    samples: tuple[str, ...]

    def check(self) -> None:
        """Reject workers without anything to measure."""
        if self.workers is not None and self.tune is None:
            raise click.UsageError("--workers needs --tune; to compile on workers, use `occ warm --workers`")

    def tuner(self, settings: Settings) -> Tuner | None:
        """The tuner of `--tune`, on this machine or on workers."""
        if self.tune is None:
            return None
        from occ.compiler.tuning.tune import Tuner

        if (others := options.workers_at(self.workers)) is None:
            return Tuner.of(settings, self.tune)
        from occ.compiler.tuning.distributed_tuner import Farm

        return Farm.on(others, settings, self.tune)

    def calibrated(self, compilation: Compilation) -> Calibration | None:
        """The findings of runs on the files of `--calibrate`."""
        if not self.samples:
            return None
        from occ.compiler.tuning.calibrate import calibrate
        from occ.inputs import named_arrays

        return calibrate(compilation, [named_arrays(path) for path in self.samples])


@dataclass(frozen=True)
class _Build:
    """All options of a build except the model, the target and limits."""

    output: Output
    tuning: _Tuning
    flags: options.Flags
    looking: Looking
    save_stages: bool
    as_json: bool

    @property
    def reusable(self) -> bool:
        """Whether an artifact of an earlier build can be reused: nothing is measured, printed or exposed."""
        o, t = self.output, self.tuning
        measured = t.tune is not None or bool(t.samples)
        return o.emit == "artifact" and not (o.folder or self.looking.is_requested or measured or o.outputs)


@click.command("build", cls=AtcSpellings)
@options.model
@options.target
@click.option("-o", "--out", type=options.OutPath(), help="Where to write; MODEL.occ by default.")
@click.option("--dir", "folder", is_flag=True, help="Write a folder instead of a zip.")
@click.option("--save-stages", is_flag=True, help="Put the text of every stage into the artifact.")
@click.option(
    "--emit",
    type=click.Choice(list(EMITS)),
    default="artifact",
    show_default=True,
    help=EMITS_HELP,
)
@click.option(
    "--weights",
    type=click.Choice(["file", "embed"]),
    default="file",
    show_default=True,
    help="Where --emit static, shared and object put the weights, and ort the artifacts: in separate files, or inside.",
)
@click.option(
    "--tune",
    type=Number(0),
    metavar="SECONDS",
    help="Tune: measure other schedules of the kernels for about that long, and use the fastest. 0 uses the results "
    "of earlier builds.",
)
@options.workers("Tune on the workers of a dask.distributed scheduler, separately for each kind of machine.")
@click.option(
    "--calibrate",
    "samples",
    multiple=True,
    metavar="FILE.npz",
    help="Ascend: inputs of a typical run; nodes that overflow or deviate on them stay FLOAT. Repeat for more.",
)
@click.option("--timeout", type=Seconds(), metavar="SECONDS", help="Stop after that long.")
@click.option(
    "--memory-limit",
    type=Bytes(),
    metavar="BYTES",
    help="Stop if this process, or a compiler that it starts, uses more memory, such as 4GB. Mapped weights do not "
    "count.",
)
@options.outputs
@options.compile_options
@pass_options_of_builds
@options.as_json
@options.as_record(Output, "output")
@options.as_record(_Tuning, "tuning")
def command(model: str, target: str, timeout: float | None, memory_limit: float | None, **how: Any) -> None:
    """Compile MODEL (an .onnx file, .occ text of any stage, or - for standard input) to an artifact."""
    with bounded(timeout, memory_limit):
        _build(model, target, _Build(**how))


def _build(model: str, target: str, how: _Build) -> None:
    start = time.perf_counter()
    how.tuning.check()
    if how.output.emit == "ort":
        emit_ort(model, target, how.output, how.flags, as_json=how.as_json)
        return
    place = how.output.checked(how.output.path(model, how.flags), [model])
    earlier = ArtifactReuse.of(model, target, how.save_stages, how.flags) if how.reusable else None
    facts = earlier.copied(place) if earlier is not None else None
    if facts is None:
        facts = _compile(model, target, place, how, earlier)
    facts["seconds"] = round(time.perf_counter() - start, 3)
    if how.as_json:
        click.echo(json_line(facts))
    else:
        print_summary(facts)


def _compile(model: str, target: str, place: Path, how: _Build, earlier: ArtifactReuse | None) -> dict[str, Any]:
    """Compile and write, and store the artifact for the next build; returns the facts of the summary."""
    from occ.compiler.driver.compilation import Compilation

    looking, tuning = how.looking, how.tuning
    validator = looking.validator(how.flags.sizes)
    with progress() as tell:
        settings = how.flags.settings(
            target,
            how.output.outputs,
            several=True,
            progress=tell,
            save_stages=how.save_stages,
            cases=True,
            **looking.settings(validator),
        )
        tuner = tuning.tuner(settings)
        compilation = Compilation(options.source_of(model), replace(settings, tune=tuner))
        calibration = tuning.calibrated(compilation)
        facts = _written(compilation, place, Path("model" if model == "-" else model).stem, how.output, calibration)
        facts |= {"tuned": [asdict(t) for t in tuner.done]} if tuner is not None else {}
    looking.report(compilation.manager.ran, compilation.phases, compilation.slowest)
    if not how.as_json:
        for text in (validator and validator.summary, tuner and tuner.table()):
            if text is not None:
                say(text)
    for warning in calibration.warnings() if calibration is not None else ():
        show_error(warning.text())
    if earlier is not None:
        why = earlier.keep(place, compilation.module.files, facts)
        if why and earlier.cache.limit and not how.as_json:
            say(f"note     the artifact is not kept for the next build: {why}")
    return facts


def _written(
    compilation: Compilation, place: Path, stem: str, how: Output, calibration: Calibration | None
) -> dict[str, Any]:
    """Compile the kernels and write; returns the facts of the summary."""
    artifact = calibration.artifact if calibration else compilation.artifact(linked=how.emit == "artifact")
    if how.emit == "om":
        artifact = compile_parts_of(compilation, artifact)
    compilation.settings.progress("writing")
    how.checked(place, compilation.module.files)
    written, link = write(compilation, artifact, place, stem, how)
    more: dict[str, Any] = {"link": link} if link else {}
    if calibration is not None:
        more |= {"calibration": [asdict(f) for f in calibration.findings], "calibrated": calibration.table()}
    return {**facts_of(compilation, artifact, written), **more}
