"""`occ dump`: a model at a stage of its compilation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from occ.cli import options
from occ.cli.console import progress, say
from occ.cli.passes import Looking, pass_options

if TYPE_CHECKING:
    from occ.compiler.driver.compilation import Compilation
    from occ.compiler.ir.module import Module
    from occ.compiler.target.target import Piece, Text


@click.command("dump")
@options.model
@click.option(
    "--stage",
    required=True,
    help="imported, inferred, canonical, fused, layout, scheduled, lowered; then halide (cpu), llvm (cpu-jit), ge and atc (ascend*).",
)
@options.target
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), help="File to write; large weights go to OUT.weights beside it."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "onnx", "cpp"]),
    default="text",
    show_default=True,
    help="Text; JSON; onnx, for viewers and other runtimes, up to stage layout and of ge; cpp of ge.",
)
@click.option(
    "--weights",
    type=click.Choice(["full", "names", "none"]),
    default="full",
    show_default=True,
    help="Lines of weights, after the functions: what a build needs; their types alone; or no such lines.",
)
@options.compile_options
@pass_options
def command(
    model: str,
    stage: str,
    target: str,
    out: Path | None,
    form: str,
    weights: str,
    flags: options.Flags,
    looking: Looking,
) -> None:
    """Print MODEL at a stage. Text of every stage up to `lowered` can be built, dumped and run again, with its weights.

    On standard output the text refers to its large weights in the build cache; with -o they lie beside the file.
    """
    from occ.compiler.driver.compilation import Compilation
    from occ.compiler.driver.outputs import check_not_read

    if out is not None:
        check_not_read(out, [model])
    validator = looking.validator(flags.sizes)
    with progress() as tell:
        settings = flags.settings(target, progress=tell, **looking.settings(validator))
        compilation = Compilation(options.source_of(model), settings)
        text = _text(compilation, stage, form, weights, out)
    looking.report(compilation.manager.ran, compilation.phases)
    if validator is not None:
        say(validator.summary)
    if out is None or form in ("onnx", "cpp"):
        click.echo(text, nl=False)
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text)


def _text(compilation: Compilation, stage: str, form: str, weights: str, out: Path | None) -> str:
    own = compilation.target.texts.get(stage)
    if own is not None:
        return _own(compilation, own, stage, form, out)
    if form == "cpp":
        raise click.UsageError("--format cpp is for the stage ge of Ascend targets")
    if form == "onnx":
        return _onnx(compilation, stage, out)
    m = compilation.advance(stage)
    if form == "json":
        return _json(m)
    if weights == "full":
        return module_with_weights(m, out)
    from occ.compiler.ir.printer import module_text

    return module_text(m, weights="names" if weights == "names" else "none")


def _own(compilation: Compilation, own: Text, stage: str, form: str, out: Path | None) -> str:
    """A dump that is the target's own; what comes in pieces is written, and the names of the files are the text."""
    if form not in own.formats:
        raise click.UsageError(f"--format {form} is not for the stage {stage}, which has {', '.join(own.formats)}")
    shown = own.show(compilation, compilation.advance(compilation.last_stage), form)
    if isinstance(shown, str):
        return shown
    if out is not None:
        return _written(shown, out, f".{form}")
    texts = [p.content for p in shown if isinstance(p.content, str)]
    if len(texts) < len(shown):
        raise click.UsageError(f"--format {form} writes files: say where with -o")
    return "\n".join(texts)


def _written(pieces: Sequence[Piece], out: Path, suffix: str) -> str:
    """Write pieces, and what they refer to beside them: one to the file that was asked for, several to files named after them."""
    out.parent.mkdir(parents=True, exist_ok=True)
    alone = len(pieces) == 1
    paths = [out if alone else out.with_name(f"{out.stem}.{p.name}{out.suffix or suffix}") for p in pieces]
    for p, path in zip(pieces, paths, strict=True):
        path.write_bytes(p.content.encode() if isinstance(p.content, str) else p.content)
        for name, data in p.beside.items():
            path.with_name(name).write_bytes(data)
    return "\n".join(map(str, paths)) + "\n"


def _onnx(compilation: Compilation, stage: str, out: Path | None) -> str:
    """Write the module as an ONNX model; gives what is left to print, which is nothing."""
    from occ.compiler.frontend.export import export

    data = export(compilation.advance(stage)).SerializeToString()
    if out is None:
        click.get_binary_stream("stdout").write(data)  # pyright: ignore[reportCallIssue]
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(data)
    return ""


def module_with_weights(m: Module, out: Path | None) -> str:
    """The text of a module, its large weights written to a file that the text names."""
    from occ.compiler.cache.cache import Cache, digest
    from occ.compiler.ir.printer import module_text, weight_bytes, weight_offsets

    if not weight_offsets(m):
        return module_text(m, weights="last")
    if out is not None:
        file = out.with_name(out.name + ".weights")
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "wb") as f:
            for piece in weight_bytes(m):
                f.write(piece)
        return module_text(m, file.name, weights="last")
    key = digest(bytes(p) for p in weight_bytes(m))
    cache = Cache()
    if not cache.has("weights", key, ".bin"):
        cache.put("weights", key, b"".join(bytes(p) for p in weight_bytes(m)), ".bin")
    return module_text(m, str(cache.path("weights", key, ".bin").absolute()), weights="last")


def _json(m: Module) -> str:
    from occ.compiler.ir.printer import attr_text, te_text

    ops = [
        {
            "op": op.name, "operands": [None if v is None else v.name for v in op.operands],
            "results": [{"name": r.name, "type": None if r.type is None else str(r.type)} for r in op.results],
            "attrs": {k: attr_text(v) for k, v in op.attrs.items()}, "nodes": list(op.loc.nodes),
        }
        for op in m.walk()
    ]  # fmt: skip
    record = {
        "name": m.name, "stage": m.stage, "target": m.target,
        "inputs": [{"name": a.name, "type": str(a.type)} for a in m.main.args], "outputs": m.main.result_names,
        "weights": {n: str(w.type) for n, w in m.weights.items()}, "ops": ops,
        "te": {n: te_text(f) for n, f in m.te.items()},
    }  # fmt: skip
    return json.dumps(record, indent=1) + "\n"
