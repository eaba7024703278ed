"""All schedule rules for CPUs, in order: normalisers, rules, variants, finishers (`apply.py` has the loops)."""

from __future__ import annotations

from occ.compiler.passes.methods.attention.decode_attention import decode_attention, decode_variant
from occ.compiler.passes.methods.attention.schedule import attention, clamp_attention
from occ.compiler.passes.methods.block_products.schedule import block_product
from occ.compiler.passes.methods.deform_conv.schedule import deform_conv
from occ.compiler.passes.methods.strassen.schedule import strassen
from occ.compiler.passes.methods.winograd.schedule import winograd
from occ.compiler.passes.rules.schedule_rule import ScheduleRule
from occ.compiler.passes.schedule.finish.clamp_rows import clamp_rows
from occ.compiler.passes.schedule.finish.long_sums import long_sums
from occ.compiler.passes.schedule.normalise.pack_rhs import pack_rhs
from occ.compiler.passes.schedule.normalise.rfactor import rfactor
from occ.compiler.passes.schedule.normalise.separable_windows import separable_windows
from occ.compiler.passes.schedule.normalise.separate_positions import separate_positions
from occ.compiler.passes.schedule.normalise.separate_reductions import separate_reductions
from occ.compiler.passes.schedule.normalise.split_argmax import split_argmax
from occ.compiler.passes.schedule.normalise.squared_distances import squared_distances
from occ.compiler.passes.schedule.normalise.widen_f16 import widen_f16
from occ.compiler.passes.schedule.rules.depthwise_planes import depthwise_planes
from occ.compiler.passes.schedule.rules.elementwise import elementwise
from occ.compiler.passes.schedule.rules.fallback import FALLBACK
from occ.compiler.passes.schedule.rules.fused_rows import fused_rows
from occ.compiler.passes.schedule.rules.gathered_elements import gathered_elements
from occ.compiler.passes.schedule.rules.packed_contraction import packed_contraction
from occ.compiler.passes.schedule.rules.planar_window import planar_window
from occ.compiler.passes.schedule.rules.prefix_blocks import prefix_blocks
from occ.compiler.passes.schedule.rules.repeated_rows import repeated_rows
from occ.compiler.passes.schedule.rules.resample import resample
from occ.compiler.passes.schedule.rules.running_columns import running_columns
from occ.compiler.passes.schedule.rules.scattered_rows import scattered_rows
from occ.compiler.passes.schedule.rules.sequential_folds import sequential_folds
from occ.compiler.passes.schedule.rules.tile_products import tile_products
from occ.compiler.passes.schedule.rules.transpose_tiles import transpose_tiles
from occ.compiler.passes.schedule.rules.vector_folds import vector_folds
from occ.compiler.passes.schedule.rules.vector_reduction import vector_reduction
from occ.compiler.passes.schedule.rules.window import window
from occ.compiler.passes.schedule.variants.full_squares import full_squares
from occ.compiler.passes.schedule.variants.full_tiles import full_tile_planes, full_tile_rows, full_vectors
from occ.compiler.passes.schedule.variants.skinny_gemm import skinny_gemm
from occ.compiler.passes.schedule.variants.tile_rows import tile_rows

NORMALISERS = tuple(
    map(
        ScheduleRule.of,
        (
            separate_reductions,
            split_argmax,
            separate_positions,
            squared_distances,
            pack_rhs,
            separable_windows,
            rfactor,
            widen_f16,
            clamp_attention,
        ),
    )
)
# Rules for whole functions first: methods. The last one always applies.
RULES = (
    *(
        ScheduleRule.of(r, whole=True)
        for r in (block_product, decode_attention, winograd, strassen, attention, deform_conv)
    ),
    *map(
        ScheduleRule.of,
        (
            fused_rows,
            prefix_blocks,
            sequential_folds,
            vector_folds,
            depthwise_planes,
            tile_products,
            packed_contraction,
            planar_window,
            window,
            resample,
            transpose_tiles,
            gathered_elements,
            repeated_rows,
            elementwise,
            vector_reduction,
            running_columns,
            scattered_rows,
        ),
    ),
    FALLBACK,
)
VARIANTS = tuple(
    map(
        ScheduleRule.of,
        (decode_variant, tile_rows, skinny_gemm, full_tile_planes, full_tile_rows, full_vectors, full_squares),
    )
)
# Cheap to compile, and without them rows of symbolic length have no vectors.
BRIEF_VARIANTS = (ScheduleRule.of(full_tile_planes),)
FINISHERS = tuple(map(ScheduleRule.of, (clamp_rows, long_sums)))
NAMES = tuple(r.name for r in (*NORMALISERS, *RULES, *VARIANTS, *FINISHERS))
