"""Where code is, as file and line: functions, and what defines and generates each operator."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import occ

if TYPE_CHECKING:
    from occ.compiler.ir.operator.spec import OpSpec
    from occ.compiler.targets.target import Target


def place_of(function: Callable[..., Any]) -> str:
    """The file and line of a Python function, `compiler/ir/ops/window.py:12`; empty if it has none.

    Files of occ are relative to its package.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{_shown(code.co_filename)}:{code.co_firstlineno}" if code is not None else ""


def operator_places(spec: OpSpec, targets: Iterable[Target]) -> dict[str, str]:
    """Where an operator is defined, and what generates its code for each target.

    Returns:
        A text under `definition`, and one under the name of each target; none for control flow, whose code is
        generated from the operators in it.
    """
    texts = {"definition": _definition(spec)}
    for target in targets:
        emitter = target.emitter(spec.name)
        text = place_of(emitter) if emitter is not None else _without_emitter(spec, target)
        texts |= {target.name: text} if text else {}
    return texts


def _definition(spec: OpSpec) -> str:
    from occ.compiler.ir.operator.registry import family_of

    meaning = getattr(spec, spec.meaning)
    found = place_of(meaning) if callable(meaning) else place_of(spec.infer) if spec.infer is not None else ""
    module = find_spec(family_of(spec.name) or "occ")
    return found or _shown(module.origin or "" if module is not None else "")


def _without_emitter(spec: OpSpec, target: Target) -> str:
    """What generates or runs the code of an operator that a target does not keep by name."""
    from occ.runtime.hostops import routines

    if spec.meaning == "composite":
        return "the operators in its definition"
    if target.operators is not None and spec.meaning != "region":
        return "left to another target"
    if spec.meaning == "host":
        return place_of(routines()[spec.host or ""])
    if spec.meaning == "body":
        return f"its definition, through {Path(place_of(target.generate)).parent.as_posix()}"
    return ""


def _shown(path: str) -> str:
    home = Path(occ.__file__).parent
    return (Path(path).relative_to(home) if Path(path).is_relative_to(home) else Path(path)).as_posix()
