"""Node groups that an Ascend device runs as `.om` models, and why others are left out.

It is independent of onnxruntime.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from os.path import isfile
from pathlib import Path
from typing import Any

from onnx import ModelProto, NodeProto

from occ.compiler.cache.cache import Cache, digest
from occ.compiler.cache.sources import source_digest
from occ.compiler.diagnostics import CompileError, error, shorten
from occ.compiler.frontend.signature import label_of
from occ.onnxruntime import policy
from occ.onnxruntime.ortgraph import GraphFacts
from occ.runtime.dataclass import dataclass
from occ.runtime.dims import evaluate
from occ.runtime.errors import RunError
from occ.runtime.manifest import Manifest

_NODE = re.compile(r"occ_node_(\d+)")  # names under which nodes are passed to the compiler
_GEARS = ("dynamic_batch_size", "dynamic_image_size", "dynamic_dims")
# Session options that do not affect compilation.
_OF_SESSIONS = (
    "device_id", "npu_mem_limit", "arena_extend_strategy", "enable_cann_subgraph", "dump_om_model", "dump_graphs",
)  # fmt: skip
# Restrictions due to what onnxruntime must know about a model, with remedies.
_NOT_IN_SESSIONS = {
    "dynamic_ranges": "set sizes as gears: dynamic_batch_size=1,2,8 or dynamic_dims=NAME=1;NAME=8",
    "aipp": "`occ.load` takes pictures",
    "input_fp16_nodes": "types come from the model: add a Cast there",
    "output_type": "types come from the model: add a Cast there",
}
# A memory limit too: data-dependent sizes, which onnxruntime must know before a run, stay on the CPU.
_ALL_MEMORY = str(1 << 60)


@dataclass(frozen=True)
class Group:
    """Nodes computed by one compiled model.

    Attributes:
        nodes: their positions.
        om: the compiled model.
        record: its description for the provider, lines `KEY VALUE`: names of inputs and outputs, and extents.
        model: the nodes as an ONNX model.
        inputs, outputs: names, in the order of the record.
        soc: the chip.
    """

    nodes: list[int]
    om: Path
    record: str
    model: ModelProto
    inputs: list[str]
    outputs: list[str]
    soc: str


@dataclass
class DeviceGroups:
    """Divides a graph between the device and the CPU.

    Attributes:
        facts: the graph.
        target: an Ascend target.
        given: its options, including the session's.
        left: why nodes are left out, by position.
        slow: which nodes of the device run on its AI CPU.
    """

    facts: GraphFacts
    target: str
    given: Mapping[str, Any]
    left: dict[int, str] = field(default_factory=dict)
    slow: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        from occ.compiler.targets.registry import get_target

        given = {k: str(v) for k, v in self.given.items()}
        known: Any = get_target(self.target).options
        options = known.read(self.target, {k: v for k, v in given.items() if k != "npu_mem_limit"})
        if not options.enable_cann_graph:
            message = "`enable_cann_graph=false` runs operator by operator, which sessions of onnxruntime do not"
            help_ = "leave it out here; `occ build -C enable_cann_graph=false` and `occ run` do so"
            raise error("OCC0603", message, help=help_)
        for key, remedy in _NOT_IN_SESSIONS.items():
            if getattr(options, key):
                raise error("OCC0603", f"`{key}` is not supported in sessions of onnxruntime", help=remedy)
        if dict(options.atc).get("external_weight", "0") != "0":
            message = "`atc.external_weight` puts weights beside an .om, which sessions of onnxruntime load from memory"
            raise error("OCC0603", message, help="leave it out here; `occ build -C atc.external_weight=1` takes it")
        self.gears = _gears(self.facts, options.gears, str(getattr(options, options.gears))) if options.gears else []
        self._options = {k: v for k, v in given.items() if k not in (*_OF_SESSIONS, *_GEARS)}
        self._kind = options.gears

    def groups(self) -> Iterator[Group]:
        """The groups of nodes that the device runs; `left` has the reason why each other node is not in one.

        Raises:
            CompileError: the model cannot be divided, as extents are open, or options are wrong; OCC0404 there is no
                `atc`.
        """
        facts = self.facts
        unread = facts.opaque - facts.nested - facts.assigned.keys()
        self.left |= dict.fromkeys(unread, "its attributes or sub-graphs are of kinds that cannot be read")
        wanted = [k for k in range(len(facts.nodes)) if k not in self.left and k not in facts.assigned]
        self._ask(wanted)
        while True:
            mine = [k for k in wanted if k not in self.left]
            found = policy.convex_groups(facts.nodes, set(mine).__contains__, facts.implicit)
            made = [self._group(nodes) for nodes in found]
            if all(made):
                yield from (g for g in made if g is not None)
                return
            if all(k in self.left for k in mine):
                return

    def _part(self, nodes: Sequence[int], *, numbered: bool = False) -> ModelProto | None:
        facts, inside = self.facts, set(nodes)
        outside = set(facts.outputs)
        for k, node in enumerate(facts.nodes):
            if k not in inside:
                outside |= {*node.input, *facts.implicit.get(k, ())}
        named: Sequence[NodeProto] = facts.nodes
        if numbered:
            named = [_renamed(n, f"occ_node_{k}") for k, n in enumerate(facts.nodes)]
        model = policy.part(nodes, named, facts.types, facts.weights, outside, facts.opsets, facts.implicit)
        if model is not None:  # gears depend on the order of the inputs
            order = {name: k for k, name in enumerate(facts.inputs)}
            listed = sorted(model.graph.input, key=lambda v: order.get(v.name, len(order)))
            del model.graph.input[:]
            model.graph.input.extend(listed)
        return model

    def _ask(self, wanted: Sequence[int]) -> None:
        """Find what the compiler rejects, at the first gear if there are several.

        Raises:
            CompileError: it rejects the model, without naming a node.
        """
        from occ.compiler.driver.compilation import Compilation
        from occ.compiler.driver.settings import Settings
        from occ.compiler.frontend.signature import Overrides

        dims = self.gears[0] if self.gears else {}
        while nodes := [k for k in wanted if k not in self.left]:
            model = self._part(nodes, numbered=True)
            if model is None:
                self.left |= dict.fromkeys(nodes, "a value at their border is not a tensor")
                return
            known = {n: v for n, v in dims.items() if n in _symbols(model)}
            settings = Settings(
                self.target,
                Overrides(dims=known),
                {**self._options, "npu_mem_limit": _ALL_MEMORY, "cpu_fallback": "cpu-jit"},
            )
            try:
                told, final = Compilation(model, settings).check(), True
            except CompileError as e:
                told, final = e.diagnostics, False
            against = told if not final else [d for d in told if d.code == "OCC0301"]
            reasons = {
                int(n): d.message for d in against for n in _NODE.findall(f"{d.where} {d.message}") if int(n) in nodes
            }
            self.slow = [_NODE.sub(self._name, d.message) for d in told if d not in against]
            if not final and not reasons:
                raise CompileError(told)
            self.left |= reasons
            if final:
                return

    def _name(self, found: re.Match[str]) -> str:
        node = self.facts.nodes[int(found[1])]
        return shorten(node.name or next((o for o in node.output if o), ""), 60)

    def _group(self, nodes: list[int]) -> Group | None:
        """A compiled group; None with reasons in `left` if that is not possible."""
        model = self._part(nodes)
        if model is None:
            self.left |= dict.fromkeys(nodes, "a value at its border is not a tensor")
            return None
        borders = [*model.graph.input, *model.graph.output]
        if strange := next((v.name for v in borders if not v.name.isprintable()), None):
            self.left |= dict.fromkeys(nodes, f"the value `{shorten(strange)}` has a name that cannot be written down")
            return None
        try:
            om, record, missing = self._compiled(model)
        except (CompileError, RunError) as e:
            if isinstance(e, CompileError) and e.diagnostics[0].code.startswith("OCC04"):
                raise
            reason = e.diagnostics[0].message if isinstance(e, CompileError) else e.message
            self.left |= dict.fromkeys(nodes, reason)
            return None
        if missing:
            makers = {k for k in nodes for name in self.facts.nodes[k].output if name in missing}
            reason = "there is nothing to compute for it: its result is a constant, or an input"
            self.left |= dict.fromkeys(makers or nodes, reason)
            return None
        lines = [line.partition(" ") for line in record.splitlines()]
        told = {key: [v for k, _, v in lines if k == key] for key in ("input", "output", "soc")}
        return Group(nodes, om, record, model, told["input"], told["output"], told["soc"][0])

    def _compiled(self, model: ModelProto) -> tuple[Path, str, list[str]]:
        """The compiled model of a group, its record, and the outputs that it lacks."""
        from occ.compiler.codegen_cann.output.toolkit import find_toolkit

        data = model.SerializeToString(deterministic=True)
        options, kind = self._options_for(model)
        toolkit = find_toolkit()
        how = [
            toolkit.atc,
            toolkit.release,
            self.target,
            *(f"{k}={v}" for k, v in sorted(options.items())),
            source_digest("occ.compiler", "occ.runtime"),
        ]
        named = [Path(v).read_bytes() for _, v in sorted(options.items()) if isfile(v)]
        cache, key = Cache(), digest(["ort-ascend", *how, kind, data, *named])
        if cache.has("group", key, ".om") and cache.has("group", key, ".txt"):
            return cache.path("group", key, ".om"), cache.path("group", key, ".txt").read_text("utf-8"), []
        om, record, missing = _compile(data, self.target, options, kind, cache)
        if missing:
            return Path(), "", missing
        cache.put("group", key, om, ".om")
        cache.put("group", key, record.encode(), ".txt")
        return cache.path("group", key, ".om"), record, []

    def _options_for(self, model: ModelProto) -> tuple[dict[str, str], str]:
        """The options for compiling a group, and the kind of its gears.

        A group smaller than the graph may have only some of the symbolic dims; gears that become equal are merged.
        """
        options = {**self._options, "cpu_fallback": "off"}
        symbols = _symbols(model)
        if not self.gears or not symbols:
            return options, ""
        if len(model.graph.node) == len(self.facts.nodes):
            return {**options, self._kind: str(self.given[self._kind])}, self._kind
        rows = list(dict.fromkeys(tuple((n, g[n]) for n in symbols if n in g) for g in self.gears))
        if len(rows) < 2:
            message = f"the dims {', '.join(symbols)} have one size in all gears"
            raise error("OCC0603", message, help="fix them by `SessionOptions.add_free_dimension_override_by_name`")
        return {
            **options,
            "dynamic_dims": ";".join(",".join(f"{n}={v}" for n, v in row) for row in rows),
        }, "dynamic_dims"


def _compile(
    data: bytes, target: str, options: Mapping[str, str], kind: str, cache: Cache
) -> tuple[bytes, str, list[str]]:
    from occ.compiler.codegen_cann.output.toolkit import compile_parts
    from occ.compiler.driver.compilation import Compilation
    from occ.compiler.driver.settings import Settings

    artifact = Compilation(data, Settings(target, options=options)).artifact()
    m = artifact.manifest
    if len(m.parts) != 1 or m.cpu_subgraphs:
        if not m.parts and not m.cpu_subgraphs:
            return b"", "", [t.name for t in m.outputs]
        raise error("OCC0301", f"it would be divided into {len(m.parts)} parts on the device")
    missing = sorted({t.name for t in m.outputs} - {t.name for t in m.parts[0].outputs})
    if missing:
        return b"", "", missing
    made = compile_parts(artifact, cache)
    return made.files[made.manifest.parts[0].om], _record(m, kind), []


def _record(m: Manifest, kind: str) -> str:
    """The record of a compiled model for the provider: input and output extents, per gear if there are several."""
    (part,) = m.parts
    short = {"dynamic_batch_size": "batch", "dynamic_image_size": "image", "dynamic_dims": "dims"}
    lines = [f"name {part.name}", f"soc {part.soc}", *([f"kind {short[kind]}"] if kind else [])]
    lines += [f"input {t.name}" for t in part.inputs] + [f"output {t.name}" for t in part.outputs]
    for gear in part.gears or [{}]:
        sides = [
            ";".join(",".join(str(evaluate(d, gear)) for d in t.shape) for t in side)
            for side in (part.inputs, part.outputs)
        ]
        lines.append(f"gear {sides[0]} > {sides[1]}")
    return "\n".join(lines) + "\n"


def _symbols(model: ModelProto) -> list[str]:
    """The names of the symbolic dims of the inputs, as occ has them, in order."""
    return list(
        dict.fromkeys(
            label_of(v.name, k, d)
            for v in model.graph.input
            for k, d in enumerate(v.type.tensor_type.shape.dim)
            if not d.HasField("dim_value")
        )
    )


def _gears(facts: GraphFacts, key: str, given: str) -> list[dict[str, int]]:
    """The gears of a graph by the names of its dims.

    Unsuitable ones are rejected when it is compiled.
    """
    inputs = [facts.types[n] for n in facts.inputs if n in facts.types and n not in facts.weights]
    axes = {"dynamic_batch_size": (0,), "dynamic_image_size": (2, 3)}.get(key)
    names = [
        label_of(v.name, k, d)
        for v in inputs
        for k, d in enumerate(v.type.tensor_type.shape.dim)
        if not d.HasField("dim_value") and (axes is None or k in axes)
    ]
    if "=" in given:
        items = [[item.strip().rpartition("=") for item in row.split(",")] for row in given.strip(";").split(";")]
        return [{n: int(v) for n, _, v in row if v.strip().isdecimal()} for row in items]
    rows = (
        [[v] for v in given.split(",")]
        if key == "dynamic_batch_size"
        else [r.split(",") for r in given.strip(";").split(";")]
    )
    return [{n: int(v) for n, v in zip(names, row, strict=False) if v.strip().isdecimal()} for row in rows]


def _renamed(node: NodeProto, name: str) -> NodeProto:
    made = NodeProto()
    made.CopyFrom(node)
    made.name = name
    return made


def reason_text(node: NodeProto, reason: str) -> str:
    """A node that is left out, and the reason, on one line."""
    name = shorten(node.name or next((o for o in node.output if o), ""), 80)
    return f"{shorten(node.op_type, 60)} `{name}`: {reason}"
