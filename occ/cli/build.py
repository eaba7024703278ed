"""`occ build`: a model to an artifact."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from occ.cli import options
from occ.cli.artifact_reuse import ArtifactReuse
from occ.cli.atc_spellings import AtcSpellings
from occ.cli.bounds import Seconds, bounded
from occ.cli.console import count, fitted, json_line, progress, say, show_error
from occ.cli.passes import Looking, pass_options_of_builds

if TYPE_CHECKING:
    from occ.compiler.driver.compilation import Compilation
    from occ.compiler.driver.settings import Settings
    from occ.compiler.tuning.calibrate import Calibration
    from occ.compiler.tuning.tune import Tuner
    from occ.runtime.artifact import Artifact

# What --emit can write: the end of the default path, and what it is.
EMITS = {
    "artifact": (".occ", "the artifact"),
    "static": (".a", "a static library with all that a C program needs to run the model, NAME.h, and the weights"),
    "shared": (".so", "the same as a shared library; for WebAssembly, a module NAME.wasm and occ.js, which runs it"),
    "object": ("-objects", "the same as an object file; of another machine, the kernels alone"),
    "generator": (
        "-src",
        "a folder of Halide generators and all else that make and CMake rebuild the model from, without occ",
    ),
    "air": (".air", "the GE graph of an Ascend target; a folder where there are several parts"),
    "ort": (".onnx", "an ONNX model for onnxruntime with the execution provider of `occ config --ep`"),
    "om": (".om", "the same, compiled by the CANN toolkit; with -o NAME.occ, an artifact that has it inside"),
}

_EMITS_HELP = "; ".join(f"{name}: {what}" for name, (_, what) in EMITS.items()) + "."
_LINKED = ("static", "shared", "object")  # what programs in C are linked with


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
    help=_EMITS_HELP,
)
@click.option(
    "--weights",
    type=click.Choice(["file", "embed"]),
    default="file",
    show_default=True,
    help="Where --emit static, shared and object put the weights, and ort the artifacts: in files of their own, or inside.",
)
@click.option(
    "--tune",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Measure other schedules of the kernels for about that long, and take those that win. 0 takes what earlier builds found.",
)
@options.workers("Let the workers of a scheduler of dask.distributed measure, each kind of machine for itself.")
@click.option(
    "--calibrate",
    "samples",
    multiple=True,
    metavar="FILE.npz",
    help="Ascend: inputs of a typical run; what overflows or deviates on them stays FLOAT. Repeat for more.",
)
@click.option("--timeout", type=Seconds(), metavar="SECONDS", help="Give up after that long.")
@click.option(
    "--memory-limit",
    type=click.FloatRange(0, min_open=True),
    metavar="BYTES",
    help="Give up where this process, or a compiler that it starts, fills more memory; 4e9 is 4 GB. Mapped weights do not count.",
)
@options.outputs
@options.compile_options
@pass_options_of_builds
@options.as_json
def command(timeout: float | None, memory_limit: float | None, **how: Any) -> None:
    """Compile MODEL (an .onnx file, .occ text of any stage, or - for standard input) to an artifact."""
    with bounded(timeout, memory_limit):
        _command(**how)


def _command(
    model: str, target: str, out: Path | None, folder: bool, save_stages: bool, emit: str, weights: str,
    tune: float | None, workers: str | None, samples: tuple[str, ...], outputs: tuple[str, ...], as_json: bool, flags: options.Flags, looking: Looking,
) -> None:  # fmt: skip
    start = time.perf_counter()
    if workers is not None and tune is None:
        raise click.UsageError("--workers measure what --tune asks for: give both, or compile by `occ warm --workers`")
    if emit == "ort":
        if outputs:
            raise click.UsageError("--emit ort keeps the signature of the model: leave --outputs out")
        _emit_ort(model, target, out or _default_out(model, emit, flags), weights, flags, as_json=as_json)
        return
    place = _place(out or _default_out(model, emit, flags), [model], emit, folder)
    plain = emit == "artifact" and not (folder or looking.is_requested or samples or outputs) and tune is None
    earlier = ArtifactReuse.of(model, target, save_stages, flags) if plain else None
    facts = earlier.copied(place) if earlier is not None else None
    if facts is None:
        from occ.compiler.driver.compilation import Compilation

        validator = looking.validator(flags.sizes)
        with progress() as tell:
            more = looking.settings(validator)
            settings = flags.settings(
                target, outputs, several=True, progress=tell, save_stages=save_stages, cases=True, **more
            )
            tuner = _tuner(settings, tune, workers) if tune is not None else None
            settings = replace(settings, tune=tuner)
            compilation = Compilation(options.source_of(model), settings)
            stem = Path("model" if model == "-" else model).stem
            calibration = _calibrated(compilation, samples) if samples else None
            facts = _build(compilation, place, stem, emit, weights, folder, calibration)
            facts |= {"tuned": [asdict(t) for t in tuner.done]} if tuner is not None else {}
        looking.report(compilation.manager.ran, compilation.phases, compilation.slowest)
        if validator is not None and not as_json:
            say(validator.summary)
        if tuner is not None and not as_json:
            say(tuner.table())
        if calibration is not None:
            for warning in calibration.warnings():
                show_error(warning.text())
        if earlier is not None:
            why = earlier.keep(place, compilation.module.files, facts)
            if why and earlier.cache.limit and not as_json:
                say(f"note     the artifact is not kept for the next build: {why}")
    facts["seconds"] = round(time.perf_counter() - start, 3)
    if as_json:
        click.echo(json_line(facts))
    else:
        _summary(facts)


def _place(out: Path, sources: Sequence[object], emit: str, folder: bool) -> Path:
    """Where to write: one file or a folder, as what is there says, where `emit` takes both."""
    from occ.compiler.driver.outputs import check_out

    several = folder or emit == "generator" or (emit in (*_LINKED, "air", "om") and out.is_dir())
    return check_out(out, sources, folder=several)


def _build(
    compilation: Compilation,
    place: Path,
    stem: str,
    emit: str,
    weights: str,
    folder: bool,
    calibration: Calibration | None,
) -> dict[str, Any]:
    """Compile and write; returns the facts of the summary."""
    artifact = calibration.artifact if calibration else compilation.artifact(linked=emit == "artifact")
    if emit == "om":
        artifact = _compile_parts(compilation, artifact)
    compilation.settings.progress("writing")
    _place(place, compilation.module.files, emit, folder)
    link = ""
    if emit in _LINKED and compilation.native is not None and compilation.native.is_whole:
        written, link = _write_program(compilation, artifact, place, stem, emit, weights)
    else:
        written = _write(compilation, artifact, place, stem, emit, folder)
    more: dict[str, Any] = {"link": link} if link else {}
    if calibration is not None:
        more |= {"calibration": [asdict(f) for f in calibration.findings], "calibrated": calibration.table()}
    return {**_facts(compilation, artifact, written), **more}


def _calibrated(compilation: Compilation, samples: Sequence[str]) -> Calibration:
    from occ.compiler.tuning.calibrate import calibrate
    from occ.inputs import named_arrays

    return calibrate(compilation, [named_arrays(path) for path in samples])


def _write_program(
    compilation: Compilation, artifact: Artifact, place: Path, stem: str, emit: str, weights: str
) -> tuple[Path, str]:
    from occ.compiler.standalone.program import write_program

    assert compilation.native is not None
    made = write_program(
        artifact, compilation.native.objects, place, stem, emit, embed=weights == "embed", cache=compilation.cache
    )
    return made.files[0], made.link


def _tuner(settings: Settings, seconds: float, workers: str | None) -> Tuner:
    from occ.compiler.tuning.tune import Tuner

    if (others := options.workers_at(workers)) is None:
        return Tuner.of(settings, seconds)
    from occ.compiler.tuning.distributed_tuner import Farm

    return Farm.on(others, settings, seconds)


def _emit_ort(model: str, target: str, out: Path, weights: str, flags: options.Flags, *, as_json: bool) -> None:
    """Write an ONNX model of EPContext nodes."""
    from occ.compiler.driver.outputs import check_out
    from occ.compiler.targets.registry import on_device
    from occ.onnxruntime.emit import emit

    if not model.endswith(".onnx"):
        raise click.UsageError("--emit ort takes an .onnx file: what occ has no code for stays as it is there")
    if options.bounds_of(flags.dims) or len(options.sizes_in_turn(flags.shapes, flags.dims)) > 1:
        raise click.UsageError("--emit ort takes one size for each input and dim, and no bounds")
    shapes, given = options.shapes_of(flags.shapes), flags.target_options
    place = check_out(out, [model])
    made = emit(model, place, target, embed=weights == "embed", dims=flags.sizes, shapes=shapes, options=given)
    facts = {
        "out": str(made.out),
        "groups": list(made.groups),
        "left": made.left,
        "reasons": list(made.reasons),
        "files": [str(f) for f in made.files],
    }
    if as_json:
        click.echo(json_line(facts))
        return
    say(f"wrote    {made.out} ({_bytes(made.out.stat().st_size)})" + "".join(f", {f}" for f in made.files))
    say(f"groups   {len(made.groups)} of {sum(made.groups)} nodes; {made.left} nodes stay with onnxruntime")
    for reason in made.reasons:
        say(f"left     {reason}")
    library, page = ("--ep-ascend", "ascend-onnxruntime") if on_device(target) else ("--ep", "onnxruntime")
    say(f"next     onnxruntime with the library that `occ config {library}` prints; docs/{page}.md")


def _default_out(model: str, emit: str, flags: options.Flags) -> Path:
    stem, end = Path("model" if model == "-" else model).stem, EMITS[emit][0]
    if emit == "shared" and flags.target_options.get("halide.target", "").startswith("wasm"):
        end = ".wasm"
    if Path(stem + end).resolve() == Path(model).resolve():
        stem = f"{stem}-built"
    return Path(stem + end)


def _compile_parts(compilation: Compilation, artifact: Artifact) -> Artifact:
    from occ.compiler.cache.cache import Cache
    from occ.compiler.codegen_cann.output.toolkit import compile_parts

    settings = compilation.settings
    return compile_parts(artifact, Cache(enabled=settings.cache), settings.jobs, settings.progress)


def _write(compilation: Compilation, artifact: Artifact, out: Path, stem: str, emit: str, folder: bool) -> Path:
    from occ.compiler.driver.compilation import unlinked

    if emit == "shared" and compilation.native is not None:
        raise unlinked(artifact.manifest.machine)
    if emit == "artifact" or (emit == "om" and out.suffix == EMITS["artifact"][0] and artifact.manifest.parts):
        return artifact.save(out, folder=folder)
    if emit == "generator":
        from occ.compiler.standalone.generator import write_generator

        found = write_generator(artifact, out, stem)
    else:
        found = _files(compilation, artifact, out, emit)
        for path, data in found.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    if not found:
        raise click.UsageError(f"target {compilation.target.name} has nothing for --emit {emit}")
    return out


def _files(compilation: Compilation, artifact: Artifact, out: Path, emit: str) -> dict[Path, bytes]:
    """The files to write by path; none if the target has no such output."""
    native = compilation.native
    if emit == "air":
        parts = {n.removeprefix("device/"): d for n, d in artifact.files.items() if n.startswith("device/")}
        graphs = [d for n, d in parts.items() if n.endswith(".air")]
        beside = [n for n in parts if not n.endswith((".air", ".units.json", ".sh"))]  # weights
        alone = len(graphs) == 1 and not beside and not artifact.manifest.cpu_subgraphs
        return {out: graphs[0]} if alone else {out / n: d for n, d in parts.items()}
    if emit == "om":
        return _compiled_parts(artifact, out)
    if native is None:
        return {}
    match emit:
        case "static":
            return {out: native.archive, out.with_suffix(".h"): native.header.encode()}
        case _:
            return {out / "kernels.h": native.header.encode(), **{out / n: d for n, d in native.objects.items()}}


def _compiled_parts(artifact: Artifact, out: Path) -> dict[Path, bytes]:
    """The one compiled part under the name that was asked for.

    Several in a folder, or one with the weights of its .air. Weights outside of an .om go into `weight`, as atc has it.
    """
    parts = artifact.manifest.parts
    members = sorted({n for p in parts for n in (p.om, *p.files, *p.weight_files)})
    if len(parts) == 1 and not parts[0].files and not artifact.manifest.cpu_subgraphs:
        beside = {out.parent / n.removeprefix("device/"): artifact.files[n] for n in parts[0].weight_files}
        return {out: artifact.files[parts[0].om], **beside}
    return {out / n.removeprefix("device/"): artifact.files[n] for n in members}


def _facts(compilation: Compilation, artifact: Artifact, written: Path) -> dict[str, Any]:
    from occ.analysis.inspect import special_facts
    from occ.compiler.native_entry.read_routines import host_steps

    m = artifact.manifest
    kernels = {s.name for p in m.plans for s in p.steps if s.kind == "kernel"}
    special = {"special": special_facts(m)} if m.special else {}
    size = (
        written.stat().st_size
        if written.is_file()
        else sum(p.stat().st_size for p in written.rglob("*") if p.is_file())
    )
    compiled = len(kernels) if compilation.took is None else len(compilation.took)
    return {
        "out": str(written), "target": m.target, "machine": m.machine, "steps": len(m.plan.steps), "kernels": len(kernels),
        "compiled": compiled, "reused": max(len(kernels) - compiled, 0), "weights": sum(w.nbytes for w in m.weights),
        "arena": m.plan.arena, "bytes": size, "phases": {k: round(v, 3) for k, v in compilation.seconds.items()},
        "unchanged": False, **({"entry_lacks": host_steps(m)} if m.engine == "native" else {}), **special, **m.summary,
        **({"compiled_parts": sum(bool(p.om) for p in m.parts)} if m.engine == "ascend" else {}),
    }  # fmt: skip


def _summary(f: dict[str, Any]) -> None:
    arena = "sized per run" if f["arena"] == -1 else _bytes(f["arena"])
    longest = ", ".join(f"{k} {v:.2f}" for k, v in f["phases"].items() if v > 0.05 * f["seconds"])
    phases = longest if f["phases"] else "nothing changed since it was built"
    say(f"wrote    {f['out']} ({_bytes(f['bytes'])}) for {f['target']}")
    if "device_parts" in f:
        _parts(f)
    else:
        kernels = f"{count(f['kernels'], 'kernel')} ({f['compiled']} compiled, {f['reused']} from the cache)"
        say(f"plan     {count(f['steps'], 'step')}, {kernels}")
    if lacks := f.get("entry_lacks"):
        more = f", and {len(lacks) - 1} more, which `occ inspect` lists" if len(lacks) > 1 else ""
        say(fitted("entry    ", f"native, but not without Python: {lacks[0]}{more}"))
    for line in f.get("special", ()):
        say(fitted("special  ", line))
    say(f"weights  {_bytes(f['weights'])}")
    say(f"arena    {arena}")
    say(fitted("time     ", f"{f['seconds']:.2f} s" + (f" ({phases})" if phases else "")))
    if "link" in f:
        say(f"link     {f['link']}")
    if str(f["out"]).endswith(EMITS["artifact"][0]):
        uncompiled = "device_parts" in f and not f["compiled_parts"]
        say(f"next     occ run {f['out']}{' --simulate' if uncompiled else ''}")
        if uncompiled and f["device_parts"]:
            say("         with the CANN toolkit: build with `--emit om`, and run that on a device")


def _parts(f: dict[str, Any]) -> None:
    """The summary of parts: where they run, and in what precision."""
    parts, nodes = count(f["device_parts"], "part"), count(f["device_ops"], "node")
    say(f"device   {parts} with {nodes}, {_bytes(f['device_weights'])} of weights")
    names = ", ".join(f["cpu_operators"])
    on_cpu = f"{count(f['cpu_parts'], 'part')} with {count(f['cpu_ops'], 'node')}"
    say(fitted("cpu      ", on_cpu + (f": {names}" if names else "")))
    if f.get("units"):
        say(
            fitted(
                "units    ",
                ", ".join(f"{unit} {n}" for unit, n in f["units"].items()) + f"; kernels of {f['kernel_tables']}",
            )
        )
    for line in f.get("ai_cpu", ()):
        say(fitted("AI CPU   ", line))
    say(f"precise  {f['precision']}")
    for remark in f["remarks"]:
        say(fitted("         ", remark))
    for line in f.get("calibrated", ()):
        say(fitted("sampled  ", line))
    for e in f["estimates"]:
        say(f"estimate {e['part']}: {e['text']}")
    if not f["device_parts"]:
        show_error(f"warning[OCC0301]: nothing of the model runs on `{f['target']}`; `occ check` says why")


def _bytes(n: int) -> str:
    units = ("B", "KiB", "MiB", "GiB")
    scale = next(k for k in range(len(units)) if n < 1024 ** (k + 1) or k == len(units) - 1)
    return f"{n / 1024**scale:.1f} {units[scale]}" if scale else f"{n} B"
