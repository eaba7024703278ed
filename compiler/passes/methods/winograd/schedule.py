"""The schedule of Winograd convolutions: blocks of tiles in cache, and one GEMM per point."""

from __future__ import annotations

from occ.compiler.ir.dim import Dim, ceildiv, maximum, minimum, product
from occ.compiler.ir.te.expr import Load
from occ.compiler.ir.te.function import TeFunc, TeStage, loads
from occ.compiler.ir.te.roles import PAD, WINOGRAD
from occ.compiler.ir.te.schedule import Directive
from occ.compiler.ir.te.stage_schedule import Loop, StageSchedule
from occ.compiler.ir.te.walks import walk
from occ.compiler.passes.methods.winograd.blocks import PLANE, POINTS, TOGETHER, block_of, rows_of
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.passes.schedule.prefetch import fetch_ahead
from occ.compiler.passes.schedule.stage_facts import ScheduleFacts, element_bits, facts_of, stages_by_role
from occ.compiler.targets.machine import Machine
from occ.runtime.dataclass import dataclass

_MOST_TILES = 49  # of a block of such tiles, if their numbers are known
# Tiles multiplied together in a kernel for any plane: slider and ResNet-50 run as fast as with kernels for one plane, a
# fixed nudenet takes 1.02; with 8, a UNet would take 1.06 (Zen 4).
_MOST_ROWS = 7
# Bytes beyond a tile's input that are fetched while it is transformed: hardware prefetchers cannot follow rows of a few
# positions. DNSMOS, Zen 4, 164 --> 153 ms; ResNet-50, a UNet and ESPCN, whose planes blocks divide, 0.99 of the time.
_AHEAD = 2048
_FEW_TILES = 25  # 7x7 (2x2 tiles) is 1.1 times as fast with a copy of its input, 14x14 equally fast, 20x20 0.93 times


def winograd(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Winograd convolutions: blocks of tiles whose transformed input stays in cache, and one GEMM per point.

    The choices were measured on Zen 4: the transformed input of a block is in L2 (about 0.5 MB; whole planes of up to 7
    x 7 tiles may be larger), the products of one panel of weights in L1 and L2, and the weights stream.
    """
    facts = facts_of(f, machine)
    parts, root = stages_by_role(f, WINOGRAD), f.stages[-1]
    if parts is None or not isinstance(root, TeStage) or len(f.results) != 1:
        return Declined("it is not a `winograd` with a fused epilogue")
    return facts.scheduled(_Winograd(facts, root, parts).directives())


@dataclass(frozen=True)
class _Levels:
    """Loops of the result in which other stages are computed.

    Attributes:
        tile: a tile of the output.
        panel: a panel of its channels.
        block: a block of tiles.
    """

    tile: Loop
    panel: Loop
    block: Loop


class _Winograd:
    def __init__(self, facts: ScheduleFacts, root: TeStage, parts: dict[str, TeStage]) -> None:
        self.facts, self.root, self.parts = facts, root, parts
        (param,) = (p for p in facts.f.params if p.type.layout.tiles)
        self.weights, self.width = param.name, param.type.layout.tiles[0][1]
        self.lanes = min(facts.machine.lanes(32), self.width)
        # Channels in a vector of the transformed input: twice as many if they have 16 bits.
        self.channels = self.lanes if parts["input"].dtype.bits == 32 else facts.machine.lanes(16)
        self.down, self.across = (parts["rows"].axes[k].extent for k in (-5, -4))
        channels = parts["input"].axes[-1].extent
        assert isinstance(channels, int)
        points = parts["input"].axes[0].extent * parts["input"].axes[1].extent
        assert isinstance(points, int)
        self.symbolic = not (isinstance(self.across, int) and isinstance(self.down, int))
        self.block_x, self.block_y = block_of(self.across, self.down, channels, points)
        *_, y, x, _ = (a.extent for a in root.axes)
        self.tall, self.broad = (_outputs(size, tiles) for size, tiles in ((y, self.down), (x, self.across)))
        tiles, rows = self.across * self.down, self._tile_rows
        # A border is stored only for small planes, where most tests would be of outside positions. Elsewhere testing
        # positions, once per vector of channels, is cheaper than copying the input.
        self.few = isinstance(tiles, int) and tiles < _FEW_TILES
        self.pads = [s for s in facts.f.stages if isinstance(s, TeStage) and s.role == PAD]
        # One kernel for all planes of whole tiles: how many, of the plane and of blocks, are values of the call.
        self.whole = (y, x) == (self.tall * self.down, self.broad * self.across)
        large = isinstance(tiles, int) and not self.few and rows <= _MOST_ROWS
        self.uniform = points == POINTS and self.whole and self._even and large and self._block % rows == 0

    def directives(self) -> list[Directive]:
        out = StageSchedule(self.root)
        at = self._result(out)
        made = [*out.directives, *self._input(at.block), *self._products(at.panel), *self._output(at.tile)]
        for s in self.pads if self.few else ():
            made += self._border(s)
        return made

    def _result(self, out: StageSchedule) -> _Levels:
        """Schedules the loops of the result.

        With symbolic sizes, run-time sizes decide how many rows of tiles a block has. Separate schedules for small
        planes, short rows and the rest took Halide three times as long, and were no faster (Zen 4).
        """
        *batch, y, x, o = out.axes
        sizes = [a.extent for a in self.root.axes]
        x_tiles, x_in = self._tiles_of(out, x, sizes[-2], self.broad)
        y_tiles, y_in = self._tiles_of(out, y, sizes[-3], self.tall)
        x_block, x_tile = out.split(x_tiles, self.block_x, "GuardWithIf", "bs", root=x)
        y_block, y_tile = out.split(y_tiles, self.block_y, "GuardWithIf", "bs", root=y)
        panels = sizes[-1]
        assert isinstance(panels, int)
        tail = "Auto" if panels % self.width == 0 else "GuardWithIf"
        near, far = (y_block, x_block) if self.symbolic and self.down == 1 else (x_block, y_block)
        # One block: threads share the result's channels, and each transforms the input for itself. Sharing the
        # transformed input costs more, because the cores then fetch it from each other's caches.
        count, cores, one = -(-panels // self.width), self.facts.machine.cores, self._one_block
        shared = one is not False and cores > 1
        panel, columns = out.split(o, self.width, tail, "cq" if shared else "pq")
        vectors, lane = out.split(columns, self.lanes, into="uv", root=o)
        task: list[Loop] = []
        if shared:
            share, panel = out.split(panel, self._panels(count, cores), "GuardWithIf", "tp", root=o)
            task = [share]
        out.reorder(lane, x_in, y_in, x_tile, y_tile, vectors, panel, near, far, *task, *reversed(batch))
        out.vectorize(lane)
        # 16 copies of a sigmoid compile in 1.2 s, a loop in 0.5, and it is as fast (Sapphire Rapids).
        if not self._stored:
            out.unroll(x_in).unroll(y_in)
        if task and one is None:
            out.parallel(out.fuse(far, *task))
        elif task:
            out.parallel(*task)
        elif not one:
            out.parallel(far if self.symbolic or self.down != self.block_y else near)
        return _Levels(x_tile, panel, near)

    @staticmethod
    def _tiles_of(out: StageSchedule, axis: Loop, size: Dim, tile: int) -> tuple[Loop, Loop]:
        whole = isinstance(size, int) and size % tile == 0
        return out.split(axis, tile, "Auto" if whole else "GuardWithIf", "ti")

    @property
    def _one_block(self) -> bool | None:
        """Whether a plane is one block; None if that depends on run-time sizes."""
        tiles = self.across * self.down
        return None if self.symbolic or self.uniform else isinstance(tiles, int) and tiles <= self._block

    def _panels(self, count: int, cores: int) -> Dim:
        """Panels of the result in a task: some of them if a plane is one block, otherwise all."""
        share = -(-count // cores)
        if not self.symbolic and not self.uniform:
            return share
        blocks = ceildiv(self.across, self.block_x) * ceildiv(self.down, self.block_y)
        return minimum(count, share + count * maximum(blocks - 1, 0))

    def _input(self, block: Loop) -> list[Directive]:
        v = StageSchedule(self.parts["input"]).compute_at(self.root.name, block)
        e, g, *_, t, c = v.axes
        v.reorder(c, g, e, t)
        vectors = self._vectorise(v, self.parts["input"])
        v.unroll(g).unroll(e)
        if self._bounded:
            v.bound_storage(t, self._stored_tiles)
        elif self._even and self.block_x == self.across:
            v.split(t, self.block_x, into="yx")
        half = self.parts["columns"]
        s = StageSchedule(half).compute_at(self.parts["input"].name, vectors or t)
        e, j, k = s.axes[-3:]
        s.reorder(k, e, j)
        s.vectorize(k, self.channels) if vectors else self._vectorise(s, half)
        s.unroll(j).unroll(e)
        for name in sorted(self._streamed(half)):
            s.fetch_beyond(name, _AHEAD, 0)
        return [*v.directives, *s.directives]

    def _streamed(self, reader: TeStage) -> set[str]:
        """Parameters of f32 that tiles are read from, if a picture is known to be larger than L2.

        Prefetches take 0.08 of the time to compile, and other kernels, which more planes share, gain 0.01 by them.
        """
        if self.symbolic or self._even:
            return set()
        read = {n.source for s in (reader, *self.pads) for n in loads(s.expr)}
        operands = [p for p in self.facts.f.params if p.name in read and p.type.dtype.name == "f32"]
        sizes = {p.name: product(p.type.physical[-3:]) * p.type.dtype.itemsize for p in operands}
        return {name for name, size in sizes.items() if isinstance(size, int) and size > self.facts.machine.l2_bytes}

    def _vectorise(self, s: StageSchedule, stage: TeStage) -> Loop | None:
        """Vectorises along the last axis; returns the loop over vectors of the input, if its channels fill one.

        A last vector that they do not fill begins earlier, among the channels of the one before it.
        """
        last = stage.axes[-1].extent
        tail = "RoundUp" if isinstance(last, int) and last % self.channels == 0 else "ShiftInwards"
        if stage is self.parts["input"] and isinstance(last, int) and last >= self.channels:
            e, g, *_, t, c = s.axes
            vectors, lane = s.split(c, self.channels, tail, "wx")
            s.reorder(lane, g, e, vectors, t).vectorize(lane)
            return vectors
        s.vectorize(s.axes[-1], self.channels, "ShiftInwards")
        return None

    def _products(self, panel: Loop) -> list[Directive]:
        m, acc = self.parts["products"], self.parts["sum"]
        rows = self._tile_rows
        p = StageSchedule(m).compute_at(self.root.name, panel)
        e, g, *_, t, o = p.axes
        p.bound_extent(o, self.width)
        vectors, lane = p.split(o, self.lanes, into="uv")
        if self._bounded:
            p.bound_storage(t, self._stored_tiles)
        tiles, row = p.split(t, rows, "Auto" if self._even and self._block % rows == 0 else "GuardWithIf")
        p.reorder(lane, vectors, row, tiles, g, e)
        p.vectorize(lane).unroll(vectors).unroll(row)
        start, update = StageSchedule(acc), StageSchedule(acc, update=1)
        e, g, *_, t, o = start.axes
        start.compute_at(m.name, tiles).bound_extent(o, self.width).bound_extent(t, rows)
        vectors, lane = start.split(o, self.lanes, into="uv")
        start.vectorize(lane).unroll(vectors).unroll(t)
        *dot, r = update.reduced
        vectors, lane = update.split(o, self.lanes, into="wx")
        update.reorder(*dot, lane, vectors, t, r, g, e)
        if dot:
            update.atomic().vectorize(*dot)
        update.vectorize(lane).unroll(vectors).unroll(t).unroll(r, self.facts.hint.unroll or (2 if dot else 4))
        # The panels of a point follow each other. Small weights are prefetched too, so that there is one kernel for any
        # number of channels: slider 0.989, SqueezeNet 1.005 times as long (Sapphire Rapids).
        fetch = fetch_ahead(acc, self.weights, 4 if dot else 2, self.facts, least=0)
        return [*p.directives, *start.directives, *update.directives, *fetch]

    @property
    def _block(self) -> int:
        """Maximum tiles in a block."""
        return self.block_x * self.block_y if isinstance(self.block_y, int) and not self.symbolic else PLANE

    @property
    def _bounded(self) -> bool:
        """Whether a block of symbolic sizes gets memory for a fixed number of tiles (3 % faster).

        Halide's own bound on the tiles of a block, rows * across + columns, is exact unless `across` is a sum. For a
        sum such as (w + 1)//2 - 1, Halide takes each term at a different extreme, and a block would get less memory
        than the kernel uses.
        """
        uneven = not self.symbolic and not self._even and not self.whole
        return self.uniform or uneven or (self.symbolic and (isinstance(self.across, int) or self.across.is_atom))

    @property
    def _stored_tiles(self) -> int:
        """Tiles of a block that has memory for a fixed number of them."""
        rows = self._tile_rows
        return -(-(_MOST_TILES if self.uniform else self._block) // rows) * rows

    @property
    def _tile_rows(self) -> int:
        """Tiles whose sums share registers."""
        most = min(self.facts.machine.rows, self._block) or (self.symbolic and TOGETHER)
        return most or rows_of(self._block, self.width // self.lanes, self.facts.machine)

    @property
    def _even(self) -> bool:
        """Whether all blocks have the same number of tiles."""
        return all(
            isinstance(n, int) and n % k == 0 for n, k in ((self.across, self.block_x), (self.down, self.block_y))
        )

    def _output(self, tile: Loop) -> list[Directive]:
        z = StageSchedule(self.parts["rows"]).compute_at(self.root.name, tile)
        *tiles, y, g, o = z.axes[-5:]
        for a in tiles:
            z.bound_extent(a, 1)
        # A last vector that filters do not fill reads the padding of its panel; shifted inwards it would read the
        # previous panel.
        z.reorder(o, y, g).vectorize(o, self.lanes, "RoundUp").unroll(g).unroll(y)
        made = z.directives
        output = self.parts["output"]
        if self._stored:
            s = StageSchedule(output).compute_at(self.root.name, tile)
            *_, y, x, o = s.axes
            s.reorder(o, x, y).vectorize(o, self.lanes, "RoundUp")
            s.bound_extent(x, self.broad).bound_extent(y, self.tall).unroll(x).unroll(y)
            made += s.directives
        return made

    @property
    def _stored(self) -> bool:
        """Whether a tile of the output is stored before later stages use it, in a loop over its elements."""
        output = self.parts["output"]
        reads = sum(
            n.source == output.name
            for s in self.facts.f.stages
            for e in s.exprs
            for n in walk(e)
            if isinstance(n, Load)
        )
        return output is not self.root and (reads > 1 or self._read_twice(output))

    def _read_twice(self, output: TeStage) -> bool:
        """Whether later stages read any element more than once: the output would be computed as often."""
        counts: dict[str, int] = {}
        for s in self.facts.f.stages[self.facts.f.stages.index(output) + 1 :]:
            for e in s.exprs:
                for n in walk(e):
                    if isinstance(n, Load):
                        counts[n.source] = counts.get(n.source, 0) + 1
        made = {s.name for s in self.facts.f.stages[self.facts.f.stages.index(output) :]}
        return any(k > 1 for name, k in counts.items() if name in made)

    def _border(self, s: TeStage) -> list[Directive]:
        made = StageSchedule(s).compute_root()
        *outer, last = made.axes
        lanes = self.facts.machine.lanes(element_bits(s))
        extent = s.axes[-1].extent
        whole = isinstance(extent, int) and extent % lanes == 0
        made.vectorize(last, lanes, "Auto" if whole else "ShiftInwards")
        made.parallel(outer[-2])
        return made.directives


def _outputs(size: Dim, tiles: Dim) -> int:
    """Outputs of a tile along an axis, given its points and taps."""
    return next(n for n in (4, 2, 1) if ceildiv(size, n) == tiles)
