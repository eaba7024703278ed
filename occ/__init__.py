"""occ compiles ONNX models to native CPU code through Halide, and shows its work at every stage.

`compile` a model and call it; `build` an artifact; `load` one. The compiler itself is `occ.compiler`, and `occ.runtime`
runs an artifact without it. Nothing of either is imported before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str

    from occ import backend, onnxruntime, torch
    from occ.analysis.bench import bench
    from occ.analysis.diff import diff
    from occ.analysis.dump import dump
    from occ.analysis.extract import extract
    from occ.analysis.inspect import inspect
    from occ.analysis.report import report
    from occ.api import build, capability, compile, targets  # noqa: A004
    from occ.compiler.diagnostics import CompileError
    from occ.compiler.frontend.kernels import te_kernel
    from occ.compiler.ir.operator.custom import c_kernel, halide_kernel, operator
    from occ.compiler.passes.base import Pass
    from occ.compiler.passes.rules.declare import fusion, rewrite
    from occ.compiler.targets.target import Target
    from occ.generation.embedding import EmbeddingModel, Reranker, embed, rerank
    from occ.generation.model_kinds import LanguageModel
    from occ.generation.transcriber import Transcriber, transcribe
    from occ.loading import load
    from occ.quantization.quantize import quantize
    from occ.runtime.acl.tensor import DeviceTensor
    from occ.runtime.artifact import Artifact
    from occ.runtime.errors import RunError
    from occ.runtime.run_queue import RunQueue

_NAMES = {  # names by the module that defines them, imported on first use
    "occ.analysis.bench": "bench",
    "occ.analysis.diff": "diff",
    "occ.analysis.dump": "dump",
    "occ.analysis.extract": "extract",
    "occ.analysis.inspect": "inspect",
    "occ.analysis.report": "report",
    "occ.api": "compile build targets capability",
    "occ.compiler.diagnostics": "CompileError",
    "occ.compiler.frontend.kernels": "te_kernel",
    "occ.compiler.ir.operator.custom": "operator c_kernel halide_kernel",
    "occ.compiler.passes.base": "Pass",
    "occ.compiler.passes.rules.declare": "fusion rewrite",
    "occ.compiler.targets.target": "Target",
    "occ.generation.embedding": "EmbeddingModel Reranker embed rerank",
    "occ.generation.model_kinds": "LanguageModel",
    "occ.generation.transcriber": "Transcriber transcribe",
    "occ.loading": "load",
    "occ.quantization.quantize": "quantize",
    "occ.runtime.acl.tensor": "DeviceTensor",
    "occ.runtime.artifact": "Artifact",
    "occ.runtime.errors": "RunError",
    "occ.runtime.run_queue": "RunQueue",
}
_WHERE = {name: module for module, names in _NAMES.items() for name in names.split()}

_MODULES = ("backend", "onnxruntime", "torch")

__all__ = [
    "Artifact", "CompileError", "DeviceTensor", "EmbeddingModel", "LanguageModel", "Pass", "Reranker", "RunError",
    "RunQueue", "Target", "Transcriber", "__version__", "backend", "bench", "build", "c_kernel", "capability",
    "compile", "diff", "dump", "embed", "extract", "fusion", "halide_kernel", "inspect", "load", "onnxruntime",
    "operator", "quantize", "report", "rerank", "rewrite", "targets", "te_kernel", "torch", "transcribe",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"occ.{name}")
    if name == "__version__":
        return import_module("occ.runtime.version").occ_version()
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'occ' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
