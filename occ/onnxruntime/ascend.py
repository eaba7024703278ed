"""The Ascend side of the onnxruntime plugin."""

from __future__ import annotations

import ctypes as c
import logging
import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from occ.compiler.diagnostics import CompileError, error
from occ.onnxruntime.claims import Claimed
from occ.onnxruntime.device_groups import DeviceGroups, Group, reason_text
from occ.onnxruntime.ortgraph import GraphFacts, read_graph
from occ.runtime.dataclass import dataclass

NAME = "OccAscendExecutionProvider"
_SHOWN = 8  # nodes that a message lists
log = logging.getLogger("occ.onnxruntime")


def load_library(path: str) -> c.CDLL:
    """The plugin, with the types of its functions."""
    library = c.CDLL(path)
    for name in ("occ_ep_options", "occ_ep_soc"):
        getattr(library, name).restype = c.c_char_p
        getattr(library, name).argtypes = [c.c_void_p]
    library.occ_ep_refuse.argtypes = [c.c_void_p, c.c_char_p]
    library.occ_ep_warn.argtypes = [c.c_void_p, c.c_char_p]
    return library


def check_chip(target: str, soc: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options for the chip of a device; the device's own chip by default.

    Raises:
        CompileError: OCC0303 there is no such target; OCC0510 the device is of another one; OCC0603 an option is wrong.
    """
    from occ.compiler.codegen_cann.options import SOCS
    from occ.compiler.targets.registry import get_target

    get_target(target).options.read(target, {k: str(v) for k, v in options.items()})
    asked = options.get("soc_version") or (soc if soc in SOCS[target] else "")
    if asked != soc:
        fits = next((t for t, chips in SOCS.items() if soc in chips), "")
        help_ = f"register(`{fits}`)" if fits else "occ has no target for it"
        raise error(
            "OCC0510",
            f"the device is `{soc}`, which `{target}`{f' for `{asked}`' if asked else ''} does not compile for",
            help=help_,
        )
    return {**options, "soc_version": soc}


@dataclass
class AscendClaims:
    """The interface of the plugin for Ascend devices.

    Attributes:
        library: the plugin, loaded.
        target: for the groups.
        options: of the target; a session's take precedence.
        taken: groups of all sessions so far.
        refused: why nodes were left to the CPU, one text each.
    """

    library: c.CDLL
    target: str
    options: Mapping[str, Any] = field(default_factory=dict)
    taken: list[Claimed] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    def __call__(self, table: int, graph: int, claims: int) -> None:
        """The callback; any failure fails the session."""
        try:
            facts = read_graph(table, graph, nested=True)
            left = facts.assigned.keys() < set(range(len(facts.nodes)))
            if left and NAME not in facts.assigned.values():  # otherwise queried before, and this is what was left then
                self._claim(facts, claims)
        except CompileError as e:
            self.library.occ_ep_refuse(claims, "\n".join(d.text() for d in e.diagnostics).encode())
        except Exception as e:
            log.exception("a model cannot be compiled")
            self.library.occ_ep_refuse(claims, f"{type(e).__name__}: {e}".encode())

    def _claim(self, facts: GraphFacts, claims: int) -> None:
        lines = self.library.occ_ep_options(claims).decode("utf-8", "replace").splitlines()
        given = {**self.options, **dict(line.partition("=")[::2] for line in lines)}
        soc = self.library.occ_ep_soc(claims).decode()
        options = check_chip(self.target, soc, {k: v for k, v in given.items() if k != "npu_mem_limit"})
        divided = DeviceGroups(facts, self.target, options)
        groups = list(divided.groups())
        self.refused |= {reason_text(facts.nodes[k], r): r for k, r in divided.left.items()}
        if divided.left:
            check_left(
                facts, groups, divided.left, self.target, whole=_is_false(given.get("enable_cann_subgraph", "true"))
            )
            told = f"{len(divided.left)} of {len(facts.nodes)} nodes stay with the CPU: {_listed(facts, divided.left)}"
            self.library.occ_ep_warn(claims, told.encode())
        for told in divided.slow:
            self.library.occ_ep_warn(claims, told.encode())
        for group in groups:
            self._take(facts, claims, group, given)

    def _take(self, facts: GraphFacts, claims: int, group: Group, given: Mapping[str, Any]) -> None:
        handles = (c.c_void_p * len(group.nodes))(*[facts.handles[k] for k in group.nodes])
        where = os.fsencode(group.om), group.record.encode()
        if self.library.occ_ep_claim(c.c_void_p(claims), handles, c.c_size_t(len(group.nodes)), *where):
            return
        self.taken.append(Claimed(len(group.nodes), group.om))
        stem = f"{NAME}_{group.om.stem[:16]}"
        if _is_true(given.get("dump_graphs", "")):
            Path(f"{stem}.onnx").write_bytes(group.model.SerializeToString())
        if _is_true(given.get("dump_om_model", "")):
            Path(f"{stem}.om").write_bytes(group.om.read_bytes())


def check_left(facts: GraphFacts, groups: list[Group], left: Mapping[int, str], target: str, *, whole: bool) -> None:
    """Reject a model of which the device takes nothing, or with `whole`, not all.

    Nodes of other providers do not count.

    Raises:
        CompileError: OCC0301, with the nodes and reasons.
    """
    if (groups or facts.assigned) and not whole:
        return
    what = (
        f"{target} takes nothing of the model"
        if not groups
        else f"{target} does not take the whole model, and `enable_cann_subgraph` is false"
    )
    notes = [reason_text(facts.nodes[k], left[k]) for k in sorted(left)[:_SHOWN]]
    more = len(left) - len(notes)
    help_ = "`enable_cann_subgraph=True` leaves these to the CPU" if groups else "run the model on the CPU"
    raise error("OCC0301", what, notes=[*notes, *([f"and {more} more"] if more else [])], help=help_)


def _listed(facts: GraphFacts, left: Mapping[int, str]) -> str:
    shown = [reason_text(facts.nodes[k], left[k]) for k in sorted(left)[:_SHOWN]]
    return "; ".join(shown) + (f"; and {len(left) - len(shown)} more" if len(left) > len(shown) else "")


def _is_true(text: object) -> bool:
    return str(text).lower() in ("true", "1", "on")


def _is_false(text: object) -> bool:
    return str(text).lower() in ("false", "0", "off")
