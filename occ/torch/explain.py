"""Reports what occ did with the graphs of torch.compile."""

from __future__ import annotations

from collections import Counter
from dataclasses import field

from occ.runtime.dataclass import dataclass
from occ.torch.library import torch_module


@dataclass(frozen=True)
class Graph:
    """One graph.

    Attributes:
        nodes: number of calls in it.
        seconds: of exporting and compiling.
        reason: why it runs in eager mode; empty if occ runs it.
    """

    nodes: int
    seconds: float
    reason: str = ""


@dataclass
class Explanation:
    """The graphs of this process, in order, and where Dynamo broke one.

    Attributes:
        graphs: graphs passed to occ.
        breaks: reasons of graph breaks, with their counts.
    """

    graphs: list[Graph] = field(default_factory=list)
    breaks: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        lines = [f"{len(self.graphs)} graphs, {sum(self.breaks.values())} breaks"]
        lines += [
            f"{g.nodes:5} nodes {g.seconds:7.2f} s  {f'eager: {g.reason}' if g.reason else 'occ'}" for g in self.graphs
        ]
        lines += [f"break {n} times: {text.splitlines()[0][:100]}" for text, n in self.breaks.items()]
        return "\n".join(lines)


GRAPHS: list[Graph] = []


def explain(*, clear: bool = False) -> Explanation:
    """The outcome for each graph since the start, or since the last call with `clear`."""
    counters = torch_module("torch._dynamo.utils").counters

    made = Explanation(list(GRAPHS), Counter(counters["graph_break"]))
    if clear:
        GRAPHS.clear()
        counters["graph_break"].clear()
    return made
