"""Outputs of `occ build`: artifacts, libraries, generators, GE graphs, selected by `--emit`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from occ.cli import options
from occ.runtime.dataclass import dataclass

if TYPE_CHECKING:
    from occ.compiler.driver.compilation import Compilation
    from occ.runtime.artifact import Artifact

# What --emit can write: the default path's suffix, and a description.
EMITS = {
    "artifact": (".occ", "the artifact"),
    "static": (".a", "a static library that a C program needs to run the model, NAME.h, and the weights"),
    "shared": (".so", "a shared library instead; for WebAssembly, a module NAME.wasm and occ.js, which runs it"),
    "object": ("-objects", "an object file instead; for another machine, only the kernels"),
    "generator": (
        "-src",
        "a folder of Halide generators that make or CMake build the model from, without occ",
    ),
    "air": (".air", "the GE graph of an Ascend target; a folder if there are several parts"),
    "ort": (".onnx", "an ONNX model for onnxruntime with the execution provider of `occ config --ep`"),
    "om": (".om", "the graph compiled by the CANN toolkit; with -o NAME.occ, an artifact that contains it"),
}

EMITS_HELP = "; ".join(f"{name}: {what}" for name, (_, what) in EMITS.items()) + "."
LINKED = ("static", "shared", "object")  # what programs in C are linked with


@dataclass(frozen=True)
class Output:
    """The options about outputs and their location.

    Attributes:
        out: the given path; None for the default one.
        folder: whether to write a folder instead of a zip.
        emit: a key of `EMITS`.
        weights: `embed` for weights inside of libraries, otherwise in files.
        outputs: values of the model that become its outputs.
    """

    out: Path | None
    folder: bool
    emit: str
    weights: str
    outputs: tuple[str, ...]

    def path(self, model: str, flags: options.Flags) -> Path:
        """The path to write to: the given one, or one in the current folder named after the model."""
        return self.out or _default_out(model, self.emit, flags)

    def checked(self, out: Path, sources: Sequence[object]) -> Path:
        """The path as one file or a folder; what exists decides, if `emit` supports both.

        Raises:
            CompileError: OCC0605, it would replace something that occ did not write, or a source.
            RunError: OCC0605, an artifact would have the name of a model.
            click.UsageError: an artifact would have the name of a library.
        """
        from occ.compiler.driver.outputs import check_out
        from occ.runtime.artifact import check_name

        takes_both = self.emit in (*LINKED, "air", "om")
        several = self.folder or self.emit == "generator" or (takes_both and out.is_dir())
        place = check_out(out, sources, folder=several)
        if self.emit == "artifact":
            _check_end(out)
            check_name(out)
        return place


def _check_end(out: Path) -> None:
    """Refuse the end of another output of `--emit` for an artifact.

    Raises:
        click.UsageError: as said.
    """
    others = [emit for emit, (end, _) in EMITS.items() if end == out.suffix and end in (".a", ".so", ".air", ".om")]
    if others:
        raise click.UsageError(
            f"`{out.name}` is not a name of an artifact: add --emit {others[0]}, or write `{out.stem}.occ`"
        )


def _default_out(model: str, emit: str, flags: options.Flags) -> Path:
    stem, end = Path("model" if model == "-" else model).stem, EMITS[emit][0]
    if emit == "shared" and flags.target_options.get("halide.target", "").startswith("wasm"):
        end = ".wasm"
    if Path(stem + end).resolve() == Path(model).resolve():
        stem = f"{stem}-built"
    return Path(stem + end)


def write(compilation: Compilation, artifact: Artifact, place: Path, stem: str, how: Output) -> tuple[Path, str]:
    """Write an artifact as requested by `--emit`; returns the path and, for libraries, the link flags.

    Raises:
        click.UsageError: the target has no such output.
    """
    if how.emit in LINKED and compilation.native is not None and compilation.native.is_whole:
        return _write_program(compilation, artifact, place, stem, how)
    return _write(compilation, artifact, place, stem, how), ""


def _write_program(
    compilation: Compilation, artifact: Artifact, place: Path, stem: str, how: Output
) -> tuple[Path, str]:
    from occ.compiler.standalone.program import write_program

    assert compilation.native is not None
    embed, objects = how.weights == "embed", compilation.native.objects
    made = write_program(artifact, objects, place, stem, how.emit, embed=embed, cache=compilation.cache)
    return made.files[0], made.link


def compile_parts_of(compilation: Compilation, artifact: Artifact) -> Artifact:
    from occ.compiler.cache.cache import Cache
    from occ.compiler.codegen_cann.output.toolkit import compile_parts

    settings = compilation.settings
    return compile_parts(artifact, Cache(enabled=settings.cache), settings.jobs, settings.progress)


def _write(compilation: Compilation, artifact: Artifact, out: Path, stem: str, how: Output) -> Path:
    from occ.compiler.driver.compilation import unlinked

    emit = how.emit
    if emit == "shared" and compilation.native is not None:
        raise unlinked(artifact.manifest.machine)
    if emit == "artifact" or (emit == "om" and out.suffix == EMITS["artifact"][0] and artifact.manifest.parts):
        return artifact.save(out, folder=how.folder)
    if emit == "generator":
        from occ.compiler.standalone.generator import write_generator

        found = write_generator(artifact, out, stem)
    else:
        found = _files(compilation, artifact, out, emit)
        for path, data in found.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    if not found:
        have = (
            "an Ascend target"
            if emit in ("air", "om")
            else "`-t cpu -O2`"
            if emit == "generator"
            else "`-t cpu` and `-t cpu-jit`"
        )
        raise click.UsageError(f"target {compilation.target.name} does not support --emit {emit}; {have} would")
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
    """The single compiled part under the given name.

    Several in a folder, or one with the weights of its .air. Weights outside of an .om go into `weight`, as atc has it.
    """
    parts = artifact.manifest.parts
    members = sorted({n for p in parts for n in (p.om, *p.files, *p.weight_files)})
    if len(parts) == 1 and not parts[0].files and not artifact.manifest.cpu_subgraphs:
        beside = {out.parent / n.removeprefix("device/"): artifact.files[n] for n in parts[0].weight_files}
        return {out: artifact.files[parts[0].om], **beside}
    return {out / n.removeprefix("device/"): artifact.files[n] for n in members}
