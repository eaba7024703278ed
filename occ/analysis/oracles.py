"""Other runtimes that run a model for comparison: onnxruntime, onnx.reference, the interpreter, or an artifact."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from occ.analysis.inspect import is_artifact
from occ.analysis.onnx_graph import loaded
from occ.compiler.driver.sessions import compile_model
from occ.compiler.driver.source import in_onnx, is_text, load_module
from occ.compiler.frontend.ort_format import is_ort
from occ.compiler.ir.stages import ORDER
from occ.loading import load
from occ.runtime.file_formats import foreign_file

if TYPE_CHECKING:
    from onnx import ModelProto

    from occ.compiler.driver.settings import Settings

ORACLES = ("onnxruntime", "reference", "interp")
PLAIN = "onnxruntime without its optimiser"
Arrays = Mapping[str, np.ndarray]


class CannotCompare(ValueError):
    """Comparison is impossible: the other runtime is missing, or does not support the model."""


def oracle(model: Any, against: str, names: list[str], given: Arrays, settings: Settings) -> dict[str, Any]:
    """The outputs of another runtime, by name.

    Raises:
        CannotCompare: it is missing, or does not support the model.
    """
    if is_artifact(against):
        return _of_artifact(against, names, given)
    model = in_onnx(model)
    if against not in (*ORACLES, PLAIN):
        raise CannotCompare(f"there is no `{against}` to compare with, but {', '.join(ORACLES)}")
    if against == "interp":
        return _interpreted(model, names, given, settings)
    if is_text(model):
        from occ.compiler.driver.plugins import extensions
        from occ.compiler.frontend.export import STAGES, export

        m = load_module(model, registry=extensions(settings.rules).registry)
        if m.stage not in STAGES:
            raise CannotCompare(f"text of the stage `{m.stage}` has no ONNX form: compare with `interp`")
        model = export(m)
    try:
        run = _reference if against == "reference" else partial(_onnxruntime, optimised=against != PLAIN)
        return dict(zip(names, run(model, names, dict(given)), strict=True))
    except ImportError:
        raise CannotCompare(
            "onnxruntime is not installed: `pip install onnxruntime`, or compare with `reference`"
        ) from None
    except Exception as e:
        if isinstance(model, (str, os.PathLike)) and (known := foreign_file(model)) is not None:
            raise CannotCompare(f"`{model}` is not an ONNX model but {known[0]}") from None
        line = (str(e).strip().splitlines() or [type(e).__name__])[0][:200]
        raise CannotCompare(f"{against} does not run the model: {line}") from e


def _of_artifact(path: str, names: list[str], given: Arrays) -> dict[str, Any]:
    """The outputs of an artifact.

    Raises:
        CannotCompare: it lacks some of the outputs.
    """
    found = load(path).run(given)
    if missing := [n for n in names if n not in found]:
        raise CannotCompare(f"`{path}` has no output `{missing[0]}`")
    return found


def _interpreted(model: Any, names: list[str], given: Arrays, settings: Settings) -> dict[str, Any]:
    """The outputs of the interpreter: of .occ text unchanged, otherwise without rewrite rules."""
    from occ.compiler.debugging.validate import NotInterpretable, results
    from occ.compiler.driver.plugins import extensions

    registry = extensions(settings.rules).registry
    m = load_module(model, registry=registry) if is_text(model) else None
    if m is not None and ORDER[m.stage] > ORDER["canonical"]:
        if m.stage == "lowered":
            raise CannotCompare("text of the stage `lowered` is a plan, which only its target can run")
        try:
            return dict(zip(names, results(m, [given[a.name] for a in m.main.args]), strict=True))
        except NotInterpretable as e:
            raise CannotCompare(f"the interpreter cannot run the text: {e}") from None
    plain = replace(settings, target="interp", options={}, rules=[registry])
    return compile_model(model, plain).run(given)


def _reference(model: ModelProto | str | bytes, names: list[str], given: dict[str, np.ndarray]) -> list[Any]:
    from onnx.reference import ReferenceEvaluator

    taken: Any = os.fspath(model) if isinstance(model, os.PathLike) else model
    if is_ort(taken) if isinstance(taken, bytes) else str(taken).endswith(".ort"):
        taken = loaded(taken)[0]
    return list(ReferenceEvaluator(taken).run(names, given))


def _onnxruntime(
    model: ModelProto | str | bytes, names: list[str], given: dict[str, np.ndarray], *, optimised: bool
) -> list[Any]:
    import onnxruntime

    if isinstance(model, (str, os.PathLike)):
        taken: Any = os.fspath(model)
    else:
        taken = model if isinstance(model, bytes) else model.SerializeToString()
    options: Any = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session: Any = onnxruntime.InferenceSession(taken, options, providers=["CPUExecutionProvider"])
    return session.run(names, given)
