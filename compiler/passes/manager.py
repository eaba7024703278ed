"""Runs passes: verification, timing, dumps, and a reproducer when one fails."""

from __future__ import annotations

import os
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from occ.compiler.diagnostics import CompileError, error
from occ.compiler.ir.module import Module
from occ.compiler.ir.printer import module_text, weight_bytes
from occ.compiler.ir.verify import problems
from occ.compiler.passes.base import Context, Pass

Listener = Callable[[Pass, Module, bool], None]  # after a pass: the pass, the module, whether it changed anything


@dataclass
class Manager:
    """Runs pipelines over one module.

    Attributes:
        verify: check the module after each pass.
        listeners: called after each pass.
        seconds: (pass name, wall time) in order.
    """

    verify: bool = False
    listeners: list[Listener] = field(default_factory=list)
    seconds: list[tuple[str, float]] = field(default_factory=list)

    def run(self, m: Module, passes: Sequence[Pass], ctx: Context, *, typed: bool = True) -> None:
        """Run passes in order.

        Raises:
            CompileError: the model cannot be compiled; or OCC0901, OCC0902 with the path of a reproducer.
        """
        for p in passes:
            before = _Snapshot(m) if self.verify else None
            start = time.perf_counter()
            try:
                changed = p.run(m, ctx)
            except CompileError:
                raise
            except (KeyboardInterrupt, MemoryError):
                raise
            except Exception as e:
                raise self._internal(p, m, before, e) from e
            self.seconds.append((p.name, time.perf_counter() - start))
            if self.verify:
                found = [problem for _, problem in zip(range(8), problems(m, types=typed), strict=False)]
                if found:
                    raise self._broken(p, m, before, found)
            for listen in self.listeners:
                listen(p, m, changed)

    def _internal(self, p: Pass, m: Module, before: _Snapshot | None, e: Exception) -> CompileError:
        where = traceback.extract_tb(e.__traceback__)[-1]
        notes = [f"{type(e).__name__}: {e}"[:400], f"{Path(where.filename).name}:{where.lineno} in {where.name}"]
        notes.append(f"reproducer: {_write_reproducer(p, m, before)}")
        return error("OCC0901", f"the pass `{p}` failed", notes=notes, help="report this with the reproducer")

    def _broken(self, p: Pass, m: Module, before: _Snapshot | None, found: Sequence[str]) -> CompileError:
        notes = [*found, f"reproducer: {_write_reproducer(p, m, before)}"]
        return error("OCC0902", f"the pass `{p}` left a module that does not verify", notes=notes, help="report this")


class _Snapshot:
    """The text of a module before a pass."""

    def __init__(self, m: Module) -> None:
        self.text = module_text(m, "reproducer.weights")


def _write_reproducer(p: Pass, m: Module, before: _Snapshot | None) -> str:
    """Write the module before the failing pass, with the command that fails again; gives its path."""
    folder = Path(tempfile.mkdtemp(prefix="occ-reproducer-"))
    try:
        text = before.text if before is not None else module_text(m, "reproducer.weights")
    except Exception as e:
        return f"none: the module cannot be printed ({type(e).__name__})"
    (folder / "reproducer.occ").write_text(f"# occ opt reproducer.occ -p '{p}'\n{text}")
    with open(folder / "reproducer.weights", "wb") as f:
        for piece in weight_bytes(m):
            f.write(piece)
    return os.fspath(folder / "reproducer.occ")
