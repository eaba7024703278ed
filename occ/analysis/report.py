"""`occ.report`: one HTML file that shows a model as it is compiled: graph, times, memory, code. It needs no network."""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from occ.analysis.drawing import edges, label
from occ.api import Shapes, settings_of
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.sessions import open_session
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.printer import op_text, te_text
from occ.compiler.ir.stages import ORDER
from occ.inputs import random_inputs
from occ.runtime.profile import Event, profile

if TYPE_CHECKING:
    from occ.compiler.driver.settings import Settings
    from occ.compiler.driver.source import Source
    from occ.runtime.session import Session

STAGES = ("imported", "inferred", "canonical", "fused", "layout", "scheduled")


def report(
    model: Source,
    out: str | os.PathLike[str] | None = None,
    target: str = "cpu",
    *,
    stage: str = "scheduled",
    inputs: Mapping[str, np.ndarray] | None = None,
    threads: int | None = None,
    shapes: Shapes | None = None,
    dims: Mapping[str, int] | None = None,
    options: Mapping[str, Any] | None = None,
    rules: Sequence[Any] = (),
) -> str:
    """The page of a model as text; other arguments as `occ.compile`.

    Args:
        model: as `occ.compile` takes.
        out: the file to write.
        target: that it is compiled for; times are measured where its artifact has kernels.
        stage: whose graph is drawn; kernels have times and code at `scheduled` only, which for targets that end
            before is their last stage.
        inputs: of the measured run; seeded random ones by default, symbolic dims as `dims` says.
        threads: of that run.

    Raises:
        CompileError: the model cannot be compiled. RunError: it cannot be run.
    """
    page = page_of(
        model, settings_of(target, shapes, None, options, rules=rules), stage, inputs, dict(dims or {}), threads
    )
    if out is not None:
        Path(out).write_text(page, "utf-8")
    return page


def page_of(
    model: Source, settings: Settings, stage: str, inputs: Mapping[str, np.ndarray] | None, sizes: dict[str, int],
    threads: int | None, opened: Callable[[Session], object] = bool,
) -> str:  # fmt: skip
    """The same with settings; `opened` is called with the session."""
    compilation = Compilation(model, settings)
    if stage == "scheduled":
        stage = min(stage, compilation.last_stage, key=lambda s: ORDER[s])
    graph = graph_data(compilation.advance(stage), compilation) if stage in STAGES else None
    assert graph is not None, f"stage is one of {', '.join(STAGES)}"
    artifact = compilation.artifact()
    session = open_session(artifact, threads, rules=settings.rules)
    opened(session)
    given = inputs or random_inputs(session, sizes, np.random.default_rng(0))
    data = graph | {"memory": _memory(session), "passes": _passes(compilation)}
    data |= _times(graph["nodes"], session, given)
    return html(f"{compilation.module.name} for {settings.target}, {stage}", data)


def html(title: str, data: Mapping[str, Any]) -> str:
    """The page; `<` in the data is escaped, so that no text of a model ends their element."""
    folder = files("occ.analysis").joinpath("page")
    parts = {
        name: folder.joinpath(name).read_text("utf-8")
        for name in ("page.html", "page.js", "dagre.min.js", "dagre.LICENSE")
    }
    library = f"/* dagre\n{parts['dagre.LICENSE']}*/\n{parts['dagre.min.js']}"
    text = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    page = parts["page.html"].replace("@TITLE@", escape(title))
    for mark, value in (("@DAGRE@", library), ("@SCRIPT@", parts["page.js"]), ("@DATA@", text)):
        page = page.replace(mark, value, 1)
    return page


def graph_data(m: Module, compilation: Compilation) -> dict[str, Any]:
    """Nodes and edges of the main function."""
    nodes = [_port(f"i{k}", v.name, v.type) for k, v in enumerate(m.main.args)]
    ops = [op for op in m.main.body if op.name != "yield"]
    nodes += [_node(f"n{k}", op, m, compilation) for k, op in enumerate(ops)]
    names = m.main.result_names or [v.name for v in m.main.results]
    nodes += [_port(f"o{k}", n, v.type) for k, (n, v) in enumerate(zip(names, m.main.results, strict=True))]
    known = {n["id"] for n in nodes}
    pairs = dict.fromkeys((a, b) for a, b, _ in edges(m) if a in known and b in known)
    return {"nodes": nodes, "edges": [{"from": a, "to": b} for a, b in pairs]}


def _empty(key: str, kind: str, text: str, type_: object) -> dict[str, Any]:
    return {
        "id": key, "kind": kind, "label": text, "type": "" if type_ is None else str(type_), "kernel": "", "nodes": [], "te": "",
        "source": "", "inside": "", "ms": None, "gflops": None, "gbytes": None, "share": None,
    }  # fmt: skip


def _port(key: str, name: str, type_: object) -> dict[str, Any]:
    return _empty(key, "port", name, type_)


def _node(key: str, op: Op, m: Module, compilation: Compilation) -> dict[str, Any]:
    made = _empty(key, "op", label(op), op.results[0].type if op.results else None) | {"nodes": list(op.loc.nodes)}
    made["inside"] = "\n".join(op_text(inner) for region in op.regions for inner in region)
    te = op.attrs.get("te")
    if isinstance(te, str) and te in m.te:
        made |= {"kernel": te, "te": te_text(m.te[te])}
        if "halide" in compilation.target.texts:
            from occ.compiler.codegen_halide.emit import generator

            made["source"] = generator(m.te[te], op.loc.nodes)
    return made


def _times(nodes: Iterable[dict[str, Any]], session: Session, given: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Give the nodes the times of their kernels, which run in the order of the graph; what stands at the top of the page."""
    found = profile(session, given)
    if found is None:
        return {"peak": 0, "facts": "this target has no kernels to time"}
    waiting: dict[tuple[str, tuple[str, ...]], list[Event]] = defaultdict(list)
    for event in found.events:
        waiting[event.kernel.removesuffix("_argv"), event.nodes].append(event)
    for node in nodes:
        events = waiting.get((node["kernel"], tuple(node["nodes"])))
        if events:
            e = events.pop(0)
            node |= {"ms": e.seconds * 1e3, "gflops": _finite(e.gflops), "gbytes": _finite(e.gbytes), "share": e.share}
    shapes = ", ".join(f"{name} {list(np.shape(a))}" for name, a in list(given.items())[:4])
    facts = (
        f"{len(found.events)} kernels, {found.seconds * 1e3:.3f} ms a run, threads: {found.threads}; inputs {shapes}"
    )
    return {"peak": _finite(found.peak), "facts": facts}


def _finite(x: float) -> float:
    return x if math.isfinite(x) else 0.0


def _memory(session: Session) -> list[dict[str, int]]:
    """Storages of the arena, where its sizes are constant: bytes, offset, and the steps in which they are in use."""
    found: list[dict[str, int]] = []
    for s in session.artifact.manifest.plan.storages:
        if s.offset >= 0 and isinstance(s.size, int):
            found.append({"bytes": s.size, "offset": s.offset, "first": s.first, "last": s.last})
    return found


def _passes(compilation: Compilation) -> list[dict[str, Any]]:
    ran = sorted(compilation.manager.ran, key=lambda r: -r.seconds)
    return [{"stage": r.stage, "name": r.text, "ms": r.seconds * 1e3, "ops": r.ops} for r in ran[:30]]
