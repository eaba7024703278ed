"""`occ.bench`: speed compared with other runtimes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from occ.analysis.inspect import is_artifact
from occ.api import Shapes, compile  # noqa: A004
from occ.arguments import checked_mapping, checked_sizes, names_of
from occ.benchmark import PEERS, Comparison, compare
from occ.compiler.targets.default import DEFAULT
from occ.inputs import random_inputs
from occ.loading import load

if TYPE_CHECKING:
    from occ.compiler.driver.source import Source


def bench(
    model: Source,
    target: str = DEFAULT,
    *,
    against: Sequence[str] = (),
    onnx: str | bytes = "",
    inputs: Mapping[str, np.ndarray] | None = None,
    rounds: int = 9,
    threads: int | None = None,
    shapes: Shapes | None = None,
    dims: Mapping[str, int] | None = None,
    options: Mapping[str, Any] | None = None,
    rules: Sequence[Any] = (),
) -> Comparison:
    """Time a model or an artifact, and other runtimes on the same inputs; other arguments as for `occ.compile`.

    Args:
        model: as for `occ.compile`, or the path of an artifact.
        target: for a model; an artifact has its own.
        against: `onnxruntime` and `openvino`, to compare with.
        onnx: the model for the other runtimes, if `model` is not its path.
        inputs: by name; seeded random ones by default, with symbolic dims from `dims`.
        rounds: blocks per runtime.
        threads: of one run.

    Raises:
        ValueError: a runtime is unknown, `rounds` is not a number from 1 on, or there is no ONNX model for it.
        CompileError: the model cannot be compiled; OCC0205, OCC0603 an argument is invalid. RunError: it cannot be run.
    """
    if unknown := [p for p in names_of(against) if p not in PEERS]:
        raise ValueError(f"against takes {', '.join(PEERS)}, not {unknown[0]!r}")
    path = os.fspath(model) if isinstance(model, (str, os.PathLike)) else ""
    if path and is_artifact(path):
        session = load(path, threads)
    else:
        session = compile(model, target, shapes=shapes, options=options, rules=rules, threads=threads)
        onnx = onnx or path
    if against and not onnx:
        raise ValueError("the others need the model: onnx=, a path or bytes")
    inputs = checked_mapping("inputs", inputs) or random_inputs(session, checked_sizes(dims), np.random.default_rng(0))
    return compare(session, onnx, inputs, names_of(against), rounds=rounds)
