"""Kernel times next to onnxruntime's profile, by ONNX node.

A kernel computes several nodes, and a node may take several kernels; onnxruntime fuses others. Both sides are joined
where they share a node. onnxruntime names rewritten nodes after a node or its result; nodes that it adds for its own
layouts belong to no node.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from occ.analysis.onnx_graph import loaded, with_data
from occ.runtime.dataclass import dataclass
from occ.runtime.profile import (
    UNSTEADY,
    WIDTH,
    Event,
    Profile,
    clipped,
    disturbed,
    profile,
    spread_of,
    timed_blocks,
)
from occ.runtime.session import Session

_TIME = "_kernel_time"
_REWRITTEN = re.compile(
    r"(_nchwc|_token_\d+|/\w*Fusion\w*|_fused|_quant|_transposed|_DequantizeLinear|_QuantizeLinear)$"
)


@dataclass(frozen=True)
class Row:
    """Nodes that both sides compute together.

    Attributes:
        nodes: of the model, in order; empty for what a side adds.
        kernels: occ's kernels.
        ms: their time.
        theirs: onnxruntime's names for its part.
        theirs_ms: its time.
    """

    nodes: tuple[str, ...]
    kernels: tuple[str, ...]
    ms: float
    theirs: tuple[str, ...]
    theirs_ms: float


@dataclass(frozen=True)
class PerOp:
    """A model node by node, slowest on either side first.

    Attributes:
        threads: of a run, on both sides.
        rows: all of them.
        spread: variation between runs, the larger of both sides; see `Profile` for its unit.
    """

    threads: int
    rows: tuple[Row, ...]
    spread: float = 0.0

    @property
    def steady(self) -> bool:
        """Whether times of both sides may be compared."""
        return self.spread <= UNSTEADY

    def as_data(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)

    def table(self, most: int = 40) -> str:
        """The rows in milliseconds, at most 80 columns wide."""
        lines = [f"{'occ ms':>9} {'ort ms':>9} {'ratio':>6}  nodes"]
        for row in self.rows[:most]:
            ratio = self._ratio(row.ms, row.theirs_ms)
            what = ", ".join(row.nodes) or f"({', '.join(row.theirs or row.kernels)}: of no node)"
            text = "".join(c if c.isprintable() else "?" for c in what)
            lines.append(clipped(f"{_ms(row.ms)} {_ms(row.theirs_ms)} {ratio:>6}  {text[:WIDTH]}"))
        if len(self.rows) > most:
            lines.append(f"and {len(self.rows) - most} more")
        ours, theirs = sum(r.ms for r in self.rows), sum(r.theirs_ms for r in self.rows)
        ratio = self._ratio(ours, theirs)
        lines.append(f"{_ms(ours)} {_ms(theirs)} {ratio:>6}  in kernels, threads: {self.threads}")
        return "\n".join(filter(None, (*lines, disturbed(self.spread))))

    def _ratio(self, ours: float, theirs: float) -> str:
        return f"{theirs / ours:5.2f}x" if ours and theirs and self.steady else ""


def _ms(value: float) -> str:
    return f"{value:9.3f}" if value else f"{'-':>9}"


def per_op(session: Session, model: str | bytes, inputs: Mapping[str, np.ndarray], runs: int = 7) -> PerOp | None:
    """Profile a session and onnxruntime on the same inputs and threads; medians over the runs.

    None if there are no kernels.

    Args:
        session: the model compiled by occ.
        model: the ONNX model that it was compiled from.
        inputs: by name.
        runs: of each side.

    Raises:
        ImportError: onnxruntime is not installed. RunError: as `Session.run`.
        ValueError: onnxruntime does not run the model.
    """
    ours = profile(session, inputs, runs)
    return None if ours is None else joined(ours, model, inputs, runs)


def joined(ours: Profile, model: str | bytes, inputs: Mapping[str, np.ndarray], runs: int = 7) -> PerOp:
    """Profile onnxruntime, next to an existing profile of occ; see `per_op`."""
    nodes, results, data = _named(model)
    theirs, spread = _onnxruntime(data, inputs, ours.threads, runs)
    return PerOp(ours.threads, tuple(_rows(ours.events, theirs, nodes, results)), max(ours.spread, spread))


def _named(model: str | bytes) -> tuple[list[str], dict[str, str], str | bytes]:
    """Names of the nodes, the node of each result, and the model with all nodes named as occ names them."""
    whole, folder = loaded(model)
    results: dict[str, str] = {}
    unnamed = any(not node.name for node in whole.graph.node)
    for k, node in enumerate(whole.graph.node):
        node.name = node.name or f"{node.op_type}#{k + 1}"
        results |= {name: node.name for name in node.output if name}
    names = [n.name for n in whole.graph.node]
    return names, results, with_data(whole, folder).SerializeToString() if unnamed else model


def _onnxruntime(
    model: str | bytes, inputs: Mapping[str, np.ndarray], threads: int, runs: int
) -> tuple[dict[str, float], float]:
    """Milliseconds of a run per node of onnxruntime's own graph, by name; and the variation between runs."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        options: Any = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
        options.enable_profiling, options.profile_file_prefix = True, str(Path(folder) / "profile")
        try:
            opened: Any = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
            opened.run(None, dict(inputs))
            blocks = timed_blocks(lambda: opened.run(None, dict(inputs)), runs)
        except Exception as e:
            raise ValueError(f"onnxruntime does not run the model: {str(e).splitlines()[0][:160]}") from None
        events = json.loads(Path(opened.end_profiling()).read_text())
    found: dict[str, list[float]] = defaultdict(list)
    for e in events:
        if e.get("cat") == "Node" and e["name"].endswith(_TIME):
            found[e["name"].removesuffix(_TIME)].append(e["dur"] * 1e-3)
    count = sum(e.get("name") == "model_run" for e in events)
    return {name: _a_run(times, count) for name, times in found.items()}, spread_of(blocks)


def _a_run(times: Sequence[float], runs: int) -> float:
    """The median over the runs except the first; nodes in loops ran several times in each."""
    each = max(len(times) // runs, 1)
    sums = [sum(times[k : k + each]) for k in range(each, len(times) - each + 1, each)]
    return median(sums or [sum(times)])


def node_of(name: str, nodes: Iterable[str], results: Mapping[str, str]) -> str:
    """The node of the model from which a node of onnxruntime's graph comes; empty if there is none."""
    known = set(nodes)
    while True:
        for candidate in (name, name.rstrip("0123456789")):
            if candidate in known:
                return candidate
            if candidate in results:
                return results[candidate]
        shorter = _REWRITTEN.sub("", name)
        if shorter == name:
            return ""
        name = shorter


def _rows(
    events: Sequence[Event], theirs: Mapping[str, float], nodes: Sequence[str], results: Mapping[str, str]
) -> list[Row]:
    place = {n: k for k, n in enumerate(nodes)}
    root: dict[str, str] = {}

    def find(n: str) -> str:
        while root.setdefault(n, n) != n:
            n = root[n]
        return n

    for e in events:
        for n in e.nodes[1:]:
            root[find(n)] = find(e.nodes[0])
    ours: dict[str, list[Event]] = defaultdict(list)
    for e in events:
        ours[find(e.nodes[0]) if e.nodes else ""].append(e)
    other: dict[str, list[str]] = defaultdict(list)
    for name in theirs:
        node = node_of(name, nodes, results)
        other[find(node) if node else re.sub(r"_token_\d+$", "", name)].append(name)
    members: dict[str, list[str]] = defaultdict(list)
    for n in root:
        members[find(n)].append(n)
    made = [
        Row(
            nodes=tuple(sorted(members.get(key, ()), key=lambda n: place.get(n, len(place)))),
            kernels=tuple(e.kernel.removesuffix("_argv") for e in ours[key]),
            ms=sum(e.seconds for e in ours[key]) * 1e3,
            theirs=tuple(other[key]),
            theirs_ms=sum(theirs[n] for n in other[key]),
        )
        for key in {**dict.fromkeys(ours), **dict.fromkeys(other)}
    ]
    return sorted(made, key=lambda r: -max(r.ms, r.theirs_ms))
