"""The pipelines, as lists that can be read, printed and typed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields

from occ.compiler.diagnostics import error
from occ.compiler.passes.base import Pass
from occ.compiler.passes.canonicalize import Canonicalize
from occ.compiler.passes.cse import Cse
from occ.compiler.passes.dce import Dce
from occ.compiler.passes.expand import Expand
from occ.compiler.passes.fold import Fold
from occ.compiler.passes.fold_affine import FoldAffine
from occ.compiler.passes.fuse import Fuse
from occ.compiler.passes.infer import Infer
from occ.compiler.passes.layout_weights import LayoutWeights
from occ.compiler.passes.lower_te import LowerTe
from occ.compiler.passes.plan_memory import PlanMemory
from occ.compiler.passes.schedule import Schedule

Pipeline = Mapping[str, tuple[Pass, ...]]  # stage -> the passes that lead into it

_COMMON: Pipeline = {
    "inferred": (Infer(), Dce()),
    "canonical": (Canonicalize(), Fold(), Cse(), Dce(), FoldAffine(), Canonicalize(), Fold(), Cse(), Dce()),
}

PIPELINES: Mapping[str, Pipeline] = {
    "cpu": {
        **_COMMON,
        "fused": (Expand(), Fuse()),
        "layout": (LayoutWeights(),),
        "scheduled": (LowerTe(), Schedule()),
        "lowered": (PlanMemory(),),
    },
    "cpu-jit": {
        **_COMMON,
        "fused": (Expand(), Fuse()),
        "layout": (),
        "scheduled": (LowerTe(split=True),),
        "lowered": (PlanMemory(),),
    },
    "interp": _COMMON,
}

PASSES: Mapping[str, type[Pass]] = {
    p.name: p
    for p in (
        Infer, Canonicalize, Fold, Cse, Dce, FoldAffine, Expand, Fuse, LayoutWeights, LowerTe, Schedule, PlanMemory,
    )
}  # fmt: skip


def parse_pipeline(text: str) -> list[Pass]:
    """The passes that a text such as `fold,fuse{max-ops=4}` names.

    Raises:
        CompileError: OCC0602 an unknown pass, OCC0603 an unknown option or a bad value.
    """
    made: list[Pass] = []
    for name, options in re.findall(r"([^,{}]+)(?:\{([^}]*)\})?,?", text):
        kind = PASSES.get(name.strip())
        if kind is None:
            raise error("OCC0602", f"unknown pass `{name.strip()}`", help=f"passes: {', '.join(PASSES)}")
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
