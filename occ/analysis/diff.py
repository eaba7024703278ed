"""`occ.diff`: compares results with another runtime, per model or per node."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from occ.analysis.blame import judged
from occ.analysis.inspect import is_artifact
from occ.analysis.onnx_graph import exposed, loaded, with_data
from occ.analysis.oracles import PLAIN, Arrays, CannotCompare, oracle
from occ.analysis.rows import Row
from occ.api import Shapes, settings_of
from occ.arguments import checked_mapping, checked_sizes
from occ.compiler.compare import difference, gaps
from occ.compiler.diagnostics import error
from occ.compiler.driver.sessions import compile_model
from occ.compiler.driver.source import is_text
from occ.compiler.targets.default import DEFAULT
from occ.inputs import random_inputs
from occ.loading import load
from occ.runtime.dataclass import dataclass
from occ.runtime.signature import Signature

if TYPE_CHECKING:
    from occ.compiler.driver.settings import Settings
    from occ.compiler.driver.source import Source
    from occ.runtime.session import Session

TOLERANCE = 1e-4
HALVES = {
    "f16": 1e-2,
    "bf16": 5e-2,
}  # same for models that compute in them: about ten units in the last place
ABSOLUTE = 1e-7  # also allowed by ONNX's own tests (`atol` of onnx.backend.test): rounding of sums that cancel


@dataclass(frozen=True)
class Allowed:
    """The tolerance of a comparison: an absolute and a relative part.

    Attributes:
        share: relative to the largest value of an output; None for the default of the model's types.
        absolute: independent of that value.
    """

    share: float | None = None
    absolute: float = ABSOLUTE

    def of(self, session: Session) -> Allowed:
        """The same with a share: the default for the model's least precise type."""
        if self.share is not None:
            return self
        manifest = session.artifact.manifest
        kinds = {p.dtype for p in (*manifest.inputs, *manifest.outputs)}
        if manifest.plan is not None:
            weights = {k for k, s in enumerate(manifest.plan.storages) if s.kind == "weight"}
            kinds |= {b.dtype for b in manifest.plan.buffers if b.storage not in weights}
        return replace(self, share=max((HALVES[k] for k in kinds if k in HALVES), default=TOLERANCE))

    def small(self, ours: np.ndarray, theirs: np.ndarray) -> bool:
        """Whether the differences of two numeric arrays are within the absolute tolerance."""
        return bool(gaps(ours, theirs).max(initial=0.0) <= self.absolute)


@dataclass
class Differences:
    """The result of a comparison.

    Attributes:
        against: the other runtime.
        rows: the outputs, then the values of nodes in the order of the model.
        outputs: how many of the rows are outputs.
        verdict: the findings of further runs about outputs that differ from onnxruntime's.
        session: the session on this side.
    """

    against: str
    rows: list[Row] = field(default_factory=list)
    outputs: int = 0
    verdict: str = ""
    session: Session | None = None

    @property
    def ok(self) -> bool:
        """Whether all agree."""
        return all(r.ok for r in self.rows)

    @property
    def first(self) -> Row | None:
        """The first value that differs, in the order of the model: of a node, if nodes are compared."""
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
    """Run a model, and compare its outputs with those of another runtime; other arguments as for `occ.compile`.

    Args:
        model: as for `occ.compile`, or .occ text; or the path of an artifact.
        target: for a model.
        against: one of `ORACLES`, or the path of an artifact: with other options, or from an earlier release.
        onnx: the model that an artifact was built from.
        inputs: by name; seeded random ones by default, with symbolic dims from `dims`.
        tolerance: the largest difference allowed, relative to the largest value; by default 1e-4, 1e-2 for models that
            compute in f16, and 5e-2 in bf16.
        absolute: a difference that is always allowed; 0 for outputs that are meaningful however small they are.
        every_node: whether to compare the results of each node of the main graph, too.
        node: a regular expression: compare results of nodes whose name, or result name, it matches.
        simulate: whether to run the device parts of Ascend targets on the simulator.

    Raises:
        CompileError: the model cannot be compiled. RunError: it cannot be run.
        CannotCompare: the other runtime is missing, or does not support the model.
    """
    if not isinstance(tolerance, (Real, type(None))) or not isinstance(absolute, Real):
        text = f"tolerance is {tolerance!r}, absolute {absolute!r}: they are numbers"
        raise error("OCC0603", text, help="0.01 is a hundredth of the largest value")
    chosen = node or ("" if every_node else None)
    settings = settings_of(target, shapes, None, options, rules=rules)
    given = Given(onnx, checked_mapping("inputs", inputs) or None, checked_sizes(dims))
    return compared(model, settings, against, given, Allowed(tolerance, absolute), chosen, simulate=simulate)


@dataclass(frozen=True)
class Given:
    """The arguments of a comparison, apart from the model.

    Attributes:
        onnx: the model that an artifact was built from.
        inputs: by name; None for random ones.
        sizes: of symbolic dims, for random inputs.
    """

    onnx: Any = None
    inputs: Arrays | None = None
    sizes: dict[str, int] = field(default_factory=dict)


def compared(
    model: Source,
    settings: Settings,
    against: str,
    given: Given,
    allowed: Allowed,
    node: str | None,
    *,
    simulate: bool = False,
) -> Differences:
    """The same with settings; `node` is None to compare only outputs."""
    path = os.fspath(model) if isinstance(model, (str, os.PathLike)) else ""
    artifact = bool(path) and is_artifact(path)
    _check(artifact, against, given, node)
    session = load(path, simulate=simulate) if artifact else compile_model(model, settings, simulate=simulate)
    if simulate and session.artifact.manifest.engine != "ascend":
        raise CannotCompare(f"only Ascend targets have parts to simulate, not `{session.artifact.manifest.target}`")
    inputs = dict(given.inputs or random_inputs(session, given.sizes, np.random.default_rng(0)))
    Signature.of(session.artifact.manifest).arrays(inputs)  # before others reject them with less specific errors
    whole, names = given.onnx if artifact else model, [p.name for p in session.outputs]
    theirs, allowed = oracle(whole, against, names, inputs, settings), allowed.of(session)
    found, ours = Differences(against, session=session), session.run(inputs)
    found.rows = _rows(ours, theirs, allowed)
    if against == "onnxruntime":
        found.rows, found.verdict = judged(
            found.rows,
            lambda others: _rows(ours, others, allowed),
            lambda: oracle(whole, PLAIN, names, inputs, settings),
            lambda: oracle(whole, "interp", names, inputs, settings),
        )
    found.outputs = len(found.rows)
    if node is not None:
        found.rows += _node_rows(model, settings, against, inputs, allowed, node, simulate=simulate)
    return found


def _check(artifact: bool, against: str, given: Given, node: str | None) -> None:
    """Reject invalid comparisons."""
    if artifact and given.onnx is None and not is_artifact(against):
        raise CannotCompare("an artifact is compared with the model that it was built from; pass that as `onnx`")
    if artifact and node is not None:
        raise CannotCompare("an artifact has no nodes to compare: pass the model")
    try:
        re.compile(node or "")
    except re.error as e:
        raise CannotCompare(f"`{node}` is not a regular expression: {e}") from None


def _node_rows(
    model: Source, settings: Settings, against: str, given: Arrays, allowed: Allowed, node: str, *, simulate: bool
) -> list[Row]:
    """Rows of the nodes' results; the model is compiled again with all of them as outputs."""
    if is_text(model):
        raise CannotCompare("only an ONNX model has nodes: pass the .onnx file")
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
    """The row for sequences, maps, and empty optionals."""
    if not isinstance(ours, list) or not isinstance(theirs, list) or len(ours) != len(theirs):
        same = type(ours) is type(theirs) and not isinstance(ours, list) and bool(ours == theirs)
        return Row(name, (), same, reason="" if same else "they are not arrays, and not equal")
    parts = [_row(f"{name}[{k}]", a, b, allowed) for k, (a, b) in enumerate(zip(ours, theirs, strict=True))]
    wrong = next((f"element {p.output} differs: {p.reason or p.difference}" for p in parts if not p.ok), "")
    return Row(name, (len(parts),), not wrong, "", max((p.difference or 0.0 for p in parts), default=0.0), reason=wrong)


def _worst(ours: np.ndarray, theirs: np.ndarray, count: int = 5) -> tuple[dict[str, Any], ...]:
    """The positions that differ most."""
    gap = gaps(ours, theirs)
    places = [np.unravel_index(k, gap.shape) for k in np.argsort(gap, axis=None)[::-1][:count]]
    return tuple(
        {"at": [int(i) for i in p], "ours": _number(ours[p]), "theirs": _number(theirs[p])} for p in places if gap[p]
    )


def _number(value: Any) -> float | str:
    return str(value) if np.iscomplexobj(value) else float(value)
