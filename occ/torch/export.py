"""PyTorch modules to ONNX and to artifacts, by torch's own exporter."""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from onnx import ModelProto

from occ.runtime.artifact import Artifact
from occ.torch.library import torch_module


def export(
    module: Any,
    args: Sequence[Any],
    dynamic_shapes: Any = None,
    *,
    target: str = "cpu",
    out: str | os.PathLike[str] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    rules: Sequence[Any] = (),
) -> Artifact:
    """Build an artifact from a module, in the mode that it is in: call `module.eval()` first.

    Args:
        module: a `torch.nn.Module`, or a `torch.export.ExportedProgram`.
        args: example inputs, in order.
        dynamic_shapes: as `torch.export.export` takes them; `torch.export.Dim("batch")` names a symbolic size.
        target: as `occ.build` takes, like `out`, `options` and `rules`.
        out: where to write the artifact.
        kwargs: example inputs by name.
        options: of the target.
        rules: of users.

    Raises:
        torch.onnx.OnnxExporterError: torch cannot export the module.
        CompileError: occ cannot compile it.
    """
    from occ.api import build

    return build(to_onnx(module, tuple(args), dynamic_shapes, kwargs), target, out, options=options, rules=rules)


def to_onnx(
    module: Any, args: tuple[Any, ...], dynamic_shapes: Any = None, kwargs: Mapping[str, Any] | None = None
) -> ModelProto:
    """The ONNX model of a module; equal modules give equal bytes."""
    torch = torch_module()

    with without_fast_path(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
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
    return model


@contextmanager
def without_fast_path() -> Generator[None]:
    """Transformer layers as operators that ONNX has, in the place of one that only torch has."""
    torch = torch_module()

    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
