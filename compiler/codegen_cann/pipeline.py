"""The pipeline of Ascend targets."""

from __future__ import annotations

from occ.compiler.codegen_cann.mapping.chip import HALF_RESULTS
from occ.compiler.codegen_cann.options import AscendOptions
from occ.compiler.codegen_cann.verdicts import kernels_of
from occ.compiler.passes.canonical.apply_rewrites import ApplyRewrites
from occ.compiler.passes.canonical.cast_ports import CastPorts
from occ.compiler.passes.canonical.dce import Dce
from occ.compiler.passes.canonical.fold_empty import FoldEmpty
from occ.compiler.passes.canonical.use_block_weights import UseBlockWeights
from occ.compiler.passes.canonical.use_integers import UseIntegers
from occ.compiler.passes.fuse.expand import Expand
from occ.compiler.passes.pipeline import Pipeline, canonical, inferred


def ascend(options: AscendOptions) -> Pipeline:
    """The pipeline of Ascend targets, whose operators take codes and scales as in the model."""
    integers = (UseIntegers(),) if options.qdq == "integer" else ()
    ports = CastPorts(getattr(options, "input_fp16_nodes", ""), getattr(options, "output_type", ""))
    return {
        "inferred": (*inferred(sizes=False), *((ports,) if ports != CastPorts() else ())),
        "canonical": canonical(UseBlockWeights(columns=_has_column_scales(options)), *integers),
        "fused": (ApplyRewrites("fused"), Expand(), FoldEmpty(), Dce()),
    }


def _has_column_scales(options: AscendOptions) -> bool:
    """Whether half-precision products with INT8 weights that have a scale per column are one kernel."""
    if options.precision not in HALF_RESULTS:
        return False
    kernel = "WeightQuantBatchMatmulV2", "INT8", 1, options.precision
    return kernels_of(options).unit_for(*kernel, dynamic=bool(options.dynamic_ranges)) == "AI Core"
