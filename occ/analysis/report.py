"""`occ.report`: one HTML file with graph, times, memory and code.

It needs no network.
"""

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

from occ.analysis.per_op import joined
from occ.analysis.report_graph import graph_data
from occ.api import Shapes, settings_of
from occ.arguments import checked_mapping, checked_sizes
from occ.compiler.diagnostics import error
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.sessions import open_session
from occ.compiler.ir.stages import ORDER
from occ.compiler.targets.default import DEFAULT
from occ.inputs import random_inputs
from occ.runtime.buffers import assign_offsets
from occ.runtime.dataclass import dataclass
from occ.runtime.dims import evaluate, is_known
from occ.runtime.profile import Event, Profile, disturbed, profile

if TYPE_CHECKING:
    from occ.compiler.driver.settings import Settings
    from occ.compiler.driver.source import Source
    from occ.runtime.artifact import Artifact
    from occ.runtime.manifest import Manifest
    from occ.runtime.session import Session

STAGES = ("imported", "inferred", "canonical", "fused", "layout", "scheduled")
AGAINST = ("onnxruntime", "none")
PAGE_SUFFIXES = ("", ".html", ".htm")


def report(
    model: Source,
    out: str | os.PathLike[str] | None = None,
    target: str = DEFAULT,
    *,
    stage: str = "scheduled",
    inputs: Mapping[str, np.ndarray] | None = None,
    threads: int | None = None,
    against: str = "onnxruntime",
    shapes: Shapes | None = None,
    dims: Mapping[str, int] | None = None,
    options: Mapping[str, Any] | None = None,
    rules: Sequence[Any] = (),
) -> str:
    """The page of a model as text; other arguments as for `occ.compile`.

    Args:
        model: as for `occ.compile`.
        out: the file to write.
        target: the target to compile for; times are measured if its artifact has kernels.
        stage: whose graph is drawn; kernels have times and code only at `scheduled`, or at the last stage of targets
            that end before it.
        inputs: of the measured run; seeded random ones by default, with symbolic dims from `dims`.
        threads: of that run.
        against: `onnxruntime`, whose times by node are shown next to those of the kernels if it is installed and the
            model is an ONNX file, or `none`.

    Raises:
        CompileError: the model cannot be compiled; OCC0602, OCC0603 an argument is invalid; OCC0605 `out` has the name
            of another format. RunError: it cannot be run.
    """
    if out is not None and Path(out).suffix.lower() not in PAGE_SUFFIXES:
        remedy = f"name it `{Path(out).with_suffix('.html')}`"
        raise error("OCC0605", f"a report is a page in HTML, not `{out}`", help=remedy)
    _refuse(stage, against)
    how = Measuring(stage, checked_mapping("inputs", inputs), checked_sizes(dims), threads, against)
    page = page_of(model, settings_of(target, shapes, None, options, rules=rules), how)
    if out is not None:
        Path(out).write_text(page, "utf-8")
    return page


def _refuse(stage: str, against: str) -> None:
    if stage not in STAGES:
        raise error("OCC0602", f"a report shows no stage {stage!r}", help=f"stages: {', '.join(STAGES)}")
    if against not in AGAINST:
        raise error("OCC0603", f"against is {against!r}", help=f"one of {', '.join(AGAINST)}")


@dataclass(frozen=True)
class Measuring:
    """The stage that a page shows, and the run that it measures; the fields are arguments of `report`.

    Attributes:
        sizes: of symbolic dims, for random inputs.
    """

    stage: str
    inputs: Mapping[str, np.ndarray] | None
    sizes: dict[str, int]
    threads: int | None
    against: str = "none"


def page_of(model: Source, settings: Settings, how: Measuring, opened: Callable[[Session], object] = bool) -> str:
    """The same with settings; `opened` is called with the session."""
    stage, compilation = how.stage, Compilation(model, settings)
    if stage == "scheduled":
        stage = min(stage, compilation.last_stage, key=lambda s: ORDER[s])
    graph = graph_data(compilation.advance(stage), compilation) if stage in STAGES else None
    assert graph is not None, f"stage is one of {', '.join(STAGES)}"
    artifact = compilation.artifact()
    on_device = artifact.manifest.engine == "ascend"
    if on_device:
        _name_units(graph["nodes"], artifact)
    session = open_session(artifact, how.threads, rules=settings.rules, simulate=on_device)
    opened(session)
    given = how.inputs or random_inputs(session, how.sizes, np.random.default_rng(0))
    data = graph | {
        "memory": _memory(artifact.manifest, given),
        "passes": _passes(compilation),
        "sizes": _sizes(artifact),
    }
    found = profile(session, given)
    data |= _times(graph["nodes"], found, given)
    data["against"] = (
        _against(model, found, given, graph["nodes"]) if found and how.against == "onnxruntime" else {"rows": []}
    )
    return html(f"{compilation.module.name} for {settings.target}, {stage}", data)


def _name_units(nodes: Iterable[dict[str, Any]], artifact: Artifact) -> None:
    """Annotate Ascend nodes with their unit: a line for each GE node, or the CPU."""
    lines: dict[str, list[str]] = defaultdict(list)
    for part in artifact.manifest.parts:
        for p in json.loads(artifact.files.get(f"device/{part.name}.units.json", b"[]")):
            for name in p["source"]:
                lines[name].append(f"{p['operator']} {p['node']}: {p['unit']}, {p['why']}")
    for node in nodes:
        found = list(dict.fromkeys(line for name in node["nodes"] for line in lines.get(name, ())))
        node["inside"] = "\n".join(filter(None, (node["inside"], *(found or (["the CPU"] if node["nodes"] else [])))))


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


def _times(nodes: Iterable[dict[str, Any]], found: Profile | None, given: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Assign kernel times to the nodes, which run in the order of the graph.

    Returns the page's heading.
    """
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
    unsteady = f"; {said}" if (said := disturbed(found.spread)) else ""
    facts = (
        f"{len(found.events)} kernels, {found.seconds * 1e3:.3f} ms a run, threads: {found.threads}; inputs "
        f"{shapes}{unsteady}"
    )
    return {"peak": _finite(found.peak), "facts": facts}


def _finite(x: float) -> float:
    return x if math.isfinite(x) else 0.0


def _against(
    model: Source, found: Profile, given: Mapping[str, np.ndarray], nodes: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Rows of ONNX nodes with the times of both sides, and the corresponding nodes of the graph.

    Or why there are none.
    """
    if not isinstance(model, (str, os.PathLike)) or Path(model).suffix not in (".onnx", ".ort"):
        return {"rows": []}
    try:
        made = joined(found, os.fspath(model), given)
    except ImportError:
        return {"rows": [], "note": "onnxruntime is not installed: `pip install onnxruntime` to compare with it"}
    except ValueError as e:
        return {"rows": [], "note": str(e)}
    place: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        for name in node["nodes"] if node["ms"] is not None else ():
            place[name].append(node["id"])
    rows = [
        {"ms": r.ms, "theirs": r.theirs_ms, "nodes": r.nodes or r.theirs, "ids": list(dict.fromkeys(i for n in r.nodes for i in place[n]))}
        for r in made.rows
    ]  # fmt: skip
    return {"rows": rows} if made.steady else {"rows": rows, "unsteady": True, "note": disturbed(made.spread)}


def _sizes(artifact: Artifact) -> list[dict[str, Any]]:
    """Bytes of an artifact's parts."""
    m = artifact.manifest
    made = {
        "weights": sum(w.nbytes for w in m.weights),
        "native code": len(artifact.code or b""),
        "other members": sum(len(data) for data in artifact.files.values()),
    }
    return [{"what": what, "bytes": n} for what, n in made.items() if n]


def _memory(m: Manifest, given: Mapping[str, np.ndarray]) -> list[dict[str, int]]:
    """Arena storages at the run's sizes: bytes, offset, and the steps in which they are used."""
    sizes = {
        e: n
        for i in m.inputs
        if i.name in given
        for e, n in zip(i.shape, np.shape(given[i.name]), strict=False)
        if isinstance(e, str)
    }
    arena = [s for s in m.plan.storages if s.kind == "arena" and is_known(s.size, sizes)]
    each = [evaluate(s.size, sizes) for s in arena]
    offsets = (
        [s.offset for s in arena] if m.plan.arena >= 0 else assign_offsets(each, [(s.first, s.last) for s in arena])[0]
    )
    return [
        {"bytes": n, "offset": offset, "first": s.first, "last": s.last}
        for s, n, offset in zip(arena, each, offsets, strict=True)
    ]


def _passes(compilation: Compilation) -> list[dict[str, Any]]:
    ran = sorted(compilation.manager.ran, key=lambda r: -r.seconds)
    return [{"stage": r.stage, "name": r.text, "ms": r.seconds * 1e3, "ops": r.ops} for r in ran[:30]]
