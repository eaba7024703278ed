"""Model sources: paths, bytes, `.occ` text, ONNX messages or modules."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from typing import Any, cast

from onnx import ModelProto

from occ.compiler.diagnostics import error
from occ.compiler.frontend.onnx import import_model
from occ.compiler.frontend.signature import Overrides
from occ.compiler.frontend.torch_program import ExportedProgram, is_program_file, program_to_onnx
from occ.compiler.ir.module import Module
from occ.compiler.ir.operator.registry import Registry
from occ.compiler.ir.printer import module_text, weight_offsets
from occ.compiler.ir.stages import BY_NAME
from occ.compiler.ir.verify import problems
from occ.compiler.ir.verify_plan import plan_problems

# A path may also be a program of torch.export; programs themselves are converted by `in_onnx`.
Source = str | os.PathLike[str] | bytes | ModelProto | Module


def in_onnx(source: Source | ExportedProgram) -> Source:
    """A torch.export program, or its file, as an ONNX model; any other source unchanged.

    Raises:
        CompileError: as `program_to_onnx`. TypeError: it is not a model.
    """
    if is_program_file(source):
        return program_to_onnx(cast(str, source))
    if isinstance(source, (str, os.PathLike, bytes, ModelProto, Module)):
        return source
    if isinstance(source, ExportedProgram):
        return program_to_onnx(source)
    is_module = callable(getattr(source, "state_dict", None))
    help_ = ": `torch.export.export(module, args)` makes a program, which is" if is_module else ""
    raise TypeError(f"{type(source).__name__} is not a model{help_}")


def load_module(source: Source, overrides: Overrides | None = None, registry: Registry | None = None) -> Module:
    """The module of a model: an `.onnx` or `.occ` file, bytes or text of either, or a message.

    Args:
        source: the model, or a `.pt2` file of torch.export; a module is returned unchanged.
        overrides: extents fixed by the user.
        registry: the available operators; the built-in ones if None.

    Raises:
        CompileError: it cannot be read, with every problem found; OCC0603 extra outputs or other shapes are requested
            of a source that is not ONNX.
    """
    if overrides is not None and overrides.outputs and is_text(source):
        raise error("OCC0603", "--outputs needs an ONNX model: a text has its outputs already", help="edit its `yield`")
    if isinstance(source, Module):
        return source
    if is_program_file(source):
        made = import_model(cast(ModelProto, in_onnx(source)), overrides, registry)
        made.files = (Path(cast(str, source)),)
        return made
    if isinstance(source, (bytes, ModelProto)):
        return import_model(source, overrides, registry)
    if not is_text(source):
        return import_model(Path(os.fspath(source)), overrides, registry)
    m = _read(source, registry)
    _check_extents(m, overrides or Overrides())
    return m


def _read(source: str | os.PathLike[str], registry: Registry | None) -> Module:
    if isinstance(source, str) and _is_inline(source):
        return parsed(source, registry)
    return _read_text(Path(os.fspath(source)), registry)


def _check_extents(m: Module, asked: Overrides) -> None:
    """Reject extents for a text, which has its own, except those of a run's inputs.

    Raises:
        CompileError: OCC0603.
    """
    help_ = "set them with `occ dump` or `occ build` and the .onnx file"
    if asked.shapes or asked.bounds or (asked.dims and not asked.running):
        message = "--shape and --dim need an ONNX model: a text has its extents already"
        raise error("OCC0603", message, help=help_)
    labels = [s.label for s in m.symbols.values()]
    if stray := [n for n in asked.dims if n not in labels]:
        known = f"its dims: {', '.join(labels)}" if labels else "all its sizes are fixed"
        raise error("OCC0603", f"the text has no symbolic dim `{stray[0]}`", help=known)


def _is_inline(source: str) -> bool:
    """Whether a string is itself a text rather than a path, such as `module.onnx`."""
    return "\n" in source or "{" in source


def is_text(source: Source) -> bool:
    """Whether a source is IR rather than ONNX."""
    if isinstance(source, (bytes, ModelProto)):
        return False
    return (
        isinstance(source, Module) or (isinstance(source, str) and _is_inline(source)) or Path(source).suffix == ".occ"
    )


def _read_text(path: Path, registry: Registry | None) -> Module:
    try:
        data = path.read_bytes()
    except OSError as e:
        raise error("OCC0101", f"`{path}` cannot be read: {e.strerror}") from None
    if data[:2] == b"PK":
        raise error(
            "OCC0601", f"`{path}` is an artifact, not a model", help="`occ run` and `occ inspect` take artifacts"
        )
    try:
        return parsed(data.decode("utf-8"), registry, path=path)
    except UnicodeDecodeError:
        raise error("OCC0601", f"`{path}` is not text", help="only .onnx files and .occ texts are models") from None


def parsed(text: str, registry: Registry | None = None, **how: Any) -> Module:
    """The module of a text, as `frontend.text.parse`."""
    from occ.compiler.frontend.text import parse  # models usually are ONNX: the parser is loaded only for text

    m, where = parse(text, registry, **how), str(how.get("path") or "<text>")
    if "main" not in m.funcs:
        raise error("OCC0601", "there is no function @main", where=where)
    stage = BY_NAME.get(m.stage)
    if stage is None:
        raise error("OCC0602", f"`{m.stage}` is not a stage", help=f"stages: {', '.join(BY_NAME)}")
    # Not all invariants of a stage: the output in the middle of the passes to the next one can be read too.
    wrong = chain(problems(m, types=stage.typed), plan_problems(m) if m.stage == "lowered" else ())
    if found := list(islice(wrong, 8)):
        raise error(
            "OCC0601",
            f"the text is not a module of stage `{m.stage}`",
            where=where,
            notes=found,
            help="the text of a later stage must stay consistent: edit an earlier stage, or fix what the notes report",
        )
    return m


def name_of(source: Source, m: Module) -> str:
    """How messages name a model: its path, or its own name."""
    return str(source) if isinstance(source, (str, os.PathLike)) and "\n" not in str(source) else m.name


def recipe(source: Source) -> Callable[[], Source]:
    """Provides the source repeatedly, although compiling changes modules."""
    if not isinstance(source, Module):
        return lambda: source
    text, data = module_text(source), [source.weights[n].data for n in weight_offsets(source)]
    return lambda: parsed(text, source.registry, weights=data)
