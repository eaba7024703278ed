"""The schedule of products of block-quantised weights: register tiles, block after block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from occ.compiler.ir.dim import Dim, ceildiv, is_multiple
from occ.compiler.ir.dtype import I8
from occ.compiler.ir.ops.own.block_products import DIGIT_ROWS
from occ.compiler.ir.te.expr import Axis, Binary, Expr, Index, Load, Reduce, binary, minimum, where, wrap
from occ.compiler.ir.te.function import TeFunc, TeStage, reduce_axes
from occ.compiler.ir.te.schedule import AtMost, Directive
from occ.compiler.ir.te.stage_schedule import Loop, StageSchedule
from occ.compiler.ir.te.walks import transform, walk
from occ.compiler.ir.typical_sizes import nominal
from occ.compiler.passes.methods.block_products.tiles import Tile, schedule_root, tests_of_heights, tile_heights
from occ.compiler.passes.methods.block_products.unpacked_product import UnpackedProduct, by_rows
from occ.compiler.passes.rules.schedule_rule import Declined, Log
from occ.compiler.passes.schedule.apply import by_rules
from occ.compiler.passes.schedule.block_product_stages import Stages, block_product_stages
from occ.compiler.passes.schedule.prefetch import fetch_streamed
from occ.compiler.passes.schedule.rules.fallback import FALLBACK
from occ.compiler.passes.schedule.stage_facts import fixed
from occ.compiler.targets.machine import Machine

_COPIED = 1 << 16  # bytes of activations from which several threads pack them


def block_product(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Products of block-quantised weights: a panel of columns by a tile of rows in registers, block after block.

    Tiles of rows are computed whole, so a symbolic row count gets several tile heights, chosen at run time: `out[i<N,
    j] = acc[i, j]` --> `out[i<N, j] = N <= 1 ? acc1[i, j] : N <= 2 ? acc2[i//2, i%2, j] : ..`
    """
    few, many = by_rows(f)
    parts = None if few is None else block_product_stages(few)
    if parts is None and many is None:
        return Declined("it is not a `block_matmul`")
    if not machine.has_horizontal_add:  # with vectors, Halide 21 fails an LLVM assertion or computes wrong results
        return by_rules((FALLBACK,), f, machine, Log())
    variants: list[_Variant | UnpackedProduct] = []
    tests: list[AtMost] = []
    if few is not None and parts is not None:
        rows: Dim = parts.rows[-1].extent if parts.rows else 1
        tiles = tile_heights(rows, machine)
        found = tests_of_heights(rows, tiles[:-1])
        variants += [_Variant(few, parts, machine, tile, case) for case, tile in enumerate([*found, tiles[-1]])]
        tests += [*found.values(), *([] if many is None else [AtMost(rows, DIGIT_ROWS).simplest])]
    if many is not None:
        variants.append(UnpackedProduct(many, machine))
    return _with_variants(f, variants, tests)


def _with_variants(f: TeFunc, variants: Sequence[_Variant | UnpackedProduct], tests: Sequence[AtMost]) -> TeFunc:
    """The function that uses the first variant whose test holds; the last one has no test."""
    *cases, last = variants
    expr = last.expr
    for case, test in reversed(list(zip(cases, tests, strict=True))):
        expr = where(binary("le", wrap(test.left), wrap(test.right)), case.expr, expr)
    root = replace(f.stages[-1], expr=expr)
    made: list[Directive] = []
    for k, v in enumerate(variants):
        case = 0 if v is last else k + 1
        if case:
            made.append(Directive(root.name, "specialize", (tests[k],)))
        made += [replace(d, variant=case) if d.stage == root.name else d for d in v.directives()]
    stages = {s.name: s for v in variants for s in v.stages}
    return replace(f, stages=(*stages.values(), root), schedule=tuple(made))


def _unbounded(row: Expr) -> Expr:
    """A row index without the bound on rows that have codes: a variant for few rows reads no others."""
    while isinstance(row, Binary) and row.op == "min":
        row = row.lhs if any(isinstance(n, Index) for n in walk(row.lhs)) else row.rhs
    return row


class _Variant:
    """The stages of a product with a given tile height, under names of their own, and their schedule.

    Attributes:
        stages: all but the root; expr: the root in terms of them.
    """

    def __init__(self, f: TeFunc, parts: Stages, machine: Machine, tile: int, case: int) -> None:
        self.f, self.parts, self.machine, self.tile = f, parts, machine, tile
        self.mark = f"t{tile}"
        self.lanes = fixed(parts.acc.axes[-1])
        self.depth = len(parts.rows) - 1  # of the row axis among the axes of a stage
        self.names = {s.name: f"{s.name}{self.mark}" for s in parts.made}
        packs: list[TeStage] = []
        if tile > 1:
            packs = [self._packed(parts.left), self._packed(parts.steps)]
            self.names |= {parts.left: packs[0].name, parts.steps: packs[1].name}
        self.packs = packs
        self.copies = {s.name: self._copy(s) for s in f.stages if s in parts.made and isinstance(s, TeStage)}
        self.held = self._held() if machine.multiplies_by_element else None
        self.stages = [*packs, *([] if self.held is None else [self.held]), *self.copies.values()]
        self.expr = transform(parts.root.expr, lambda n: self._read(n, tiled=False))

    # stages

    def _packed(self, source: str) -> TeStage:
        """A parameter in tiles, `[.., row, *rest]` --> `[.., row//T, block, row%T, *rest]`; missing rows repeat the last."""
        (dims,) = (p.type.dims for p in self.f.params if p.name == source)
        dtype = next(p.type.dtype for p in self.f.params if p.name == source)
        at, block = self.depth, -2 if source == self.parts.left else -1
        axes = [Axis(f"{source}{self.mark}x{k}", n) for k, n in enumerate(dims)]
        row, b = axes[at], axes[block]
        rest = [a for a in axes[at + 1 :] if a is not b]
        t, r = Axis(row.name, ceildiv(row.extent, self.tile)), Axis(f"{row.name}r", self.tile)
        here: Expr = Index(t.name) * self.tile + Index(r.name)
        if not is_multiple(row.extent, self.tile):
            here = minimum(here, wrap(row.extent - 1))
        index = tuple(here if a is row else Index(a.name) for a in axes)
        return TeStage(f"{source}{self.mark}", (*axes[:at], t, b, r, *rest), Load(source, index, dtype))

    def _held(self) -> TeStage:
        """The codes of a row and block, in registers: products read those, and take elements of them."""
        product = (self.parts.pairs or self.parts.dot).name
        left = self.names.get(self.parts.left, self.parts.left)
        shape = next((s.shape for s in self.packs if s.name == left), None)
        shape = shape or next(p.type.dims for p in self.f.params if p.name == left)
        axes = tuple(Axis(f"{left}h{self.mark}x{k}", n) for k, n in enumerate(shape))
        held = TeStage(f"{left}h{self.mark}", axes, Load(left, tuple(Index(a.name) for a in axes), I8))

        def visit(n: Expr) -> Expr | None:
            return Load(held.name, n.index, n.dtype) if isinstance(n, Load) and n.source == left else None

        self.copies[product] = replace(self.copies[product], expr=transform(self.copies[product].expr, visit))
        return held

    def _copy(self, s: TeStage) -> TeStage:
        """A stage under its other name; its rows become tiles and rows of a tile."""
        of_blocks = s in (self.parts.total, self.parts.whole)
        tiled = self.tile > 1 and (of_blocks or s in (self.parts.pairs, self.parts.dot, self.parts.acc))
        renamed = {a.name: Index(f"{a.name}{self.mark}") for a in (*s.axes, *reduce_axes(s.expr))}

        def visit(n: Expr) -> Expr | None:
            if isinstance(n, Index):
                return renamed.get(n.name, n)
            if isinstance(n, Reduce):
                axes = tuple(Axis(renamed[a.name].name, a.extent) for a in n.axes)
                return Reduce(n.kind, axes, n.body, n.dtype)
            return self._read(n, tiled=tiled)

        axes = [Axis(renamed[a.name].name, a.extent) for a in s.axes]
        if tiled:
            axes = self._in_tiles(axes, block=of_blocks)
        return replace(s, name=self.names[s.name], axes=tuple(axes), expr=transform(s.expr, visit))

    def _in_tiles(self, axes: list[Axis], *, block: bool) -> list[Axis]:
        at = self.depth
        row, rest = axes[at], axes[at + 1 :]
        t, r = Axis(row.name, ceildiv(row.extent, self.tile)), Axis(f"{row.name}r", self.tile)
        return [*axes[:at], t, rest[-1], r, *rest[:-1]] if block else [*axes[:at], t, r, *rest]

    def _read(self, n: Expr, *, tiled: bool) -> Expr | None:
        """A load of one of the stages, or of a packed parameter, as a load from its tiles."""
        if not isinstance(n, Load) or n.source not in self.names:
            return None
        parts, at, index = self.parts, self.depth, n.index
        of_blocks = {parts.steps, *(s.name for s in (parts.total, parts.whole) if s is not None)}
        sums = {s.name for s in (parts.pairs, parts.dot, parts.acc) if s is not None}
        if self.tile > 1 and n.source in {*of_blocks, *sums, parts.left}:
            row, rest = _unbounded(index[at]), index[at + 1 :]
            t, r = (
                (row, Index(f"{row.name}r"))
                if tiled and isinstance(row, Index)
                else (row // self.tile, row % self.tile)
            )
            if n.source == parts.left:
                *digit, b, k = rest
                rest = (b, r, *digit, k)
            elif n.source in of_blocks:
                *digit, b = rest
                rest = (b, r, *digit)
            else:
                rest = (r, *rest)
            index = (*index[:at], t, *rest)
        return Load(self.names[n.source], index, n.dtype)

    # the schedule

    def directives(self) -> list[Directive]:
        out = StageSchedule(self.parts.root)
        tile = self._root(out)
        made = out.directives
        for s in self.packs:
            made += self._pack(s)
        if self.parts.total is not None:
            total = self.copies[self.parts.total.name]
            update = StageSchedule(total, update=1)
            made += StageSchedule(total).compute_root().directives
            made += update.atomic().vectorize(*update.reduced).directives
        if self.parts.whole is not None:
            made += StageSchedule(self.copies[self.parts.whole.name]).compute_root().directives
        acc, row, block = self._acc(tile)
        held = StageSchedule(self.held).compute_at(self.copies[self.parts.acc.name].name, row) if self.held else None
        if held is not None and self.held is not None:
            k = held.axes[-1]
            held.bound(k, 0, fixed(self.held.axes[-1])).vectorize(k)
            made += held.directives
        return [*made, *acc, *self._dot(row), *self._codes(block), *self._ahead()]

    def _ahead(self) -> list[Directive]:
        """Prefetches codes, scales and zero points, which a tile of rows reads once."""
        parts = self.parts
        weight = {p.name for p in self.f.params} - {parts.left, parts.steps}
        readers = [self.copies[s.name] for s in (parts.codes or parts.pairs or parts.dot, parts.acc)]
        return [d for s in readers for d in fetch_streamed(s, weight, self.machine)]

    def _root(self, out: StageSchedule) -> Loop:
        """Schedules the root; returns its loop over tiles."""
        parts = self.parts
        product, pairs = parts.pairs or parts.dot, 1 if parts.pairs is None else 2
        terms = [*map(fixed, reduce_axes(product.expr)), pairs]
        tile = Tile(self.tile, self.lanes, 1, self.mark, terms, parts.dot.axes[self.depth + 2].extent)
        return schedule_root(out, parts.root, tile)[1]

    def _pack(self, s: TeStage) -> list[Directive]:
        p = StageSchedule(s).compute_root()
        p.vectorize(p.axes[-1], min(self.machine.vector_bits // s.dtype.bits, fixed(s.axes[-1])))
        tiles = s.axes[self.depth].extent
        if not isinstance(tiles, int) or (tiles > 1 and nominal(tiles) * self.tile * 64 >= _COPIED):
            p.parallel(p.axes[self.depth])
        return p.directives

    def _acc(self, level: Loop) -> tuple[list[Directive], Loop, Loop]:
        """The sums of blocks, and their loops over a row and over blocks."""
        acc = self.copies[self.parts.acc.name]
        start, update = StageSchedule(acc).compute_at(self.parts.root.name, level), StageSchedule(acc, update=1)
        (*rows, p, c), (b,) = start.axes, update.reduced
        start.bound(c, 0, self.lanes).bound_extent(p, 1)
        tile = rows[-1:] if self.tile > 1 else []
        for r in tile:
            start.bound(r, 0, self.tile)
        for r in rows[: len(rows) - len(tile)]:
            start.bound_extent(r, 1)
        start.vectorize(c)
        update.reorder(c, *tile, b, p, *reversed(rows[: len(rows) - len(tile)])).vectorize(c)
        for r in tile:
            start.unroll(r)
            update.unroll(r)
        return [*start.directives, *update.directives], tile[0] if tile else b, b

    def _dot(self, row: Loop) -> list[Directive]:
        if self.parts.pairs is None:
            return self._products(self.parts.dot, row)
        acc, dot = (self.copies[s.name] for s in (self.parts.acc, self.parts.dot))
        start, update = StageSchedule(dot).compute_at(acc.name, row), StageSchedule(dot, update=1)
        (*others, c), (q,) = start.axes, update.reduced
        start.bound(c, 0, self.lanes).vectorize(c)
        update.reorder(q, c, *reversed(others)).vectorize(c).atomic().vectorize(q)
        self._unroll_digits(dot, start, update)
        return [*self._products(self.parts.pairs, row), *start.directives, *update.directives]

    @staticmethod
    def _unroll_digits(s: TeStage, start: StageSchedule, update: StageSchedule, lanes: int = 1) -> None:
        """Unrolls the axis of activation digits, before the vector's `lanes` axes, if it has several."""
        axis, digit = s.axes[-1 - lanes], start.axes[-1 - lanes]
        if axis.extent in (2, 3):
            start.bound(digit, 0, fixed(axis)).unroll(digit)
            update.unroll(digit)

    def _products(self, of: TeStage, row: Loop) -> list[Directive]:
        """Schedules the code products: the elements that one instruction adds up are innermost."""
        acc, s = self.copies[self.parts.acc.name], self.copies[of.name]
        count = 2 if of is self.parts.pairs else 1
        start, update = StageSchedule(s).compute_at(acc.name, row), StageSchedule(s, update=1)
        *words, innermost = update.reduced
        lanes, others = start.axes[-count:], start.axes[:-count]
        update.reorder(innermost, *reversed(lanes), *reversed(words), *reversed(others))
        for a, lane in zip(s.axes[-count:], lanes, strict=True):
            start.bound(lane, 0, fixed(a)).vectorize(lane)
            update.vectorize(lane)
        update.atomic().vectorize(innermost)
        for w in words:
            update.unroll(w)
        self._unroll_digits(s, start, update, count)
        return [*start.directives, *update.directives]

    def _codes(self, block: Loop) -> list[Directive]:
        if self.parts.codes is None:
            return []
        codes, acc = self.copies[self.parts.codes.name], self.copies[self.parts.acc.name]
        made = StageSchedule(codes).compute_at(acc.name, block)
        *outer, c, four = made.axes
        for loop in (c, four, *outer[2:]):
            made.bound(loop, 0, fixed(codes.axes[made.axes.index(loop)]))
        made.vectorize(made.fuse(four, c, f"{c}f"))
        for loop in outer[2:]:
            made.unroll(loop)
        return made.directives
