"""Finds the first pass and op that change results, by interpreting the module after each pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from occ.compiler.debugging.validate import NotInterpretable, Recorder, difference, first_change, results
from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings
from occ.compiler.driver.source import Source
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.passes.manager import Ran, write_reproducer
from occ.runtime.dataclass import dataclass
from occ.runtime.errors import RunError

Tell = Callable[[str], None]


@dataclass
class Guilty:
    """The result of a bisection: the pass and the op.

    Attributes:
        ran: the pass.
        op: the first op, in order, whose value it changed; None if no value of that name existed before.
        text: how a value differs, or how the pass failed.
        reproducer: path of the module before the pass.
        runs: how often the model was interpreted.
    """

    ran: Ran
    op: Op | None
    text: str
    reproducer: str
    runs: int


class Bisection:
    """A search over the passes of one compilation.

    Args:
        source: the model.
        settings: as for a build.
        inputs: for the interpreter, in the order of the model.
        expected: the right results.
        tolerance: how much results may differ, relative to the largest value.
    """

    def __init__(
        self, source: Source, settings: Settings, inputs: Sequence[Any], expected: Sequence[Any], tolerance: float
    ) -> None:
        self.source, self.settings, self.inputs = source, replace(settings, listeners=()), inputs
        self.expected, self.tolerance = expected, tolerance
        self.runs = 0

    def after(self, passes: int) -> tuple[Module, Compilation]:
        """The module after a number of passes."""
        made = Compilation(self.source, replace(self.settings, limit=passes))
        return made.advance(made.last_stage), made

    def wrong(self, passes: int) -> str:
        """How the results after a number of passes differ from the right ones; empty if they do not."""
        m, _ = self.after(passes)
        self.runs += 1
        try:
            found = results(m, self.inputs)
        except (RunError, NotInterpretable, ValueError, IndexError) as e:
            return f"the model cannot be interpreted: {e}"
        texts = (difference(a, b, self.tolerance) for a, b in zip(self.expected, found, strict=True))
        return next((t for t in texts if t), "")

    def search(self, tell: Tell = lambda _: None) -> Guilty | None:
        """The first pass after which the results are wrong; None if they never are.

        Raises:
            CompileError: a pass fails (its diagnostic names it and has a reproducer), or the results are wrong before
                the first pass.
        """
        _, whole = self.after(10**6)
        passes = whole.manager.ran
        typed = next(r.number for r in passes if r.text.partition("{")[0] == "infer")
        last = max(r.number for r in passes if r.stage != "lowered")
        if not self.wrong(last):
            return None
        low, high = typed, last  # right after `low`, wrong after `high`
        if text := self.wrong(low):
            return Guilty(passes[low - 1], None, text, "", self.runs)
        while high - low > 1:
            middle = (low + high) // 2
            text = self.wrong(middle)
            tell(f"after {middle:2} {passes[middle - 1].text}: {text or 'right'}")
            low, high = (low, middle) if text else (middle, high)
        return self._narrow(passes[high - 1])

    def _narrow(self, ran: Ran) -> Guilty:
        """Find the op within a pass."""
        before, made = self.after(ran.number - 1)
        rules = [a for f in made.extensions.files for a in ("--rules", f)]
        command = ["opt", "-p", ran.text, "-t", self.settings.target, "--validate", *rules]
        reproducer = write_reproducer(before, command)
        first, then = Recorder(before), Recorder(self.after(ran.number)[0])
        try:
            results(before, self.inputs, recorder=first)
            results(then.m, self.inputs, recorder=then)
        except (RunError, NotInterpretable, ValueError, IndexError) as e:
            return Guilty(ran, None, str(e), reproducer, self.runs + 2)
        found = first_change(first, then)
        op, text = found if found is not None else (None, self.wrong(ran.number))
        return Guilty(ran, op, text, reproducer, self.runs + 2)


def crash_of(source: Source, settings: Settings) -> CompileError | None:
    """The internal error that ends a compilation, if one does; other errors are raised."""
    try:
        made = Compilation(source, replace(settings, verify=True, listeners=()))
        made.advance(made.last_stage)
    except CompileError as e:
        if e.diagnostics and e.diagnostics[0].code.startswith("OCC09"):
            return e
        raise
    return None
