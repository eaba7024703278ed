"""The schedule of Strassen's method: all seven products of a block of rows by a panel of columns, tile by tile."""

from __future__ import annotations

from occ.compiler.ir.dim import is_multiple
from occ.compiler.ir.te.function import TeFunc, TeStage, reduce_axes
from occ.compiler.ir.te.roles import STRASSEN
from occ.compiler.ir.te.schedule import Directive, Scheduler
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.passes.schedule.prefetch import fetch_ahead
from occ.compiler.passes.schedule.stage_facts import ScheduleFacts, facts_of, stages_by_role
from occ.compiler.targets.machine import Machine


def strassen(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Strassen's method: all seven products of a block of rows by a panel of columns, tile by tile."""
    facts = facts_of(f, machine)
    parts, root = stages_by_role(f, STRASSEN), f.stages[-1]
    if parts is None or not isinstance(root, TeStage) or len(f.results) != 1:
        return Declined("it is no `strassen` with what is done with its elements")
    return facts.scheduled(_Strassen(facts, root, parts).directives())


_OTHERS = 6  # registers besides those of sums: two vectors of weights, two that are added to them, broadcast elements
_PER_TILE = 0.4  # what the weights of a tile cost, in rows of it: by measurement 13 rows serve 64 as well as 8 do, and 11 serve 99


def rows_of_tile(rows: int, machine: Machine, width: int) -> int:
    """How many rows of so many, by a panel of `width` columns, are best computed together."""
    most = max((machine.registers - _OTHERS) * min(machine.lanes(32), width) // width, 2)
    return min(range(most, most // 2, -1), key=lambda t: -(-rows // t) * (t + _PER_TILE))


class _Strassen:
    """The sums of quarters on the left are computed first, into memory, and those of the result where it is stored.

    Quarters on the right are added where a tile reads them, so the constant keeps its size. Zen 5 adds beside multiply-adds, and
    tiles have many rows, so that reading two vectors for each is no matter: all seven products of a block are 2 % slower than
    with sums made ahead, which take 1.75 of the memory. The seven are a loop each, since each adds other quarters.

    To go through the depth in pieces that stay in the nearest cache costs up to 20 %, to prefetch a fixed distance ahead 3 to
    30 %; panel by panel (`prefetch.py`) gains 7 %.
    """

    def __init__(self, facts: ScheduleFacts, root: TeStage, parts: dict[str, TeStage]) -> None:
        self.facts, self.root, self.parts = facts, root, parts
        self.half, _, self.width = (int(a.extent) for a in parts["products"].axes[-3:])  # pyright: ignore[reportArgumentType]
        machine = facts.machine
        self.lanes = min(machine.lanes(32), self.width)
        wanted = facts.hint.tile and min(facts.hint.tile, self.half)
        self.tile = wanted or rows_of_tile(self.half, machine, self.width)

    def directives(self) -> list[Directive]:
        return [*self._result(), *self._left(), *self._products()]

    def _result(self) -> list[Directive]:
        *batch, i, j = (a.name for a in self.root.axes)
        out = Scheduler(self.root.name)
        whole = is_multiple(self.root.axes[-2].extent, 2 * self.half)
        out.split(i, f"{i}b", f"{i}s", 2 * self.half, "Auto" if whole else "GuardWithIf")
        out.split(f"{i}s", f"{i}h", f"{i}r", self.half)
        out.split(j, f"{j}p", f"{j}q", 2 * self.width)
        out.split(f"{j}q", f"{j}h", f"{j}l", self.width)
        out.split(f"{j}l", f"{j}u", f"{j}v", self.lanes)
        out.reorder(f"{j}v", f"{j}h", f"{i}h", f"{j}u", f"{i}r", f"{i}b", *reversed(batch), f"{j}p")
        out.vectorize(f"{j}v").unroll(f"{j}h").unroll(f"{i}h").unroll(f"{j}u").parallel(f"{j}p")
        self.block = f"{i}b"
        return out.directives

    def _left(self) -> list[Directive]:
        stage = self.parts["left"]
        e, i, k = (a.name for a in stage.axes[-3:])
        v = Scheduler(stage.name).compute_root()
        v.split(k, f"{k}o", f"{k}i", self.lanes).reorder(f"{k}i", e, f"{k}o", i).vectorize(f"{k}i").unroll(e)
        return v.parallel(i).directives

    def _products(self) -> list[Directive]:
        stage, acc = self.parts["products"], self.parts["sum"]
        e, i, _, j = (a.name for a in stage.axes[-4:])
        p = Scheduler(stage.name).compute_at(self.root.name, self.block)
        p.split(j, f"{j}u", f"{j}v", self.lanes)
        p.split(i, f"{i}o", f"{i}i", self.tile, "Auto" if self.half % self.tile == 0 else "ShiftInwards")
        p.reorder(f"{j}v", f"{j}u", f"{i}i", f"{i}o", e).unroll(e).vectorize(f"{j}v").unroll(f"{j}u").unroll(f"{i}i")
        ae, ai, _, aj = (a.name for a in acc.axes[-4:])
        (r,) = (a.name for a in reduce_axes(acc.expr))
        start = Scheduler(acc.name).compute_at(stage.name, f"{i}o")
        start.split(aj, f"{aj}u", f"{aj}v", self.lanes).vectorize(f"{aj}v").unroll(f"{aj}u").unroll(ai)
        update = Scheduler(acc.name, update=True)
        update.split(aj, f"{aj}w", f"{aj}x", self.lanes).reorder(f"{aj}x", f"{aj}w", ai, r, ae)
        update.vectorize(f"{aj}x").unroll(f"{aj}w").unroll(ai).unroll(r, self.facts.hint.unroll or 2)
        (weights,) = (w.name for w in self.facts.f.params if w.type.layout.tiles)
        fetch = fetch_ahead(acc, weights, 2, self.facts, together=4)  # quarters of the same columns
        return [*p.directives, *start.directives, *update.directives, *fetch]
