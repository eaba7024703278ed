"""Programs of `torch.export` as ONNX models, by torch's own exporter.

A program is an `ExportedProgram`, or the `.pt2` file that `torch.export.save` writes. torch is only imported for
programs.
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from onnx import ModelProto, helper

from occ.compiler.diagnostics import error, shorten

SUFFIX = ".pt2"
_NORMALISATIONS = {"LayerNormalization", "GroupNormalization", "InstanceNormalization", "RMSNormalization"}
_TALKERS = (
    "torch.export",
    "torch._export.serde",
    "torch.onnx._internal.exporter",
    "torch.onnx._internal.exporter._registration",
    "torch.fx.experimental.symbolic_shapes",
)
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_SAFE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # environment variable with which torch.load only unpickles tensors


@runtime_checkable
class ExportedProgram(Protocol):
    """The result of `torch.export.export`."""

    graph_signature: Any
    range_constraints: Any

    def run_decompositions(self, decomp_table: Any = None) -> Any: ...


def is_program_file(source: object) -> bool:
    """Whether a source is the path of a program, ending in `.pt2`."""
    return isinstance(source, (str, os.PathLike)) and str(source).endswith(SUFFIX) and "\n" not in str(source)


def program_to_onnx(source: str | os.PathLike[str] | ExportedProgram) -> ModelProto:
    """The ONNX model of a program, named after its file.

    Raises:
        CompileError: OCC0101, OCC0102 the file cannot be read, or is not a program; OCC0110 torch cannot export it to
            ONNX; OCC0409 PyTorch or its exporter is not installed.
    """
    path = Path(source) if isinstance(source, (str, os.PathLike)) else None
    try:
        program = _loaded(path) if path is not None else source
        made = to_onnx(program, ())
    except ModuleNotFoundError as e:
        text = f"a program of torch.export needs `{e.name}`, which is not installed"
        raise error("OCC0409", text, help="pip install torch onnxscript") from None
    except (OSError, MemoryError, KeyboardInterrupt):
        raise
    except Exception as e:  # torch raises various exceptions
        if type(e).__name__ == "CompileError":
            raise
        help_ = "`torch.onnx.export(program, dynamo=True, report=True)` writes a report about it"
        text = f"torch cannot write the program as an ONNX model: {shorten(cause_of(e), 400)}"
        raise error("OCC0110", text, where=str(path or ""), help=help_) from e
    if path is not None:
        made.graph.name = path.stem
    return made


def _loaded(path: Path) -> Any:
    """The program of a file; pickles in it may only contain tensors."""
    try:
        with path.open("rb"):
            pass
    except OSError as e:
        raise error("OCC0101", f"`{path}` cannot be read: {e.strerror}") from None
    torch = import_module("torch")
    before = os.environ.get(_SAFE)
    os.environ[_SAFE] = "1"
    try:
        with quiet():
            return torch.export.load(path)
    except MemoryError:
        raise
    except Exception as e:
        help_ = (
            "write it with `torch.export.save(torch.export.export(module, args), 'model.pt2')`, and this release "
            "of torch"
        )
        text = f"`{path}` is not a program of torch.export that torch {torch.__version__} can read"
        raise error("OCC0102", text, notes=[shorten(cause_of(e), 300)], help=help_) from None
    finally:
        os.environ.pop(_SAFE) if before is None else os.environ.__setitem__(_SAFE, before)


def cause_of(e: BaseException) -> str:
    """The root cause of an exception in one line, without colours and torch's advice."""
    while e.__cause__ is not None:
        e = e.__cause__
    return f"{type(e).__name__}: {plain(e)}"


def plain(e: BaseException) -> str:
    """The first paragraph of a torch exception's message, in one line without colours."""
    return re.sub(r"\s+", " ", _COLOURS.sub("", str(e)).strip().split("\n\n")[0])


def to_onnx(
    module: Any, args: tuple[Any, ...], dynamic_shapes: Any = None, kwargs: Mapping[str, Any] | None = None
) -> ModelProto:
    """The ONNX model of a module or program; equal ones produce equal bytes."""
    torch = import_module("torch")

    with without_fast_path(), quiet():
        program: Any = torch.onnx.export(
            module, args, kwargs=dict(kwargs or {}), dynamic_shapes=dynamic_shapes, dynamo=True, verbose=False
        )
    model: ModelProto = program.model_proto
    for holder in (model, model.graph, *model.graph.node, *model.graph.value_info, *model.functions):
        del holder.metadata_props[:]  # source lines, which may differ for equal models
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for d in value.type.tensor_type.shape.dim:
            if d.dim_param.isdecimal():
                d.dim_value = int(d.dim_param)  # a size fixed by torch, with its number as a name
    _give_one_type(model)
    return model


def _give_one_type(model: ModelProto) -> None:
    """Make normalisations compute in the type of their scales, as torch does under autocast; ONNX has a single type."""
    values = (*model.graph.input, *model.graph.value_info)
    types = {v.name: v.type.tensor_type.elem_type for v in values} | {
        w.name: w.data_type for w in model.graph.initializer
    }
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for node in nodes:
        given, wanted = (types.get(n, 0) for n in (*node.input[:2], "")[:2])
        if node.op_type not in _NORMALISATIONS or not given or not wanted or given == wanted:
            model.graph.node.append(node)
            continue
        x, y = node.input[0], node.output[0]
        node.input[0], node.output[0] = f"{y}_wide_input", f"{y}_wide"
        model.graph.node.extend(
            [
                helper.make_node("Cast", [x], [node.input[0]], to=wanted),
                node,
                helper.make_node("Cast", [node.output[0]], [y], to=given),
            ]
        )


@contextmanager
def quiet() -> Generator[None]:
    """Suppress torch's messages about its own exporter while it works."""
    loggers = [logging.getLogger(name) for name in _TALKERS]
    before = [log.level for log in loggers]
    for log in loggers:
        log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(loggers, before, strict=True):
            log.setLevel(level)


@contextmanager
def without_fast_path() -> Generator[None]:
    """Transformer layers as ONNX operators, instead of one that only torch has."""
    torch = import_module("torch")

    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
