"""The builder of a stage's schedule, with handles of its loops."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from occ.compiler.ir.dim import Sym
from occ.compiler.ir.te.function import AnyStage, Scatter, reduce_axes
from occ.compiler.ir.te.schedule import CALLS, Arg, Directive


class Loop(str):
    """The handle of a loop of a stage: one of its axes, or a result of `StageSchedule`."""

    __slots__ = ()


class StageSchedule:
    """The schedule of one stage, written with handles of its loops.

        out = StageSchedule(stage)
        *outer, x = out.axes
        xo, xi = out.split(x, 8)
        out.vectorize(xi).parallel(outer[0])

    All calls in `CALLS` are methods. `split` and `fuse` return the loops that they create, with names unique in the
    stage; the others return this object.

    Args:
        stage: the stage.
        update: the number of the update definition that it schedules, see `Directive`.

    Attributes:
        name: of the stage.
        axes: loops over the axes of the stage, outermost first.
        reduced: loops over the terms of its reduction, outermost first.
        directives: the calls so far.
    """

    def __init__(self, stage: AnyStage, *, update: int = 0) -> None:
        inner = stage.over if isinstance(stage, Scatter) else reduce_axes(stage.expr)
        self.name, self.number = stage.name, int(update)
        self.axes, self.reduced = ([Loop(a.name) for a in axes] for axes in (stage.axes, inner))
        self.directives: list[Directive] = []
        self._taken: set[str] = {*self.axes, *self.reduced}

    def loop(self, axis: str) -> Loop:
        """The loop over an axis of the stage or of its reduction."""
        return next(x for x in (*self.axes, *self.reduced) if x == axis)

    def split(
        self, loop: Loop, factor: int | Sym, tail: str = "", into: Sequence[str] = "oi", *, root: Loop | None = None
    ) -> tuple[Loop, Loop]:
        """Split a loop into one over blocks and one within a block.

        Args:
            loop: of this stage.
            factor: steps of a block.
            tail: the tail strategy for a remainder, one of `TAILS`.
            into: the letters, or words, appended to form the names of the two loops.
            root: the loop whose name they start with, if not this one.

        Returns:
            The outer and the inner loop.
        """
        self._taken.discard(loop)
        outer, inner = (self._fresh(f"{root or loop}{letter}") for letter in into)
        self._add("split", loop, outer, inner, factor, *([tail] if tail else []))
        return outer, inner

    def fuse(self, inner: Loop, outer: Loop, name: str = "") -> Loop:
        """Fuse two adjacent loops into one; returns it."""
        self._taken -= {inner, outer}
        fused = self._fresh(name or f"{outer}{inner}")
        self._add("fuse", inner, outer, fused)
        return fused

    def fuse_outwards(self, loop: Loop, around: Sequence[Loop]) -> Loop:
        """Fuse a loop with all those around it, innermost first; returns the result."""
        for outer in reversed(around):
            loop = self.fuse(loop, outer, f"{loop}{outer}")
        return loop

    def _fresh(self, name: str) -> Loop:
        k, made = 1, name
        while made in self._taken:
            k += 1
            made = f"{name}{k}"
        self._taken.add(made)
        return Loop(made)

    def _add(self, call: str, *args: Arg) -> StageSchedule:
        self.directives.append(Directive(self.name, call, args, self.number))
        return self

    def __getattr__(self, call: str):
        if call not in CALLS:
            raise AttributeError(f"schedules have no `{call}`; there are {', '.join(CALLS)}")
        return partial(self._add, call)
