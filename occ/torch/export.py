"""PyTorch modules to ONNX and to artifacts, by torch's own exporter."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from onnx import ModelProto, helper

from occ.compiler.targets.default import DEFAULT
from occ.runtime.artifact import Artifact
from occ.torch.library import torch_module

_NORMALISATIONS = {"LayerNormalization", "GroupNormalization", "InstanceNormalization", "RMSNormalization"}
_TALKERS = (
    "torch.onnx._internal.exporter",
    "torch.onnx._internal.exporter._registration",
    "torch.fx.experimental.symbolic_shapes",
)


def export(
    module: Any,
    args: Sequence[Any],
    dynamic_shapes: Any = None,
    *,
    target: str = DEFAULT,
    out: str | os.PathLike[str] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    rules: Sequence[Any] = (),
) -> Artifact:
    """Build an artifact from a module, which is to compute as in `module.eval()`.

    Args:
        module: a `torch.nn.Module` in evaluation mode, or a `torch.export.ExportedProgram`.
        args: example inputs, in order.
        dynamic_shapes: as `torch.export.export` takes them; `torch.export.Dim("batch")` names a symbolic size.
        target: as `occ.build` takes, like `out`, `options` and `rules`.
        out: where to write the artifact.
        kwargs: example inputs by name.
        options: of the target.
        rules: of users.

    Raises:
        ValueError: the module is in training mode, where layers such as dropout give other results each time.
        torch.onnx.OnnxExporterError: torch cannot export the module.
        CompileError: occ cannot compile it.
    """
    from occ.api import build

    if getattr(module, "training", False) and isinstance(module, torch_module().nn.Module):
        raise ValueError("the module is in training mode: call `module.eval()` first")

    return build(to_onnx(module, tuple(args), dynamic_shapes, kwargs), target, out, options=options, rules=rules)


def to_onnx(
    module: Any, args: tuple[Any, ...], dynamic_shapes: Any = None, kwargs: Mapping[str, Any] | None = None
) -> ModelProto:
    """The ONNX model of a module; equal modules give equal bytes."""
    torch = torch_module()

    with without_fast_path(), quiet():
        program: Any = torch.onnx.export(
            module, args, kwargs=dict(kwargs or {}), dynamic_shapes=dynamic_shapes, dynamo=True, verbose=False
        )
    model: ModelProto = program.model_proto
    for holder in (model, model.graph, *model.graph.node, *model.graph.value_info, *model.functions):
        del holder.metadata_props[:]  # lines of sources, which differ where the model does not
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for d in value.type.tensor_type.shape.dim:
            if d.dim_param.isdecimal():
                d.dim_value = int(d.dim_param)  # a size that torch has fixed, under its number as a name
    _give_one_type(model)
    return model


def _give_one_type(model: ModelProto) -> None:
    """Let normalisations compute in the type of their scales, as torch does under autocast; ONNX has one type for both."""
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
                helper.make_node("Cast", [x], [node.input[0]], to=wanted), node,
                helper.make_node("Cast", [node.output[0]], [y], to=given),
            ]
        )  # fmt: skip


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
    """Transformer layers as operators that ONNX has, instead of one that only torch has."""
    torch = torch_module()

    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
