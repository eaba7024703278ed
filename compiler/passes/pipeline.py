"""The pipelines: functions of the options of a target, which decide what passes run, and with which fields."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from fnmatch import fnmatch

from occ.compiler.diagnostics import error
from occ.compiler.ir.stages import ORDER
from occ.compiler.passes.algorithms.grow_caches import GrowCaches
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
from occ.compiler.passes.canonical.use_block_weights import UseBlockWeights
from occ.compiler.passes.canonical.use_integers import UseIntegers
from occ.compiler.passes.fuse.defer import Defer
from occ.compiler.passes.fuse.expand import Expand
from occ.compiler.passes.fuse.fuse import Fuse
from occ.compiler.passes.fuse.fuse_patterns import FusePatterns
from occ.compiler.passes.fuse.use_kernels import UseKernels
from occ.compiler.passes.infer.infer import Infer
from occ.compiler.passes.layout.layout_activations import LayoutActivations
from occ.compiler.passes.layout.layout_weights import LayoutWeights
from occ.compiler.passes.layout.narrow_weights import NarrowWeights
from occ.compiler.passes.layout.place_joins import PlaceJoins
from occ.compiler.passes.layout.use_joins import UseJoins
from occ.compiler.passes.layout.widen_weights import WidenWeights
from occ.compiler.passes.lower.lower_te import LowerTe
from occ.compiler.passes.lower.plan_memory import PlanMemory
from occ.compiler.passes.lower.schedule import Schedule
from occ.compiler.passes.methods.attention.use_attention import UseAttention
from occ.compiler.passes.methods.block_products.use_block_products import UseBlockProducts
from occ.compiler.passes.methods.deform_conv.split_deform_conv import SplitDeformConv
from occ.compiler.passes.methods.int8.round_operands import RoundOperands
from occ.compiler.passes.methods.int8.use_byte_products import UseByteProducts
from occ.compiler.passes.methods.int8.use_code_tables import UseCodeTables
from occ.compiler.passes.methods.strassen.use_strassen import UseStrassen
from occ.compiler.passes.methods.winograd.use_winograd import UseWinograd
from occ.compiler.targets.native import CpuOptions, InterpOptions, JitOptions
from occ.compiler.targets.option import Options
from occ.compiler.targets.target import Target

Pipeline = Mapping[str, tuple[Pass, ...]]  # stage -> the passes that lead into it


def _inferred(*, sizes: bool) -> tuple[Pass, ...]:
    """To the stage `inferred`; `sizes`: values that decide shapes become sizes, for which the target has steps."""
    return (Infer(sizes=sizes), Dce(), ApplyRewrites("inferred"))


def _canonical(*more: Pass) -> tuple[Pass, ...]:
    """To canonical form; `more` come before constants fold, since folded weights have no codes."""
    return (
        Canonicalize(),
        *more,
        Fold(),
        HoistInvariants(),
        PropagateConstants(),
        Cse(),
        Dce(),
        FoldAffine(),
        ApplyRewrites(),
        Canonicalize(),
        Fold(),
        Cse(),
        Dce(),
    )


def _on_codes(options: InterpOptions, *more: Pass) -> Pipeline:
    """What all targets that compute with integers begin with; `more` come before that."""
    integers = (UseIntegers(),) if options.qdq == "integer" else ()
    exact = (ExactFactors(),) if options.resize == "exact" else ()
    return {"inferred": (*exact, *_inferred(sizes=True), DivideWide()), "canonical": _canonical(*more, *integers)}


def _to_kernels(options: JitOptions) -> tuple[Pass, ...]:
    """What native targets do to named ops before they fuse them."""
    defer = Defer(refuse=options.deferred == "off")
    return (
        ApplyRewrites("fused"),
        FusePatterns(),
        UseKernels(),
        defer,
        Expand(),
        Fold(),
        PropagateConstants(),
        Fold(),  # what the bodies of loops compute of constants alone
        Dce(),
        defer,
        *((GrowCaches(),) if options.caches == "growing" else ()),
        WriteInPlace(),
        SplitTransposedConv(),
        UseFourierMatrices(),
    )


def cpu(options: CpuOptions) -> Pipeline:
    """The pipeline of `cpu`."""
    return {
        **_on_codes(options, UseBlockWeights()),
        "fused": (
            *_to_kernels(options),
            UseCodeTables(),
            Fold(),
            SplitDeformConv(),
            SplitGroups(),
            *((UseWinograd(),) if options.winograd != "off" else ()),
            UseAttention(),
            *((RoundOperands(to=options.precision),) if options.precision != "f32" else ()),
            UseBlockProducts(rounded=options.precision == "int8"),
            UseByteProducts(),
            *((UseStrassen(everywhere=options.strassen == "on"),) if options.strassen != "off" else ()),
            UseJoins(),
            Fuse(lazy_transpose=True),
        ),
        "layout": (LayoutActivations(), NarrowWeights(), WidenWeights(), LayoutWeights(), PlaceJoins()),
        "scheduled": (LowerTe(), Schedule(options.schedule == "fallback", split_overlaps=options.sanitize == "thread")),
        "lowered": (PlanMemory(),),
    }


def cpu_jit(options: JitOptions = JitOptions()) -> Pipeline:
    """The pipeline of `cpu-jit`."""
    return {
        **_on_codes(options),
        "fused": (*_to_kernels(options), UseJoins(strided=False), Fuse()),
        "layout": (PlaceJoins(strided=False),),
        "scheduled": (LowerTe(split=True),),
        "lowered": (PlanMemory(),),
    }


def interp(options: InterpOptions) -> Pipeline:
    """The pipeline of `interp`."""
    known = _on_codes(options)
    return {**known, "canonical": (*known["canonical"], UseKernels(report=True))}


def ascend(options: Options) -> Pipeline:
    """The pipeline of Ascend targets, whose operators take codes and scales as the model has them."""
    integers = (UseIntegers(),) if getattr(options, "qdq", "") == "integer" else ()
    ports = CastPorts(getattr(options, "input_fp16_nodes", ""), getattr(options, "output_type", ""))
    return {
        "inferred": (*_inferred(sizes=False), *((ports,) if ports != CastPorts() else ())),
        "canonical": _canonical(UseBlockWeights(), *integers),
        "fused": (ApplyRewrites("fused"), Expand(), FoldEmpty(), Dce()),
    }


def pipeline_for(target: Target, options: Options, more: Iterable[Pass] = ()) -> Pipeline:
    """The pipeline of a target, with passes of the user after the compiler's own ones of their stages.

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


def alike_at_all_sizes(pipeline: Pipeline) -> Pipeline:
    """A pipeline after which a model has the same ops whatever extents were fixed.

    Nothing is merged that only one extent makes equal, such as the ranges of rows and of columns of a square, and no range or
    table becomes a constant at the extents that make it short.
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


# The passes of occ by name: what this file imports, since no pipeline has others.
PASSES: Mapping[str, type[Pass]] = {
    kind.name: kind
    for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, Pass) and kind.name
}


def parse_pipeline(text: str, more: Iterable[Pass] = ()) -> list[Pass]:
    """The passes that a text such as `fold,fuse{max-ops=4}` names; `more` are known besides the compiler's own.

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
