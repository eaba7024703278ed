"""All schedule rules for CPUs, in order: normalisers, rules, variants, finishers (`apply.py` has the loops)."""

from __future__ import annotations

from occ.compiler.passes.rules.schedule_rule import ScheduleRule
from occ.compiler.passes.schedule.attention import attention, clamp_attention
from occ.compiler.passes.schedule.block_products import block_product
from occ.compiler.passes.schedule.clamp import clamp_rows
from occ.compiler.passes.schedule.depthwise import depthwise_planes
from occ.compiler.passes.schedule.elementwise import elementwise
from occ.compiler.passes.schedule.fallback import FALLBACK
from occ.compiler.passes.schedule.few import skinny_gemm
from occ.compiler.passes.schedule.few_queries import decode_attention, few_queries
from occ.compiler.passes.schedule.folds import sequential_folds
from occ.compiler.passes.schedule.in_vectors import vector_reduction
from occ.compiler.passes.schedule.long_sums import long_sums
from occ.compiler.passes.schedule.panels import pack_rhs
from occ.compiler.passes.schedule.planes import planar_window
from occ.compiler.passes.schedule.product import packed_contraction
from occ.compiler.passes.schedule.resample import resample
from occ.compiler.passes.schedule.rfactor import rfactor
from occ.compiler.passes.schedule.rows import fused_rows
from occ.compiler.passes.schedule.samples import deform_conv
from occ.compiler.passes.schedule.separable_windows import separable_windows
from occ.compiler.passes.schedule.separate_reductions import separate_reductions
from occ.compiler.passes.schedule.split_argmax import split_argmax
from occ.compiler.passes.schedule.strassen import strassen
from occ.compiler.passes.schedule.transposed import transpose_tiles
from occ.compiler.passes.schedule.wide import full_tile_planes, full_tile_rows
from occ.compiler.passes.schedule.widen import widen_f16
from occ.compiler.passes.schedule.window import window
from occ.compiler.passes.schedule.winograd import winograd

NORMALISERS = tuple(
    map(
        ScheduleRule.of,
        (separate_reductions, split_argmax, pack_rhs, separable_windows, rfactor, widen_f16, clamp_attention),
    )
)
# Those for whole functions first: methods, and stages over the same rows. The last one always applies.
RULES = (
    *(
        ScheduleRule.of(r, whole=True)
        for r in (block_product, decode_attention, winograd, strassen, attention, deform_conv, fused_rows)
    ),
    *map(
        ScheduleRule.of,
        (
            sequential_folds,
            depthwise_planes,
            packed_contraction,
            planar_window,
            window,
            resample,
            transpose_tiles,
            elementwise,
            vector_reduction,
        ),
    ),
    FALLBACK,
)
VARIANTS = tuple(map(ScheduleRule.of, (few_queries, skinny_gemm, full_tile_planes, full_tile_rows)))
FINISHERS = tuple(map(ScheduleRule.of, (clamp_rows, long_sums)))
NAMES = tuple(r.name for r in (*NORMALISERS, *RULES, *VARIANTS, *FINISHERS))
