"""Attributes a difference from onnxruntime to its optimiser, its kernels or occ.

onnxruntime's optimiser changes results of quantised models: it joins pairs of QuantizeLinear and DequantizeLinear,
rounds where the model does not, and uses kernels whose byte sums saturate on x86 without VNNI
(session.x64quantprecision in onnxruntime_session_options_config_keys.h). Without it each node is computed as ONNX
defines it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from occ.analysis.rows import Row

Outputs = Mapping[str, Any]
OURS = (
    "the interpreter, which computes each operator as ONNX defines it, also differs from occ: `occ bisect` "
    "finds the pass that causes it"
)
THEIRS = (
    "the interpreter, which computes each operator as ONNX defines it, agrees with occ: onnxruntime differs from "
    "both; `--against reference` compares with ONNX's own evaluator"
)


def judged(
    rows: Sequence[Row],
    compare: Callable[[Outputs], list[Row]],
    plain: Callable[[], Outputs],
    exact: Callable[[], Outputs],
) -> tuple[list[Row], str]:
    """Rows of outputs after a second run of onnxruntime and, if that does not help, one of the interpreter.

    Also returns the verdict.

    Args:
        rows: of the first run; a difference that only the optimiser causes counts as equal.
        compare: returns rows for the outputs of another run.
        plain: runs onnxruntime without its optimiser.
        exact: runs the interpreter.
    """
    if all(r.ok for r in rows):
        return list(rows), ""
    second = compare(plain())
    made = [replace(s, optimiser=r.difference) if s.ok and not r.ok else r for r, s in zip(rows, second, strict=True)]
    wrong = [k for k, r in enumerate(made) if not r.ok]
    if not wrong:
        return made, ""
    third = compare(exact())
    return made, THEIRS if all(third[k].ok for k in wrong) else OURS
