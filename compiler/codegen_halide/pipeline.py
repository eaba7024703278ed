"""The pipeline of the target `cpu`."""

from __future__ import annotations

from occ.compiler.codegen_halide.options import CpuOptions
from occ.compiler.passes.algorithms.pointwise_to_matmul import PointwiseToMatmul
from occ.compiler.passes.algorithms.split_groups import SplitGroups
from occ.compiler.passes.canonical.fold import Fold
from occ.compiler.passes.canonical.use_block_weights import UseBlockWeights
from occ.compiler.passes.fuse.fuse import Fuse
from occ.compiler.passes.layout.layout_activations import LayoutActivations
from occ.compiler.passes.layout.layout_weights import LayoutWeights
from occ.compiler.passes.layout.narrow_weights import NarrowWeights
from occ.compiler.passes.layout.place_joins import PlaceJoins
from occ.compiler.passes.layout.share_tied_weights import ShareTiedWeights
from occ.compiler.passes.layout.use_joins import UseJoins
from occ.compiler.passes.layout.widen_weights import WidenWeights
from occ.compiler.passes.lower.generalize_sizes import GeneralizeSizes
from occ.compiler.passes.lower.lower_te import LowerTe
from occ.compiler.passes.lower.plan_memory import PlanMemory
from occ.compiler.passes.lower.schedule import Schedule
from occ.compiler.passes.methods.attention.use_attention import UseAttention
from occ.compiler.passes.methods.block_products.use_block_products import UseBlockProducts
from occ.compiler.passes.methods.deform_conv.split_deform_conv import SplitDeformConv
from occ.compiler.passes.methods.int8.round_operands import RoundOperands
from occ.compiler.passes.methods.int8.use_byte_products import UseByteProducts
from occ.compiler.passes.methods.int8.use_code_tables import UseCodeTables
from occ.compiler.passes.methods.int8.widen_codes import WidenCodes
from occ.compiler.passes.methods.strassen.use_strassen import UseStrassen
from occ.compiler.passes.methods.winograd.use_winograd import UseWinograd
from occ.compiler.passes.pipeline import Pipeline, on_codes, to_kernels


def cpu(options: CpuOptions) -> Pipeline:
    """The pipeline of `cpu`."""
    winograd = options.winograd != "off" and options.level != "1"
    return {
        **on_codes(options, UseBlockWeights()),
        "fused": (
            *to_kernels(options),
            UseCodeTables(),
            Fold(),
            SplitDeformConv(),
            SplitGroups(),
            *((PointwiseToMatmul(),) if options.precision != "bf16" else ()),  # whose weights on the right are rounded
            *((UseWinograd(),) if winograd else ()),
            UseAttention(),
            *((RoundOperands(to=options.precision),) if options.precision != "f32" else ()),
            UseBlockProducts(rounded=options.precision == "int8"),
            UseByteProducts(winograd=winograd),
            *((UseStrassen(everywhere=options.strassen == "on"),) if options.strassen != "off" else ()),
            ShareTiedWeights(),
            UseJoins(),
            Fuse(lazy_transpose=True),
            WidenCodes(),
        ),
        "layout": (LayoutActivations(), NarrowWeights(), WidenWeights(), LayoutWeights(threes=True), PlaceJoins()),
        "scheduled": (
            LowerTe(),
            Schedule(
                options.schedule == "fallback",
                split_overlaps=options.sanitize == "thread",
                variants=options.level != "1",
            ),
            *((GeneralizeSizes(),) if options.level != "3" else ()),
        ),
        "lowered": (PlanMemory(),),
    }
