"""The pipelines, as lists that can be read, printed and typed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from fnmatch import fnmatch

from occ.compiler.diagnostics import error
from occ.compiler.passes.algorithms.round_operands import RoundOperands
from occ.compiler.passes.algorithms.split_groups import SplitGroups
from occ.compiler.passes.algorithms.split_transposed_conv import SplitPhases
from occ.compiler.passes.algorithms.use_attention import UseAttention
from occ.compiler.passes.algorithms.use_byte_products import UseDot
from occ.compiler.passes.algorithms.use_strassen import UseStrassen
from occ.compiler.passes.algorithms.use_winograd import UseWinograd
from occ.compiler.passes.base import Pass
from occ.compiler.passes.canonical.apply_rewrites import ApplyRewrites
from occ.compiler.passes.canonical.canonicalize import Canonicalize
from occ.compiler.passes.canonical.cse import Cse
from occ.compiler.passes.canonical.dce import Dce
from occ.compiler.passes.canonical.fold import Fold
from occ.compiler.passes.canonical.fold_affine import FoldAffine
from occ.compiler.passes.canonical.fold_empty import FoldEmpty
from occ.compiler.passes.canonical.hoist_invariants import HoistInvariants
from occ.compiler.passes.canonical.propagate_constants import PropagateConstants
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
from occ.compiler.passes.lower.lower_te import LowerTe
from occ.compiler.passes.lower.plan_memory import PlanMemory
from occ.compiler.passes.schedule.schedule import Schedule
from occ.compiler.target.target import Target

Pipeline = Mapping[str, tuple[Pass, ...]]  # stage -> the passes that lead into it

_COMMON: Pipeline = {
    "inferred": (Infer(), Dce(), ApplyRewrites("inferred")),
    "canonical": (
        Canonicalize(),
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
    ),
}

# The same where integers are no operators of the target: before constants fold, since folded weights have no codes.
_ON_CODES: Pipeline = {**_COMMON, "canonical": (Canonicalize(), UseIntegers(), *_COMMON["canonical"][1:])}

# What native targets do to named ops before they fuse them.
_TO_KERNELS: tuple[Pass, ...] = (
    ApplyRewrites("fused"),
    FusePatterns(),
    UseKernels(),
    Defer(),
    Expand(),
    Fold(),
    PropagateConstants(),
    Fold(),  # what the bodies of loops compute of constants alone
    Dce(),
    Defer(),
    SplitPhases(),
)

PIPELINES: Mapping[str, Pipeline] = {
    "cpu": {
        **_ON_CODES,
        "fused": (
            *_TO_KERNELS,
            SplitGroups(),
            UseWinograd(),
            UseAttention(),
            RoundOperands(),
            UseDot(),
            UseStrassen(),
            UseJoins(),
            Fuse(lazy_transpose=True),
        ),
        "layout": (LayoutActivations(), NarrowWeights(), LayoutWeights(), PlaceJoins()),
        "scheduled": (LowerTe(), Schedule()),
        "lowered": (PlanMemory(),),
    },
    "cpu-jit": {
        **_ON_CODES,
        "fused": (
            *_TO_KERNELS,
            UseJoins(strided=False),
            Fuse(),
        ),
        "layout": (PlaceJoins(strided=False),),
        "scheduled": (LowerTe(split=True),),
        "lowered": (PlanMemory(),),
    },
    "interp": {**_ON_CODES, "canonical": (*_ON_CODES["canonical"], UseKernels())},
    "ascend": {**_COMMON, "fused": (ApplyRewrites("fused"), Expand(), FoldEmpty(), Dce())},
}


def pipeline_for(target: Target, more: Iterable[Pass] = ()) -> Pipeline:
    """The pipeline of a target, with passes of the user behind the compiler's own ones of their stages.

    Raises:
        CompileError: OCC0602 the target has no such stage.
    """
    known = PIPELINES.get(target.name, PIPELINES.get(target.family, PIPELINES["interp"]))
    made = dict(known if target.pipeline is None else target.pipeline())
    for p in more:
        if not fnmatch(target.name, p.targets):
            continue
        if p.stage not in made and p.stage not in _ALL_STAGES:
            raise error("OCC0602", f"pass `{p.name}` is for the stage `{p.stage}`, which does not exist")
        if p.stage in made:
            made[p.stage] = (*made[p.stage], p)
    return made


_ALL_STAGES = frozenset(stage for pipeline in PIPELINES.values() for stage in pipeline)

PASSES: Mapping[str, type[Pass]] = {
    p.name: p
    for p in (
        Infer, ApplyRewrites, Canonicalize, Fold, FoldEmpty, HoistInvariants, PropagateConstants, Cse, Dce, FoldAffine, UseIntegers, FusePatterns, UseKernels, Defer, Expand, SplitPhases, SplitGroups, UseWinograd, UseAttention, RoundOperands, UseDot, UseStrassen, UseJoins, Fuse,
        LayoutActivations, NarrowWeights, LayoutWeights, PlaceJoins, LowerTe, Schedule, PlanMemory,
    )
}  # fmt: skip


def parse_pipeline(text: str, more: Iterable[Pass] = ()) -> list[Pass]:
    """The passes that a text such as `fold,fuse{max-ops=4}` names; `more` are known beside the compiler's own.

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
