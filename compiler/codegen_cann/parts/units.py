"""The unit of the chip (AI Core, AI CPU) that runs each node, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from occ.compiler.codegen_cann.graph.graph import Graph, Node
from occ.compiler.codegen_cann.graph.kernels import KernelTable, is_dynamic
from occ.compiler.diagnostics import Diagnostic, shorten
from occ.runtime.dataclass import dataclass

# Operators of the matrix unit; the rest of AI Core is the vector unit.
_MATRIX = frozenset(
    {
        "BatchMatMulV2", "Conv2D", "Conv2DTranspose", "Conv3D", "Conv3DTranspose", "DynamicGRUV2", "DynamicRNN",
        "FusedInferAttentionScore", "IncreFlashAttention", "MatMulV2", "PromptFlashAttention",
        "WeightQuantBatchMatmulV2",
    }
)  # fmt: skip
_PLUMBING = ("Data", "Const", "NetOutput")
_SHOWN = 3  # nodes of an operator that a message lists


@dataclass(frozen=True)
class Placed:
    """A node and the unit that runs it.

    Attributes:
        node, operator: its name, and its type.
        unit: `AI Core` (its matrix unit), `vector` (the vector unit of AI Core), `AI CPU`, `TF` (TensorFlow's kernels
            on the AI CPU), `GE` (no kernel needed).
        types: of its operands, and of results if these differ.
        why: the reason.
        source: nodes of the model that it implements.
    """

    node: str
    operator: str
    unit: str
    types: str
    why: str
    source: tuple[str, ...]

    @property
    def slow(self) -> bool:
        """Whether the AI CPU runs it."""
        return self.unit in ("AI CPU", "TF")

    def as_data(self) -> dict[str, Any]:
        """The data as JSON has it."""
        return asdict(self)


def placed(graph: Graph, table: KernelTable, precision: str, *, fixed: bool = False) -> list[Placed]:
    """The unit (AI Core, AI CPU, ..) that runs each node of a graph and its sub-graphs, and why.

    The arguments are those of `KernelTable.lacking`.
    """
    nodes = (n for g in graph.all() for n in g.nodes if n.type not in _PLUMBING)
    return [_placed(n, table, precision, unknown=is_dynamic(n) and not fixed) for n in nodes]


def _placed(node: Node, table: KernelTable, precision: str, *, unknown: bool) -> Placed:
    unit = table.unit(node, precision, dynamic=unknown)
    taken = dict.fromkeys(r.dtype for r in node.inputs if r is not None)
    given = [t for t in dict.fromkeys(d.dtype for d in node.outputs) if t not in taken]
    types = " giving ".join(filter(None, (", ".join(taken), ", ".join(given))))
    why = {
        "AI Core": f"AI Core has a kernel for {types}",
        "GE": "a view, a size or control flow, which needs no kernel",
        "": "no unit has a kernel",
    }
    if unit in ("AI CPU", "TF"):
        fixed = unknown and table.unit(node, precision, dynamic=False) == "AI Core"
        lack = (
            "requires fixed extents"
            if fixed
            else f"has no kernel for {types}"
            if _on_core(table, node)
            else "has no kernel"
        )
        why[unit] = f"AI Core {lack}"
    shown = "vector" if unit == "AI Core" and node.type not in _MATRIX else unit
    return Placed(node.name, node.type, shown, types, why[unit], node.source)


def _on_core(table: KernelTable, node: Node) -> bool:
    return any(k.unit == "AI Core" for k in table.kernels(node.type))


def counts(nodes: Iterable[Placed]) -> dict[str, int]:
    """The number of nodes on each unit, largest first."""
    return dict(Counter(p.unit for p in nodes).most_common())


def slow_nodes(nodes: Sequence[Placed]) -> list[str]:
    """A line for each operator and types that the AI CPU runs, with the reason and a remedy."""
    groups: dict[tuple[str, str, str], list[Placed]] = {}
    for p in nodes:
        if p.slow:
            groups.setdefault((p.operator, p.types, p.why), []).append(p)
    return [f"{_named(found)}: {found[0].why}; {_remedy(found[0])}" for found in groups.values()]


def _named(found: Sequence[Placed]) -> str:
    shown = ", ".join(shorten(", ".join(p.source) or p.node) for p in found[:_SHOWN])
    return f"{len(found)} {found[0].operator} ({shown}{', ...' if len(found) > _SHOWN else ''})"


def _remedy(p: Placed) -> str:
    """How to keep a node off the AI CPU."""
    if "fixed extents" in p.why:
        return "gears have fixed extents: `-C dynamic_dims=...` instead of ranges"
    wide = next((t for t in ("DOUBLE", "INT64", "UINT64", "UINT32", "UINT16", "INT16", "UINT8") if t in p.types), "")
    if wide and "has no kernel for" in p.why:
        return f"with FLOAT or INT32 instead of {wide} in the model it would be on AI Core"
    return "`occ extract` cuts the model before it, so that the host or another device can run it"


def slow_warnings(nodes: Sequence[Placed], target: str, source: str) -> list[Diagnostic]:
    """A warning for each such line, as in `occ check`."""
    return [
        Diagnostic(
            "OCC0311",
            f"the AI CPU of `{target}` runs {line.partition('; ')[0]}",
            source,
            helps=(line.partition("; ")[2],),
            severity="warning",
        )
        for line in slow_nodes(nodes)
    ]


def narrow_batches(graphs: Iterable[Graph], table: KernelTable, precision: str) -> list[str]:
    """The warning that dynamic batch products have half-precision results where the chip lacks a wider kernel."""
    nodes = [n for top in graphs for g in top.all() for n in g.nodes if n.type == "BatchMatMulV2" and is_dynamic(n)]
    wide = any(
        k.dynamic and "FLOAT" in k.outputs[0].types for k in table.kernels("BatchMatMulV2") if k.unit == "AI Core"
    )
    narrow = [n for n in nodes if n.outputs[0].dtype == "FLOAT"]
    if wide or not narrow or precision == "origin":
        return []
    return [
        f"{len(narrow)} BatchMatMulV2 have results in half precision, since the chip has no other kernel for "
        "symbolic extents: values above 65504 saturate; gears (`-C dynamic_dims=...`) keep FLOAT"
    ]
