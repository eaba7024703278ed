"""The pass manager: runs passes with verification, timing, instruments and crash reproducers."""

from __future__ import annotations

import os
import shlex
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import field
from pathlib import Path

from occ.compiler.diagnostics import CompileError, error
from occ.compiler.ir.module import Module
from occ.compiler.ir.printer import module_text, weight_bytes
from occ.compiler.ir.verify import problems
from occ.compiler.passes.base import Context, Pass
from occ.runtime.dataclass import dataclass

_LARGEST_INLINE = 16 << 20  # bytes of weights that a reproducer's text includes


@dataclass(frozen=True)
class Ran:
    """One run of a pass.

    Attributes:
        number: position among the passes of a compilation, from 1.
        stage: the stage that it leads to.
        text: the pass with its options.
        start: seconds since the manager was made.
        seconds: wall time.
        changed: whether it changed anything.
        hits: how often each rule fired in it.
        ops: in the module afterwards.
    """

    number: int
    stage: str
    text: str
    start: float
    seconds: float
    changed: bool
    hits: Counter[str]
    ops: int


Listener = Callable[[Pass, Module, Ran | None], None]  # called before a pass with None, after it with its outcome


class Stopped(Exception):
    """The pass limit was reached, or the pass to stop after has run."""


@dataclass
class Manager:
    """Runs pipelines over one module.

    Attributes:
        verify: check the module after each pass.
        listeners: called before and after each pass.
        limit: passes to run; None for all.
        stop_after: name of the pass to stop after.
        restore: recreates the module as it was before the pass with a given number, for reproducers.
        files: rule files that a reproducer needs.
        ran: what has run, in order.
    """

    verify: bool = False
    listeners: list[Listener] = field(default_factory=list)
    limit: int | None = None
    stop_after: str = ""
    restore: Callable[[int], Module] | None = None
    files: Sequence[str] = ()
    ran: list[Ran] = field(default_factory=list)
    _began: float = field(default_factory=time.perf_counter)

    def run(self, m: Module, passes: Sequence[Pass], ctx: Context, *, stage: str = "", typed: bool = True) -> None:
        """Run passes in order.

        Raises:
            CompileError: the model cannot be compiled; or OCC0901, OCC0902 with the path of a reproducer.
            Stopped: the limit was reached.
        """
        for p in passes:
            if self.limit is not None and len(self.ran) >= self.limit:
                raise Stopped
            self._one(p, m, ctx, stage, typed=typed)
            if p.name == self.stop_after:
                raise Stopped

    def _one(self, p: Pass, m: Module, ctx: Context, stage: str, *, typed: bool) -> None:
        before = None if self.restore is not None else self_contained_text(m)
        for listen in self.listeners:
            listen(p, m, None)
        hits, start = Counter(ctx.hits), time.perf_counter()
        try:
            changed = p.run(m, ctx)
        except (CompileError, KeyboardInterrupt, MemoryError):
            raise
        except Exception as e:
            raise self._internal(p, ctx, before, e) from e
        end = time.perf_counter()
        ops = sum(1 for _ in m.walk()) if self.listeners else 0
        new = Counter({name: n - hits[name] for name, n in ctx.hits.items() if n != hits[name]})
        self.ran.append(Ran(len(self.ran) + 1, stage, str(p), start - self._began, end - start, changed, new, ops))
        wrong = problems(m, types=typed and not p.untyped) if self.verify else ()
        found = [text for _, text in zip(range(8), wrong, strict=False)]
        if found:
            raise self._broken(p, ctx, before, found)
        for listen in self.listeners:
            listen(p, m, self.ran[-1])

    def _internal(self, p: Pass, ctx: Context, before: str | None, e: Exception) -> CompileError:
        where = traceback.extract_tb(e.__traceback__)[-1]
        notes = [f"{type(e).__name__}: {e}"[:400], f"{Path(where.filename).name}:{where.lineno} in {where.name}"]
        notes.append(f"reproducer: {self._reproducer(p, ctx, before, len(self.ran))}")
        return error("OCC0901", f"the pass `{p}` failed", notes=notes, help="report this with the reproducer")

    def _broken(self, p: Pass, ctx: Context, before: str | None, found: Sequence[str]) -> CompileError:
        notes = [*found, f"reproducer: {self._reproducer(p, ctx, before, len(self.ran) - 1)}"]
        return error("OCC0902", f"the pass `{p}` left a module that does not verify", notes=notes, help="report this")

    def _reproducer(self, p: Pass, ctx: Context, before: str | None, number: int) -> str:
        """Write the module before a failing pass, with the command that reproduces the failure; returns its path."""
        arguments = ["-p", str(p), "-t", ctx.target.name, "--verify", *(a for f in self.files for a in ("--rules", f))]
        try:
            if before is not None:
                return write_reproducer(before, ["opt", *arguments])
            assert self.restore is not None
            m = self.restore(number)
            return write_reproducer(m, ["opt", *arguments])
        except Exception as e:
            return f"none: the module cannot be reconstructed ({type(e).__name__}: {e})"


def self_contained_text(m: Module) -> str | None:
    """The text of a module including its weights.

    None if that is too large to be kept for each pass.
    """
    size = sum(w.data.nbytes for w in m.weights.values())
    return module_text(m, inline=True) if size <= _LARGEST_INLINE else None


def write_reproducer(what: Module | str, command: Sequence[str]) -> str:
    """Write a text that can be rerun with the command in its first line; returns its path."""
    folder = Path(tempfile.mkdtemp(prefix="occ-reproducer-"))
    text = what if isinstance(what, str) else self_contained_text(what)
    if text is None:
        assert isinstance(what, Module)
        text = module_text(what, "reproducer.weights")
        with open(folder / "reproducer.weights", "wb") as f:
            f.writelines(weight_bytes(what))
    verb, *rest = command
    (folder / "reproducer.occ").write_text(f"# occ {verb} reproducer.occ {shlex.join(rest)}\n{text}")
    return os.fspath(folder / "reproducer.occ")
