"""`occ.dump`: a model at a stage of its compilation, as text, JSON, ONNX or a drawing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from occ.api import Shapes, settings_of
from occ.compiler.diagnostics import error
from occ.compiler.targets.default import DEFAULT

if TYPE_CHECKING:
    from occ.compiler.driver.compilation import Compilation
    from occ.compiler.driver.source import Source
    from occ.compiler.ir.module import Module
    from occ.compiler.targets.target import Piece, Text

FORMATS = ("text", "json", "onnx", "cpp", "dot", "mermaid")


def dump(
    model: Source,
    stage: str,
    target: str = DEFAULT,
    *,
    format: str = "text",  # noqa: A002 - as the option is called
    weights: str = "full",
    out: str | Path | None = None,
    shapes: Shapes | None = None,
    dims: Mapping[str, int] | None = None,
    options: Mapping[str, Any] | None = None,
    rules: Sequence[Any] = (),
) -> str | bytes:
    """A model at a stage, as `occ dump` prints it; other arguments as for `occ.compile`.

    Args:
        model: as for `occ.compile`.
        stage: `imported` to `lowered`, or a stage of the target's own, such as `halide`.
        target: the target to compile for.
        format: one of `FORMATS`; `dot` and `mermaid` draw the graph.
        weights: `full`, `names` or `none`: how much of them the text includes.
        out: a file to write, with large weights next to it; the text is returned as well, except for `onnx`.

    Returns:
        Text, or the bytes of an ONNX model.

    Raises:
        CompileError: the model cannot be compiled; or OCC0602, OCC0603 there is no such stage or format; OCC0605 `out`
            must not be overwritten.
    """
    from occ.compiler.driver.compilation import Compilation
    from occ.compiler.driver.outputs import check_out

    compilation = Compilation(model, settings_of(target, shapes, dims, options, rules=rules))
    place = None if out is None else check_out(Path(out), [model])
    made = stage_dump(compilation, stage, format, weights, place)
    if place is not None and isinstance(made, str) and format not in ("onnx", "cpp"):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(made)
    return made


def stage_dump(
    compilation: Compilation, stage: str, form: str = "text", weights: str = "full", out: Path | None = None
) -> str | bytes:
    """The output of `occ dump`; large weights and pieces are at `out`, or in the build cache.

    Arguments as for `dump`.
    """
    own = compilation.target.texts.get(stage)
    if own is not None:
        return _own(compilation, own, stage, form, out)
    if form == "cpp":
        raise error("OCC0603", "the format `cpp` is for the stage `ge` of Ascend targets")
    if form == "onnx":
        return _onnx(compilation, stage, out)
    if form not in FORMATS:
        raise error("OCC0603", f"there is no format `{form}`", help=f"formats: {', '.join(FORMATS)}")
    m = compilation.advance(stage)
    if form in ("dot", "mermaid"):
        from occ.analysis.drawing import drawing

        return drawing(m, form)
    if form == "json":
        return _json(m)
    if weights == "full":
        return module_with_weights(m, out)
    from occ.compiler.ir.printer import module_text

    return module_text(m, weights="names" if weights == "names" else "none")


def _own(compilation: Compilation, own: Text, stage: str, form: str, out: Path | None) -> str:
    """A target-specific dump.

    Pieces are written to files, whose names are the returned text.
    """
    if form not in own.formats:
        raise error(
            "OCC0603", f"the format `{form}` is not for the stage `{stage}`, which has {', '.join(own.formats)}"
        )
    shown = own.show(compilation, compilation.finished(), form)
    if isinstance(shown, str):
        return shown
    if out is not None:
        return _written(shown, out, f".{form}")
    texts = [p.content for p in shown if isinstance(p.content, str)]
    if len(texts) < len(shown):
        raise error("OCC0603", f"the format `{form}` writes files", help="set the folder with -o")
    return "\n".join(texts)


def _written(pieces: Sequence[Piece], out: Path, suffix: str) -> str:
    """Write pieces: one to the requested file, several to files named after them.

    Referenced files are written next to them.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    alone = len(pieces) == 1
    paths = [out if alone else out.with_name(f"{out.stem}.{p.name}{out.suffix or suffix}") for p in pieces]
    for p, path in zip(pieces, paths, strict=True):
        path.write_bytes(p.content.encode() if isinstance(p.content, str) else p.content)
        for name, data in p.beside.items():
            path.with_name(name).write_bytes(data)
    return "\n".join(map(str, paths)) + "\n"


def _onnx(compilation: Compilation, stage: str, out: Path | None) -> str | bytes:
    """The module as an ONNX model; empty if it is written to a file."""
    from occ.compiler.frontend.export import export

    data = export(compilation.advance(stage)).SerializeToString()
    if out is None:
        return data
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(data)
    return ""


def module_with_weights(m: Module, out: Path | None) -> str:
    """The text of a module, with its large weights written to a file that it references."""
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
    from occ.compiler.ir.printer import attr_text
    from occ.compiler.ir.te.printer import te_text

    ops = [
        {
            "op": op.name,
            "operands": [None if v is None else v.name for v in op.operands],
            "results": [{"name": r.name, "type": None if r.type is None else str(r.type)} for r in op.results],
            "attrs": {k: attr_text(v) for k, v in op.attrs.items()},
            "nodes": list(op.loc.nodes),
        }
        for op in m.walk()
    ]
    record = {
        "name": m.name, "stage": m.stage, "target": m.target,
        "inputs": [{"name": a.name, "type": str(a.type)} for a in m.main.args], "outputs": m.main.result_names,
        "weights": {n: str(w.type) for n, w in m.weights.items()}, "ops": ops,
        "te": {n: te_text(f) for n, f in m.te.items()},
    }  # fmt: skip
    return json.dumps(record, indent=1) + "\n"
