"""The passes of occ by name, and the pipelines that texts name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields

from occ.compiler.diagnostics import error
from occ.compiler.passes.algorithms.grow_caches import GrowCaches
from occ.compiler.passes.algorithms.pointwise_to_matmul import PointwiseToMatmul
from occ.compiler.passes.algorithms.quantize_caches import QuantizeCaches
from occ.compiler.passes.algorithms.slice_batch import SliceBatch
from occ.compiler.passes.algorithms.split_groups import SplitGroups
from occ.compiler.passes.algorithms.split_transposed_conv import SplitTransposedConv
from occ.compiler.passes.algorithms.use_fourier_matrices import UseFourierMatrices
from occ.compiler.passes.algorithms.write_in_place import WriteInPlace
from occ.compiler.passes.base import Pass
from occ.compiler.passes.canonical.apply_rewrites import ApplyRewrites
from occ.compiler.passes.canonical.canonicalize import Canonicalize
from occ.compiler.passes.canonical.cast_ports import CastPorts
from occ.compiler.passes.canonical.cse import Cse
from occ.compiler.passes.canonical.dce import Dce
from occ.compiler.passes.canonical.divide_wide import DivideWide
from occ.compiler.passes.canonical.exact_factors import ExactFactors
from occ.compiler.passes.canonical.fold import Fold
from occ.compiler.passes.canonical.fold_affine import FoldAffine
from occ.compiler.passes.canonical.fold_empty import FoldEmpty
from occ.compiler.passes.canonical.hoist_invariants import HoistInvariants
from occ.compiler.passes.canonical.propagate_constants import PropagateConstants
from occ.compiler.passes.canonical.sink_views import SinkViews
from occ.compiler.passes.canonical.use_block_weights import UseBlockWeights
from occ.compiler.passes.canonical.use_integers import UseIntegers
from occ.compiler.passes.fuse.defer import Defer
from occ.compiler.passes.fuse.encode_texts import EncodeTexts
from occ.compiler.passes.fuse.expand import Expand
from occ.compiler.passes.fuse.fuse import Fuse
from occ.compiler.passes.fuse.fuse_patterns import FusePatterns
from occ.compiler.passes.fuse.use_kernels import UseKernels
from occ.compiler.passes.infer.infer import Infer
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

_PASSES: tuple[type[Pass], ...] = (
    GrowCaches,
    QuantizeCaches,
    SliceBatch,
    PointwiseToMatmul,
    SplitGroups,
    SplitTransposedConv,
    UseFourierMatrices,
    WriteInPlace,
    ApplyRewrites,
    Canonicalize,
    CastPorts,
    Cse,
    Dce,
    DivideWide,
    ExactFactors,
    Fold,
    FoldAffine,
    SinkViews,
    FoldEmpty,
    HoistInvariants,
    PropagateConstants,
    UseBlockWeights,
    UseIntegers,
    Defer,
    EncodeTexts,
    Expand,
    Fuse,
    FusePatterns,
    UseKernels,
    Infer,
    LayoutActivations,
    LayoutWeights,
    NarrowWeights,
    PlaceJoins,
    ShareTiedWeights,
    UseJoins,
    WidenWeights,
    LowerTe,
    GeneralizeSizes,
    PlanMemory,
    Schedule,
    UseAttention,
    UseBlockProducts,
    SplitDeformConv,
    RoundOperands,
    UseByteProducts,
    UseCodeTables,
    UseStrassen,
    UseWinograd,
    WidenCodes,
)
PASSES: Mapping[str, type[Pass]] = {kind.name: kind for kind in _PASSES}


def parse_pipeline(text: str, more: Iterable[Pass] = ()) -> list[Pass]:
    """The passes that a text such as `fold,fuse{max-ops=4}` names; `more` are known in addition to the compiler's own.

    Raises:
        CompileError: OCC0602 an unknown pass, OCC0603 an unknown option or a bad value.
    """
    made: list[Pass] = []
    known = {**PASSES, **{p.name: type(p) for p in more}}
    for name, options in re.findall(r"([^,{}]+)(?:\{([^}]*)\})?,?", text):
        kind = known.get(name.strip())
        if kind is None:
            raise error("OCC0602", f"unknown pass `{name.strip()}`", help=f"passes: {', '.join(known)}")
        made.append(kind(**_options(kind, options)))
    return made


def _options(kind: type[Pass], text: str) -> dict[str, object]:
    known = {f.name.replace("_", "-"): f for f in fields(kind)}
    options: dict[str, object] = {}
    for item in filter(None, text.split(",")):
        key, _, value = item.partition("=")
        field = known.get(key.strip())
        if field is None:
            listed = ", ".join(known) or "none"
            raise error("OCC0603", f"pass `{kind.name}` has no option `{key.strip()}`", help=f"options: {listed}")
        try:
            options[field.name] = _value(value.strip() or "true", field.default)
        except ValueError:
            raise error("OCC0603", f"option `{key.strip()}` of `{kind.name}` cannot be `{value}`") from None
    return options


def _value(text: str, default: object) -> object:
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise ValueError(text)
        return text == "true"
    return int(text) if isinstance(default, int) else text
