"""The schedule of Strassen's method: seven products of a block of rows by a panel of columns."""

from __future__ import annotations

from occ.compiler.ir.dim import is_multiple
from occ.compiler.ir.te.function import TeFunc, TeStage
from occ.compiler.ir.te.roles import STRASSEN
from occ.compiler.ir.te.schedule import Directive
from occ.compiler.ir.te.stage_schedule import Loop, StageSchedule
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.passes.schedule.prefetch import fetch_ahead
from occ.compiler.passes.schedule.stage_facts import ScheduleFacts, facts_of, stages_by_role
from occ.compiler.targets.machine import Machine


def strassen(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Strassen's method: all seven products of a block of rows and a panel of columns, tile by tile."""
    facts = facts_of(f, machine)
    parts, root = stages_by_role(f, STRASSEN), f.stages[-1]
    if parts is None or not isinstance(root, TeStage) or len(f.results) != 1:
        return Declined("it is not a `strassen` with a fused epilogue")
    return facts.scheduled(_Strassen(facts, root, parts).directives())


_OTHERS = 6  # registers not used for sums: two vectors of weights, two to add to them, broadcast elements
_PER_TILE = 0.4  # cost of a tile's weights in rows: measured, 13 rows serve 64 as well as 8 do, and 11 serve 99


def rows_of_tile(rows: int, machine: Machine, width: int) -> int:
    """The best number of rows per tile for a given row count and a panel of `width` columns."""
    most = max((machine.registers - _OTHERS) * min(machine.lanes(32), width) // width, 2)
    return min(range(most, most // 2, -1), key=lambda t: -(-rows // t) * (t + _PER_TILE))


class _Strassen:
    """The schedule of a Strassen product.

    Sums of quarters of the left side are first computed into memory; those of the result are added where it is stored.

    Quarters of the right side are added where a tile reads them, so the constant keeps its size. Zen 5 adds in parallel
    with multiply-adds, and tiles have many rows, so reading two vectors for each costs little: all seven products of a
    block are 2 % slower than with precomputed sums, which take 1.75 times the memory. The seven are a loop each, since
    each adds other quarters.

    Splitting the depth into pieces that stay in L1 costs up to 20 %, prefetching a fixed distance ahead 3 to 30 %;
    panel by panel (`prefetch.py`) gains 7 %.
    """

    def __init__(self, facts: ScheduleFacts, root: TeStage, parts: dict[str, TeStage]) -> None:
        self.facts, self.root, self.parts = facts, root, parts
        self.half, _, self.width = (int(a.extent) for a in parts["products"].axes[-3:])  # pyright: ignore[reportArgumentType]
        machine = facts.machine
        self.lanes = min(machine.lanes(32), self.width)
        wanted = facts.hint.tile and min(facts.hint.tile, self.half)
        self.tile = wanted or rows_of_tile(self.half, machine, self.width)

    def directives(self) -> list[Directive]:
        out = StageSchedule(self.root)
        block = self._result(out)
        return [*out.directives, *self._left(), *self._products(block)]

    def _result(self, out: StageSchedule) -> Loop:
        """Schedules the result; returns the loop over blocks of rows."""
        *batch, i, j = out.axes
        whole = is_multiple(self.root.axes[-2].extent, 2 * self.half)
        block, rows = out.split(i, 2 * self.half, "Auto" if whole else "GuardWithIf", "bs")
        row_half, row = out.split(rows, self.half, into="hr", root=i)
        panel, columns = out.split(j, 2 * self.width, into="pq")
        column_half, columns = out.split(columns, self.width, into="hl", root=j)
        vectors, lane = out.split(columns, self.lanes, into="uv", root=j)
        out.reorder(lane, column_half, row_half, vectors, row, block, *reversed(batch), panel)
        out.vectorize(lane).unroll(column_half).unroll(row_half).unroll(vectors).parallel(panel)
        return block

    def _left(self) -> list[Directive]:
        v = StageSchedule(self.parts["left"]).compute_root()
        e, i, k = v.axes[-3:]
        vectors, lane = v.split(k, self.lanes)
        v.reorder(lane, e, vectors, i).vectorize(lane).unroll(e)
        return v.parallel(i).directives

    def _products(self, block: Loop) -> list[Directive]:
        stage, acc = self.parts["products"], self.parts["sum"]
        p = StageSchedule(stage).compute_at(self.root.name, block)
        e, i, _, j = p.axes[-4:]
        vectors, lane = p.split(j, self.lanes, into="uv")
        tile, row = p.split(i, self.tile, "Auto" if self.half % self.tile == 0 else "ShiftInwards")
        p.reorder(lane, vectors, row, tile, e).unroll(e).vectorize(lane).unroll(vectors).unroll(row)
        start, update = StageSchedule(acc), StageSchedule(acc, update=1)
        (e, i, _, j), (r,) = start.axes[-4:], update.reduced
        start.compute_at(stage.name, tile)
        vectors, lane = start.split(j, self.lanes, into="uv")
        start.vectorize(lane).unroll(vectors).unroll(i)
        vectors, lane = update.split(j, self.lanes, into="wx")
        update.reorder(lane, vectors, i, r, e)
        update.vectorize(lane).unroll(vectors).unroll(i).unroll(r, self.facts.hint.unroll or 2)
        (weights,) = (w.name for w in self.facts.f.params if w.type.layout.tiles)
        fetch = fetch_ahead(acc, weights, 2, self.facts, together=4)  # quarters of the same columns
        return [*p.directives, *start.directives, *update.directives, *fetch]
