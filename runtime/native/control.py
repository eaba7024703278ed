"""If, Loop, Scan and SequenceMap: steps that run functions of the plan (ONNX operators, opset 25)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from occ.runtime.errors import RunError

Caller = Callable[[str, Sequence[Any]], list[Any]]  # (function, arguments) -> results
_FOREVER = np.iinfo(np.int64).max


def if_(reads: Sequence[Any], a: SimpleNamespace, call: Caller) -> list[Any]:
    """`(cond, *captures)`; runs `then_branch` or `else_branch` on the captures."""
    cond, *captures = reads
    return call(a.then_branch if bool(_one(cond, "the condition of `If`")) else a.else_branch, captures)


def _one(value: Any, what: str) -> Any:
    array = np.asarray(value)
    if array.size != 1:
        raise RunError("OCC0504", f"{what} has {array.size} elements, not one")
    return array.reshape(())


def loop(reads: Sequence[Any], a: SimpleNamespace, call: Caller) -> list[Any]:
    """`(M, cond, *carried, *captures)`; the body is `(i, cond, *carried, *captures) -> (cond, *carried, *scanned)`."""
    limit, cond, *rest = reads
    carried, captures = rest[: a.n_carried], rest[a.n_carried :]
    trips = _FOREVER if limit is None else int(_one(limit, "the trip count of `Loop`"))
    going = True if cond is None else bool(_one(cond, "the condition of `Loop`"))
    scanned: list[list[Any]] = [[] for _ in range(a.n_results - a.n_carried)]
    i = 0
    while going and i < trips:
        condition, *results = call(a.body, [np.array(i, np.int64), np.array(going), *carried, *captures])
        going = bool(_one(condition, "the condition of `Loop`"))
        carried = results[: a.n_carried]
        for into, value in zip(scanned, results[a.n_carried :], strict=True):
            into.append(value)
        i += 1
    return [*carried, *(_stack(v, 0, e) for v, e in zip(scanned, a.empty, strict=True))]


def scan(reads: Sequence[Any], a: SimpleNamespace, call: Caller) -> list[Any]:
    """`(*states, *sequences, *captures)`; the body is `(*states, *slices, *captures) -> (*states, *scanned)`."""
    n_states = a.n_states
    states, rest = list(reads[:n_states]), reads[n_states:]
    sequences, captures = rest[: a.num_scan_inputs], rest[a.num_scan_inputs :]
    axes = [ax % x.ndim for ax, x in zip(_padded(a.scan_input_axes, len(sequences)), sequences, strict=True)]
    lengths = {x.shape[ax] for x, ax in zip(sequences, axes, strict=True)}
    if len(lengths) != 1:
        raise RunError("OCC0504", f"`Scan` got sequences of different lengths {sorted(lengths)}")
    (length,) = lengths
    backwards = _padded(a.scan_input_directions, len(sequences))
    scanned: list[list[Any]] = [[] for _ in range(a.n_results - n_states)]
    for i in range(length):
        at = [length - 1 - i if back else i for back in backwards]
        slices = [np.take(x, k, axis=ax) for x, k, ax in zip(sequences, at, axes, strict=True)]
        results = call(a.body, [*states, *slices, *captures])
        states = results[:n_states]
        for into, value in zip(scanned, results[n_states:], strict=True):
            into.append(value)
    outputs: list[Any] = []
    given = zip(
        scanned, _padded(a.scan_output_axes, len(scanned)), _padded(a.scan_output_directions, len(scanned)), a.empty,
        strict=True,
    )  # fmt: skip
    for values, axis, back, empty in given:
        outputs.append(_stack(values[::-1] if back else values, axis, empty))
    return [*states, *outputs]


def map_(reads: Sequence[Any], a: SimpleNamespace, call: Caller) -> list[Any]:
    """`(sequence, *others, *captures)`: the body on each element; tensors among the others go to every call."""
    inputs, captures = reads[: a.n_inputs], reads[a.n_inputs :]
    (first, *_) = inputs
    results: list[list[Any]] = [[] for _ in range(a.n_results)]
    for k in range(len(first)):
        given = [x[k] if isinstance(x, list) else x for x in inputs]
        for into, value in zip(results, call(a.body, [*given, *captures]), strict=True):
            into.append(value)
    return list(results)


def _padded(values: Sequence[int] | None, n: int) -> Sequence[int]:
    return values if values else (0,) * n


def _stack(values: Sequence[Any], axis: int, empty: np.ndarray) -> Any:
    """Values of the iterations along a new axis; `empty` is the result without iterations.

    Raises:
        RunError: OCC0504 their shapes differ.
    """
    if len(shapes := dict.fromkeys(np.shape(v) for v in values)) > 1:
        first, other, *_ = (list(s) for s in shapes)
        raise RunError("OCC0504", f"the iterations of a loop return results of different shapes: {first} and {other}")
    return np.stack(values, axis) if values else empty


CONTROL: dict[str, Callable[[Sequence[Any], SimpleNamespace, Caller], list[Any]]] = {
    "if": if_,
    "loop": loop,
    "scan": scan,
    "map": map_,
}


def run_control(kind: str, reads: Sequence[Any], a: SimpleNamespace, call: Caller, nodes: Sequence[str]) -> list[Any]:
    """The results of control flow.

    Args:
        kind: of `CONTROL`.
        reads, a, call: as for its functions.
        nodes: names of ONNX nodes, which errors name.

    Raises:
        RunError: OCC0504 its operands or its body's results are invalid.
    """
    try:
        return CONTROL[kind](reads, a, call)
    except RunError as e:
        if "node `" in e.message:  # of the body
            raise
        raise RunError(e.code, f"node `{', '.join(nodes[:3]) or kind}`: {e.message}", e.help) from None
