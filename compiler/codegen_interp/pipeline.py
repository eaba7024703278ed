"""The pipeline of the target `interp`."""

from __future__ import annotations

from occ.compiler.passes.fuse.use_kernels import UseKernels
from occ.compiler.passes.pipeline import Pipeline, on_codes
from occ.compiler.targets.native import InterpOptions


def interp(options: InterpOptions) -> Pipeline:
    """The pipeline of `interp`."""
    known = on_codes(options)
    return {**known, "canonical": (*known["canonical"], UseKernels(report=True))}
