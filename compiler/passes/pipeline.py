"""The pipeline prefix that all targets share; each target's own is in `codegen_*/pipeline.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch

from occ.compiler.diagnostics import error
from occ.compiler.ir.stages import ORDER
from occ.compiler.passes.algorithms.grow_caches import GrowCaches
from occ.compiler.passes.algorithms.quantize_caches import QuantizeCaches
from occ.compiler.passes.algorithms.slice_batch import SliceBatch
from occ.compiler.passes.algorithms.split_transposed_conv import SplitTransposedConv
from occ.compiler.passes.algorithms.use_fourier_matrices import UseFourierMatrices
from occ.compiler.passes.algorithms.write_in_place import WriteInPlace
from occ.compiler.passes.base import Pass
from occ.compiler.passes.canonical.apply_rewrites import ApplyRewrites
from occ.compiler.passes.canonical.canonicalize import Canonicalize
from occ.compiler.passes.canonical.cse import Cse
from occ.compiler.passes.canonical.dce import Dce
from occ.compiler.passes.canonical.divide_wide import DivideWide
from occ.compiler.passes.canonical.exact_factors import ExactFactors
from occ.compiler.passes.canonical.fold import Fold
from occ.compiler.passes.canonical.fold_affine import FoldAffine
from occ.compiler.passes.canonical.hoist_invariants import HoistInvariants
from occ.compiler.passes.canonical.propagate_constants import PropagateConstants
from occ.compiler.passes.canonical.sink_views import SinkViews
from occ.compiler.passes.canonical.use_integers import UseIntegers
from occ.compiler.passes.fuse.defer import Defer
from occ.compiler.passes.fuse.encode_texts import EncodeTexts
from occ.compiler.passes.fuse.expand import Expand
from occ.compiler.passes.fuse.fuse_patterns import FusePatterns
from occ.compiler.passes.fuse.use_kernels import UseKernels
from occ.compiler.passes.infer.infer import Infer
from occ.compiler.targets.native import InterpOptions, JitOptions
from occ.compiler.targets.option import Options
from occ.compiler.targets.target import Target

Pipeline = Mapping[str, tuple[Pass, ...]]  # stage -> the passes that lead into it


def inferred(*, sizes: bool) -> tuple[Pass, ...]:
    """To stage `inferred`; with `sizes`, values that decide shapes become sizes, computed by steps of the target."""
    return (Infer(sizes=sizes), Dce(), ApplyRewrites("inferred"))


def canonical(*more: Pass, folded: Sequence[Pass] = ()) -> tuple[Pass, ...]:
    """To canonical form; `more` run before constant folding, which removes codes of weights, and `folded` after it."""
    return (
        Canonicalize(),
        *more,
        Fold(),
        HoistInvariants(),
        PropagateConstants(),
        Cse(),
        Dce(),
        *folded,
        FoldAffine(),
        ApplyRewrites(),
        Canonicalize(),
        Fold(),
        Cse(),
        Dce(),
    )


def on_codes(options: InterpOptions, *more: Pass) -> Pipeline:
    """The common start for all targets that compute with integers; `more` run before it."""
    integers = (UseIntegers(),) if options.qdq == "integer" else ()
    exact = (ExactFactors(),) if options.resize == "exact" else ()
    return {
        "inferred": (*exact, *inferred(sizes=True), DivideWide()),
        "canonical": canonical(*more, *integers, folded=[SinkViews()]),
    }


def to_kernels(options: JitOptions) -> tuple[Pass, ...]:
    """What native targets do to named ops before fusion."""
    defer = Defer(refuse=options.deferred == "off")
    grows = options.caches == "growing" or options.cache == "int8"  # caches of slices could not grow in place
    return (
        EncodeTexts(),
        ApplyRewrites("fused"),
        FusePatterns(),
        UseKernels(),
        defer,
        Expand(),
        Fold(),
        PropagateConstants(),
        Fold(),  # what loop bodies compute from constants alone
        Dce(),
        defer,
        *((SliceBatch(options.slice_size),) if options.batch_slices != "off" and not grows else ()),
        *((GrowCaches(),) if grows else ()),
        *((QuantizeCaches(),) if options.cache == "int8" else ()),
        WriteInPlace(),
        SplitTransposedConv(),
        UseFourierMatrices(),
    )


def pipeline_for(target: Target, options: Options, more: Iterable[Pass] = ()) -> Pipeline:
    """The pipeline of a target; passes of the user follow the compiler's own ones of their stage.

    Raises:
        CompileError: OCC0602 there is no such stage.
    """
    made = dict(target.pipeline(options))
    for p in more:
        if not fnmatch(target.name, p.targets):
            continue
        if p.stage not in ORDER or p.stage == "imported":
            raise error("OCC0602", f"pass `{p.name}` is for the stage `{p.stage}`, which does not exist")
        if p.stage in made:
            made[p.stage] = (*made[p.stage], p)
    return made


def size_stable(pipeline: Pipeline) -> Pipeline:
    """A pipeline after which a model has the same ops for any choice of fixed extents.

    Nothing is merged that is equal only for one choice, such as the ranges of a square's rows and columns, and no range
    or table that is short for one choice becomes a constant.
    """
    kept = {stage: [p for p in passes if not isinstance(p, Cse)] for stage, passes in pipeline.items()}
    return {stage: tuple(map(_without_growth, passes)) for stage, passes in kept.items()}


def _without_growth(p: Pass) -> Pass:
    match p:
        case Fold():
            return replace(p, small=0)
        case Infer():
            return replace(p, grow=False)
        case _:
            return p
