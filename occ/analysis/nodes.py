"""Node names of a model, as commands accept them, and steps of an artifact."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from occ.runtime.dataclass import dataclass

if TYPE_CHECKING:
    from occ.compiler.driver.source import Source


@dataclass(frozen=True)
class Node:
    """A node of a graph, or a step of an artifact.

    Attributes:
        name: of the node; for a step the names of its nodes.
        operator: of the node, with its domain; the kernel or routine of a step.
        inputs: names of values, empty if one is absent; a step has none.
        outputs: likewise.
        types: of the outputs as far as they are known, otherwise empty.
    """

    name: str
    operator: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    types: tuple[str, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)

    def __str__(self) -> str:
        from occ.compiler.diagnostics import shorten

        made = [f"{shorten(o)}: {t}" if t else shorten(o) for o, t in zip(self.outputs, self.types, strict=True)]
        arrow = f"({', '.join(map(shorten, self.inputs))}) -> {', '.join(made)}" if self.outputs else ""
        return f"{shorten(self.name) or '-'}  {shorten(self.operator)}{arrow}"


def nodes(model: Source) -> list[Node]:
    """The nodes of the main graph of a model, or the steps of an artifact, in order.

    Raises:
        CompileError: the model cannot be read. RunError: the artifact is damaged.
    """
    from occ.analysis.inspect import is_artifact
    from occ.compiler.driver.source import is_text, load_module

    if isinstance(model, (str, os.PathLike)) and is_artifact(model):
        return _steps(os.fspath(model))
    if is_text(model):
        return [_op(op) for op in load_module(model).main.body.body]
    return _of_onnx(model)


def _of_onnx(model: Any) -> list[Node]:
    from occ.analysis.inspect import inferred
    from occ.analysis.onnx_graph import loaded
    from occ.compiler.driver.source import load_module

    whole, _ = loaded(model)
    known = inferred(model) or load_module(model)
    types = {r.name: str(r.type) for op in known.walk() for r in op.results if not op.is_terminator}
    types |= dict(zip(known.main.result_names, (str(v.type) for v in known.main.results), strict=True))
    return [
        Node(
            n.name,
            f"{n.domain}.{n.op_type}" if n.domain not in ("", "ai.onnx") else n.op_type,
            tuple(n.input),
            tuple(n.output),
            tuple(types.get(o, "") for o in n.output),
        )
        for n in whole.graph.node
    ]


def _op(op: Any) -> Node:
    results = [r for r in op.results if r is not None]
    return Node(
        ", ".join(op.loc.nodes),
        op.name,
        tuple("" if o is None else o.name for o in op.operands),
        tuple(r.name for r in results),
        tuple(str(r.type) for r in results),
    )


def _steps(path: str) -> list[Node]:
    from occ.runtime.artifact import Artifact

    plan = Artifact.load(path).manifest.plan
    return [Node(", ".join(s.nodes), f"{s.kind} {s.name}") for s in plan.steps]
