"""Instruments of the pass manager: printing between passes, timing trees, traces."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from occ.compiler.diagnostics import shorten
from occ.compiler.ir.module import Module
from occ.compiler.ir.printer import module_text
from occ.compiler.passes.base import Pass
from occ.compiler.passes.manager import Ran
from occ.runtime.dataclass import dataclass


@dataclass
class Print:
    """Prints the module before and after passes.

    Attributes:
        before: names of passes, or `all`.
        after: names of passes, or `all`.
        changes: print after each pass that changed something.
        folder: where to write numbered files; None to pass the text to `say`.
        say: a function that takes a text.
    """

    before: frozenset[str]
    after: frozenset[str]
    changes: bool
    folder: Path | None
    say: Callable[[str], None]
    number: int = 0

    def __call__(self, p: Pass, m: Module, ran: Ran | None) -> None:
        """Observe one pass."""
        self.number += ran is None
        names = self.before if ran is None else self.after
        if p.name in names or "all" in names or (ran is not None and self.changes and ran.changed):
            self._print(f"{'before' if ran is None else 'after'}-{p.name}", f"{p}", m)

    def _print(self, what: str, text: str, m: Module) -> None:
        head = f"# {what.partition('-')[0]} {text}\n"
        if self.folder is None:
            self.say(head + module_text(m, weights="last"))
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / f"{self.number:03}-{what}.occ"
        file.write_text(head + module_text(m, inline=sum(w.data.nbytes for w in m.weights.values()) < 1 << 20))


def time_tree(
    ran: Sequence[Ran],
    phases: Mapping[str, float] | None = None,
    kernels: Sequence[tuple[float, str, Sequence[str]]] = (),
) -> str:
    """Times of stages and of the passes in them, as an indented tree.

    Args:
        ran: the passes.
        phases: seconds spent outside of passes, by name.
        kernels: seconds, names and ONNX nodes of the kernels slowest to compile, several at once.
    """
    stages = list(dict.fromkeys(r.stage for r in ran))
    total = sum(r.seconds for r in ran) + sum((phases or {}).values())
    lines = [f"{total * 1e3:10.1f} ms  total"]
    for name, seconds in (phases or {}).items():
        lines.append(f"{seconds * 1e3:10.1f} ms    {name}")
        if name == "codegen":
            lines += [
                f"{s * 1e3:10.1f} ms      {kernel}: {shorten(', '.join(nodes), 60)}" for s, kernel, nodes in kernels
            ]
    for stage in stages:
        inside = [r for r in ran if r.stage == stage]
        lines.append(f"{sum(r.seconds for r in inside) * 1e3:10.1f} ms    {stage or 'passes'}")
        for r in inside:
            changed = "" if r.changed else "  (no change)"
            lines.append(f"{r.seconds * 1e3:10.1f} ms      {r.number:2} {r.text}{changed}")
    return "\n".join(lines)


def trace(ran: Sequence[Ran]) -> str:
    """Times as a trace for chrome://tracing and Perfetto: complete events, in microseconds."""
    events: list[dict[str, object]] = []
    for stage in dict.fromkeys(r.stage for r in ran):
        inside = [r for r in ran if r.stage == stage]
        end = inside[-1].start + inside[-1].seconds
        events.append(_event(stage or "passes", inside[0].start, end - inside[0].start, {}))
        events += [_event(r.text, r.start, r.seconds, {"changed": r.changed, **r.hits}) for r in inside]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _event(name: str, start: float, seconds: float, args: dict[str, object]) -> dict[str, object]:
    return {"name": name, "ph": "X", "ts": start * 1e6, "dur": seconds * 1e6, "pid": 1, "tid": 1, "args": args}


def statistics(ran: Sequence[Ran]) -> str:
    """How often each rule fired, in total."""
    total: Counter[str] = Counter()
    for r in ran:
        total.update(r.hits)
    return "\n".join(f"{n:8}  {name}" for name, n in sorted(total.items(), key=lambda item: (-item[1], item[0])) if n)
