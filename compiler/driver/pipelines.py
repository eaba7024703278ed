"""Pipelines of the built-in targets, as starting points for targets of packages."""

from __future__ import annotations

from occ.compiler.codegen_cann.pipeline import ascend
from occ.compiler.codegen_halide.pipeline import cpu
from occ.compiler.codegen_interp.pipeline import interp
from occ.compiler.codegen_llvm.pipeline import cpu_jit
from occ.compiler.passes.pipeline import Pipeline

__all__ = ["Pipeline", "ascend", "cpu", "cpu_jit", "interp"]
