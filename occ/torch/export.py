"""PyTorch modules to ONNX and to artifacts, by torch's own exporter."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from occ.compiler.frontend.torch_program import to_onnx
from occ.compiler.targets.default import DEFAULT
from occ.runtime.artifact import Artifact
from occ.torch.library import torch_module


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
    """Build an artifact from a module, which must compute as in `module.eval()`.

    Args:
        module: a `torch.nn.Module` in evaluation mode, or a `torch.export.ExportedProgram`.
        args: example inputs, in order.
        dynamic_shapes: as for `torch.export.export`; `torch.export.Dim("batch")` names a symbolic size.
        target: as for `occ.build`, like `out`, `options` and `rules`.
        out: where to write the artifact.
        kwargs: example inputs by name.
        options: of the target.
        rules: of users.

    Raises:
        ValueError: the module is in training mode, where layers such as dropout return different results each time.
            torch.onnx.OnnxExporterError: torch cannot export the module.
        CompileError: occ cannot compile it.
    """
    from occ.api import build

    torch = torch_module()
    if getattr(module, "training", False) and isinstance(module, torch.nn.Module):
        raise ValueError("the module is in training mode: call `module.eval()` first")

    return build(to_onnx(module, tuple(args), dynamic_shapes, kwargs), target, out, options=options, rules=rules)
