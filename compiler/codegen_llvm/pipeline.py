"""The pipeline of the target `cpu-jit`."""

from __future__ import annotations

from occ.compiler.codegen_llvm.tiles import TILE_ROWS
from occ.compiler.passes.fuse.fuse import Fuse
from occ.compiler.passes.layout.layout_weights import LayoutWeights
from occ.compiler.passes.layout.place_joins import PlaceJoins
from occ.compiler.passes.layout.use_joins import UseJoins
from occ.compiler.passes.layout.widen_weights import WidenWeights
from occ.compiler.passes.lower.generalize_sizes import GeneralizeSizes
from occ.compiler.passes.lower.lower_te import LowerTe
from occ.compiler.passes.lower.plan_memory import PlanMemory
from occ.compiler.passes.methods.int8.use_byte_products import UseByteProducts
from occ.compiler.passes.pipeline import Pipeline, on_codes, to_kernels
from occ.compiler.targets.native import NativeOptions


def cpu_jit(options: NativeOptions = NativeOptions()) -> Pipeline:
    """The pipeline of `cpu-jit`."""
    return {
        **on_codes(options),
        "fused": (*to_kernels(options), UseByteProducts(planes=True), UseJoins(strided=False), Fuse()),
        "layout": (WidenWeights(), LayoutWeights(products=True), PlaceJoins(strided=False)),
        "scheduled": (LowerTe(split=True), *((GeneralizeSizes(rows=TILE_ROWS[0]),) if options.level == "1" else ())),
        "lowered": (PlanMemory(),),
    }
