"""`occ.diff`: compares results with another runtime, of the model or of each node."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from occ.analysis.blame import judged
from occ.analysis.inspect import is_artifact
from occ.analysis.onnx_graph import exposed, loaded, with_data
from occ.api import Shapes, settings_of
from occ.compiler.compare import difference, gaps
from occ.compiler.driver.sessions import compile_model
from occ.compiler.driver.source import in_onnx, is_text, load_module
from occ.compiler.frontend.ort_format import is_ort
from occ.compiler.ir.stages import ORDER
from occ.compiler.targets.default import DEFAULT
from occ.inputs import random_inputs
from occ.loading import load
from occ.runtime.signature import Signature

if TYPE_CHECKING:
    from onnx import ModelProto

    from occ.compiler.driver.settings import Settings
    from occ.compiler.driver.source import Source
    from occ.runtime.session import Session

ORACLES = ("onnxruntime", "reference", "interp")
PLAIN = "onnxruntime without its optimiser"
TOLERANCE = 1e-4
HALVES = {"f16": 1e-2, "bf16": 5e-2}  # the same of models that compute in them: about ten units in the last place
ABSOLUTE = (
    1e-7  # what ONNX's own tests allow besides a share (`atol` of onnx.backend.test): rounding of sums that cancel
)
Arrays = Mapping[str, np.ndarray]


class CannotCompare(ValueError):
    """There is nothing to compare with: the other runtime is missing, or does not take the model."""


@dataclass(frozen=True)
class Allowed:
    """The tolerance of a comparison: an absolute and a relative part.

    Attributes:
        share: of the largest value of an output; None for what the types allow that a model computes in.
        absolute: whatever that value is.
    """

    share: float | None = None
    absolute: float = ABSOLUTE

    def of(self, session: Session) -> Allowed:
        """The same with a share, which is that of the type with the largest units among those of a model."""
        if self.share is not None:
            return self
        manifest = session.artifact.manifest
        kinds = {p.dtype for p in (*manifest.inputs, *manifest.outputs)}
        if manifest.plan is not None:
            weights = {k for k, s in enumerate(manifest.plan.storages) if s.kind == "weight"}
            kinds |= {b.dtype for b in manifest.plan.buffers if b.storage not in weights}
        return replace(self, share=max((HALVES[k] for k in kinds if k in HALVES), default=TOLERANCE))

    def small(self, ours: np.ndarray, theirs: np.ndarray) -> bool:
        """Whether no difference of two arrays of numbers counts, whatever share of the largest value it is."""
        return bool(gaps(ours, theirs).max(initial=0.0) <= self.absolute)


@dataclass(frozen=True)
class Row:
    """One value of both sides.

    Attributes:
        output: name of the value.
        shape: of it, here.
        ok: whether the sides agree.
        node: that computes it, where each node was asked for.
        difference: the largest one, as a share of the largest value; None where type or shape differ.
        small: whether the sides agree only because no difference is above the absolute one that passes.
        worst: the places that differ most, with `at`, `ours`, `theirs`.
        reason: why the values cannot be compared.
        optimiser: the difference before onnxruntime's optimiser was turned off, where only that makes it differ.
    """

    output: str
    shape: tuple[int, ...]
    ok: bool
    node: str = ""
    difference: float | None = None
    small: bool = False
    worst: tuple[dict[str, Any], ...] = ()
    reason: str = ""
    optimiser: float | None = None

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass
class Differences:
    """The result of a comparison.

    Attributes:
        against: the other runtime.
        rows: the outputs, then the values of nodes in the order of the model.
        outputs: how many of the rows are outputs.
        verdict: what further runs say of outputs that differ from onnxruntime's.
    """

    against: str
    rows: list[Row] = field(default_factory=list)
    outputs: int = 0
    verdict: str = ""

    @property
    def ok(self) -> bool:
        """Whether all agree."""
        return all(r.ok for r in self.rows)

    @property
    def first(self) -> Row | None:
        """The first value that differs, in the order of the model: of a node, if nodes were asked for."""
        return next((r for r in [*self.rows[self.outputs :], *self.rows[: self.outputs]] if not r.ok), None)


def diff(
    model: Source,
    target: str = DEFAULT,
    *,
    against: str = "onnxruntime",
    onnx: str | os.PathLike[str] | bytes | None = None,
    inputs: Arrays | None = None,
    tolerance: float | None = None,
    absolute: float = ABSOLUTE,
    every_node: bool = False,
    node: str = "",
    simulate: bool = False,
    shapes: Shapes | None = None,
    dims: Mapping[str, int] | None = None,
    options: Mapping[str, Any] | None = None,
    rules: Sequence[Any] = (),
) -> Differences:
    """Run a model, and compare its outputs with those of another runtime; other arguments as `occ.compile`.

    Args:
        model: as `occ.compile` takes, .occ text too; or the path of an artifact.
        target: of a model.
        against: one of `ORACLES`, or the path of an artifact: of other options, or of an earlier release.
        onnx: the model that an artifact was built from.
        inputs: by name; seeded random ones by default, symbolic dims as `dims` says.
        tolerance: the largest difference that passes, as a share of the largest value; by default 1e-4, 1e-2 of models that
            compute in f16, and 5e-2 in bf16.
        absolute: a difference that passes whatever the values are; 0 for outputs that mean something however small they are.
        every_node: compare what each node of the main graph gives, too.
        node: a regular expression: compare what nodes give whose names, or results, it is found in.
        simulate: run the device parts of Ascend targets on the simulator.

    Raises:
        CompileError: the model cannot be compiled. RunError: it cannot be run.
        CannotCompare: the other runtime is missing, or does not take the model.
    """
    settings = settings_of(target, shapes, None, options, rules=rules)
    chosen = node or ("" if every_node else None)
    return compared(
        model,
        settings,
        against,
        onnx,
        inputs,
        dict(dims or {}),
        Allowed(tolerance, absolute),
        chosen,
        simulate=simulate,
    )


def compared(
    model: Source, settings: Settings, against: str, onnx: Any, inputs: Arrays | None, sizes: dict[str, int],
    allowed: Allowed, node: str | None, opened: Callable[[Session], object] = bool, *, simulate: bool = False,
) -> Differences:  # fmt: skip
    """The same with settings; `node` is None where outputs alone are compared, `opened` is called with the session."""
    path = os.fspath(model) if isinstance(model, (str, os.PathLike)) else ""
    artifact = bool(path) and is_artifact(path)
    if artifact and onnx is None and not is_artifact(against):
        raise CannotCompare("an artifact is compared with the model that it was built from: onnx")
    if artifact and node is not None:
        raise CannotCompare("an artifact has no nodes to compare: give the model")
    try:
        re.compile(node or "")
    except re.error as e:
        raise CannotCompare(f"`{node}` is no regular expression: {e}") from None
    session = load(path, simulate=simulate) if artifact else compile_model(model, settings, simulate=simulate)
    if simulate and session.artifact.manifest.engine != "ascend":
        raise CannotCompare(f"only Ascend targets have parts to simulate, not `{session.artifact.manifest.target}`")
    opened(session)
    given = dict(inputs or random_inputs(session, sizes, np.random.default_rng(0)))
    Signature.of(session.artifact.manifest).arrays(given)  # before others refuse them, in words of their own
    whole, names = onnx if artifact else model, [p.name for p in session.outputs]
    theirs, allowed = oracle(whole, against, names, given, settings), allowed.of(session)
    found, ours = Differences(against), session.run(given)
    found.rows = _rows(ours, theirs, allowed)
    if against == "onnxruntime":
        found.rows, found.verdict = judged(
            found.rows,
            lambda others: _rows(ours, others, allowed),
            lambda: oracle(whole, PLAIN, names, given, settings),
            lambda: oracle(whole, "interp", names, given, settings),
        )
    found.outputs = len(found.rows)
    if node is not None:
        found.rows += _node_rows(model, settings, against, given, allowed, node, simulate=simulate)
    return found


def _node_rows(
    model: Source, settings: Settings, against: str, given: Arrays, allowed: Allowed, node: str, *, simulate: bool
) -> list[Row]:
    """Rows of the values that nodes give; the model is compiled again with all of them as outputs."""
    if is_text(model):
        raise CannotCompare("nodes are those of an ONNX model: give the .onnx file")
    whole, folder = loaded(model)  # pyright: ignore[reportArgumentType] - texts are handled above
    have = {v.name for v in whole.graph.output}
    wanted = {
        name: n.name or f"{n.op_type} {name}"
        for n in whole.graph.node
        for name in n.output
        if name and name not in have and (re.search(node, n.name) or re.search(node, name))
    }
    if not wanted:
        raise CannotCompare(f"no node has a name with `{node}` in it")
    opened = with_data(exposed(whole, list(wanted)), folder)
    session = compile_model(opened, settings, simulate=simulate)
    theirs = oracle(opened, against, [p.name for p in session.outputs], given, settings)
    rows = _rows(session.run(given), theirs, allowed)
    return [replace(r, node=wanted[r.output]) for r in rows if r.output in wanted]


def oracle(model: Any, against: str, names: list[str], given: Arrays, settings: Settings) -> dict[str, Any]:
    """The outputs of another runtime, by name.

    Raises:
        CannotCompare: it is missing, or does not take the model.
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
        line = (str(e).strip().splitlines() or [type(e).__name__])[0][:200]
        raise CannotCompare(f"{against} does not run the model: {line}") from e


def _of_artifact(path: str, names: list[str], given: Arrays) -> dict[str, Any]:
    """The outputs of an artifact.

    Raises:
        CannotCompare: it has not all of the outputs.
    """
    found = load(path).run(given)
    if missing := [n for n in names if n not in found]:
        raise CannotCompare(f"`{path}` has no output `{missing[0]}`")
    return found


def _interpreted(model: Any, names: list[str], given: Arrays, settings: Settings) -> dict[str, Any]:
    """The outputs of the interpreter: of .occ text as it is, else without rewrite rules."""
    from occ.compiler.debugging.validate import NotInterpretable, results
    from occ.compiler.driver.plugins import extensions

    registry = extensions(settings.rules).registry
    m = load_module(model, registry=registry) if is_text(model) else None
    if m is not None and ORDER[m.stage] > ORDER["canonical"]:
        if m.stage == "lowered":
            raise CannotCompare("text of the stage `lowered` is a plan, which nothing but its target runs")
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


def _rows(ours: Mapping[str, Any], theirs: Mapping[str, Any], allowed: Allowed) -> list[Row]:
    return [_row(name, value, theirs[name], allowed) for name, value in ours.items()]


def _row(name: str, ours: Any, theirs: Any, allowed: Allowed) -> Row:
    if not isinstance(ours, np.ndarray) or not isinstance(theirs, np.ndarray):
        return _row_of_others(name, ours, theirs, allowed)
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return Row(name, ours.shape, False, reason=f"{theirs.dtype}{list(theirs.shape)} expected")
    share = difference(ours, theirs)
    if ours.dtype.kind == "O":
        return Row(name, ours.shape, not share, difference=0.0)
    assert allowed.share is not None, "`of` has seen to it"
    near = share <= allowed.share
    small = not near and allowed.small(ours, theirs)
    return Row(name, ours.shape, near or small, "", share, small, () if near or small else _worst(ours, theirs))


def _row_of_others(name: str, ours: Any, theirs: Any, allowed: Allowed) -> Row:
    """The row of sequences, of maps, and of optionals that have nothing."""
    if not isinstance(ours, list) or not isinstance(theirs, list) or len(ours) != len(theirs):
        same = type(ours) is type(theirs) and not isinstance(ours, list) and bool(ours == theirs)
        return Row(name, (), same, reason="" if same else "they are no arrays, and not equal")
    parts = [_row(f"{name}[{k}]", a, b, allowed) for k, (a, b) in enumerate(zip(ours, theirs, strict=True))]
    wrong = next((f"element {p.output} differs: {p.reason or p.difference}" for p in parts if not p.ok), "")
    return Row(name, (len(parts),), not wrong, "", max((p.difference or 0.0 for p in parts), default=0.0), reason=wrong)


def _worst(ours: np.ndarray, theirs: np.ndarray, count: int = 5) -> tuple[dict[str, Any], ...]:
    """The places that differ most."""
    gap = gaps(ours, theirs)
    places = [np.unravel_index(k, gap.shape) for k in np.argsort(gap, axis=None)[::-1][:count]]
    return tuple(
        {"at": [int(i) for i in p], "ours": _number(ours[p]), "theirs": _number(theirs[p])} for p in places if gap[p]
    )


def _number(value: Any) -> float | str:
    return str(value) if np.iscomplexobj(value) else float(value)
