"""The compiler side of the onnxruntime plugin: claims nodes, and compiles them."""

from __future__ import annotations

import ctypes as c
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from onnx import ModelProto, helper

from occ.compiler.cache.cache import Cache, digest
from occ.compiler.cache.sources import source_digest
from occ.compiler.targets.default import DEFAULT
from occ.onnxruntime import policy
from occ.onnxruntime.background import REFUSED, start
from occ.onnxruntime.compile_group import compile_group
from occ.onnxruntime.ortgraph import GraphFacts, read_graph
from occ.runtime.dataclass import dataclass

log = logging.getLogger("occ.onnxruntime")
PENDING = Path()  # the artifact of a group that is not compiled yet


@dataclass
class Claimed:
    """A claimed group: number of nodes, and the artifact."""

    nodes: int
    artifact: Path


@dataclass
class Claims:
    """The interface of one plugin library.

    Attributes:
        library: the plugin, loaded.
        target: for the groups.
        options: of the target.
        least: `policy.LEAST`, or another minimum cost of groups.
        taken: groups of all sessions so far.
        refused: why groups were left to onnxruntime, by their digest.
        way: `wait` until a group is compiled; compile it in the `background`, for later sessions; or `never`, and only
            use groups compiled before.
    """

    library: c.CDLL
    target: str = DEFAULT
    options: Mapping[str, Any] = field(default_factory=dict)
    least: int = policy.LEAST
    taken: list[Claimed] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    way: str = "wait"
    _started: set[str] = field(default_factory=set)

    def __call__(self, table: int, graph: int, claims: int) -> None:
        """The callback; any failure leaves the nodes to onnxruntime."""
        try:
            self._claim(table, graph, claims)
        except Exception:
            log.exception("occ takes nothing of a graph")

    def _claim(self, table: int, graph: int, claims: int) -> None:
        facts = read_graph(table, graph)
        for group, artifact in self.groups(facts):
            handles = (c.c_void_p * len(group))(*[facts.handles[k] for k in group])
            path, model = os.fsencode(artifact), artifact.with_suffix(".onnx")
            general = os.fsencode(model) if model.is_file() else b""
            if not self.library.occ_ep_claim(c.c_void_p(claims), handles, c.c_size_t(len(group)), path, general):
                self.taken.append(Claimed(len(group), artifact))

    def groups(self, facts: GraphFacts) -> Iterator[tuple[list[int], Path]]:
        """Groups with their artifacts: everything that compiles; if that fails, without data-dependent shapes."""
        ours = policy.with_known_ranks(
            facts.nodes,
            {k for k, n in enumerate(facts.nodes) if k not in facts.opaque and policy.supported(n)},
            lambda n: n in facts.weights or facts.has_rank(n),
        )
        for group in self._worth(facts, ours):
            made = self._artifact(facts, group)
            if made == PENDING:
                continue
            if made is not None:
                yield group, made
                continue
            fixed = {k for k in group if not policy.decided_by_data(facts.nodes[k], facts.weights)}
            for smaller in self._worth(facts, fixed) if len(fixed) < len(group) else ():
                again = self._artifact(facts, smaller)
                if again is not None and again != PENDING:
                    yield smaller, again

    def _worth(self, facts: GraphFacts, ours: set[int]) -> Iterator[list[int]]:
        for group in policy.convex_groups(facts.nodes, ours.__contains__, facts.implicit):
            if policy.cost(group, facts.nodes, facts.types, facts.weights) >= self.least:
                yield group

    def _artifact(self, facts: GraphFacts, group: Sequence[int]) -> Path | None:
        inside = set(group)
        outside = set(facts.outputs)
        for k, node in enumerate(facts.nodes):
            if k not in inside:
                outside |= {*node.input, *facts.implicit.get(k, ())}
        types = facts.types | {
            n: helper.make_tensor_value_info(n, v.type.tensor_type.elem_type, None)
            for n, v in facts.types.items()
            if not facts.has_rank(n)
        }
        model = policy.part(group, facts.nodes, types, facts.weights, outside, facts.opsets)
        return None if model is None else self.build(model)

    def build(self, model: ModelProto) -> Path | None:
        """The artifact of a group, from the cache if it was built before.

        None if there is no native code for it, `PENDING` if there may be later.
        """
        data = model.SerializeToString(deterministic=True)
        how = [
            self.target,
            *(f"{k}={v}" for k, v in sorted(self.options.items())),
            source_digest("occ.compiler", "occ.runtime"),
        ]
        key = digest(["ort", *how, data])
        if key in self.refused:
            return None
        cache = Cache()
        path, reason = cache.path("group", key, ".occ"), ""
        if not cache.has("group", key, ".occ"):
            if self.way != "wait":
                return self._later(model, data, key, cache)
            reason = compile_group(model, data, key, cache, self.target, self.options)
        reason = reason or self.library.occ_ep_refusal(os.fsencode(path)).decode("utf-8", "replace")
        if not reason:
            return path
        self.refused[key] = reason
        log.info("a group of %d nodes stays with onnxruntime: %s", len(model.graph.node), reason)
        return None

    def _later(self, model: ModelProto, data: bytes, key: str, cache: Cache) -> Path | None:
        """Leave a group that is not compiled yet to onnxruntime in this session."""
        if cache.has("group", key, REFUSED):
            return None
        if self.way == "background" and key not in self._started:
            self._started.add(key)
            start(data, key, self.target, self.options)
            log.warning(
                "a group of %d nodes is compiled in the background: onnxruntime runs it in this session, occ in "
                "later ones",
                len(model.graph.node),
            )
        return PENDING
