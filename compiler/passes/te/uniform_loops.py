"""Outer loops of products and maps in one form: their order and blocks are values of a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from occ.compiler.ir.dim import Dim, Sym, ceildiv, maximum, product
from occ.compiler.ir.te.expr import Index
from occ.compiler.ir.te.function import AnyStage, Param, TeFunc, loads
from occ.compiler.ir.te.schedule import Arg, Directive
from occ.compiler.ir.te.walks import walk
from occ.runtime.dataclass import dataclass

_RULE, _FEW_ROWS = "packed_contraction", "skinny_gemm"
_MAPS = ("elementwise", "window", "full_tile_rows")  # rules whose vectors may overlap the ones before
_ROW = [(call, 0, "elementwise") for call in ("split", "vectorize", "parallel")]  # of a long row that threads share
_TASKS = 8  # as many as `parallel` asks for
_LINE = 64  # bytes of a cache line
# Bytes of panels that are not prefetched: the first tile waits less for them than all tiles take to prefetch. Two
# pictures by MobileNet v2 in codes, x86-64-v3 on Zen 4: 12.2 --> 11.8 ms.
_SHORT = 2048


def uniform_loops(f: TeFunc) -> TeFunc:
    """The function with outer loops in the forms that kernels for any sizes have."""
    return _uniform_tails(_uniform_maps(_uniform_products(f)))


def _uniform_tails(f: TeFunc) -> TeFunc:
    """The function with vectors along rows of any length that has one: the last may overlap the one before.

    `split(x, xo, xi, 16, Auto)` for a row of 96 --> `split(x, xo, xi, 16, ShiftInwards)`, as for a row of 100
    """
    extents = {(s.name, a.name): a.extent for s in f.stages for a in s.axes}

    def shifted(d: Directive) -> Directive:
        if d.rule not in _MAPS or d.update or d.call not in ("split", "vectorize") or d.args[-1] != "Auto":
            return d
        extent, length = extents.get((d.stage, str(d.args[0]))), d.args[-2]
        if isinstance(extent, int) and isinstance(length, int) and length <= extent:
            return replace(d, args=(*d.args[:-1], "ShiftInwards"))
        return d

    return replace(f, schedule=tuple(map(shifted, f.schedule)))


def _uniform_maps(f: TeFunc) -> TeFunc:
    """The function with its long rows, which threads share, in blocks of whole vectors.

    `split(x, xo, xi, 5513, ShiftInwards)`, `vectorize(xi, 16)` --> vectors of 16, and blocks of 345 of them
    """
    for s in f.stages:
        own = [d for d in f.schedule if d.stage == s.name]
        if len(s.axes) != 1 or [(d.call, d.update, d.rule) for d in own] != _ROW:
            continue
        (split, lanes, threads), extent = own, s.axes[0].extent
        (x, outer, inner, length, *_), (of, many, *_) = split.args, lanes.args
        if not (isinstance(extent, int) and isinstance(length, int) and isinstance(many, int)):
            continue
        if (x, inner, outer) != (s.axes[0].name, of, threads.args[0]):
            continue
        made = [
            replace(split, args=(x, outer, inner, many, "ShiftInwards")),
            replace(lanes, args=(inner,)),
            replace(split, args=(outer, f"{x}b", outer, ceildiv(length, many), "GuardWithIf")),
            replace(threads, args=(f"{x}b",)),
        ]
        at = f.schedule.index(split)
        f = replace(f, schedule=(*f.schedule[:at], *made, *(d for d in f.schedule[at:] if d not in own)))
    return f


def _uniform_products(f: TeFunc) -> TeFunc:
    """The function with its products in blocks of rows, in blocks of columns, which threads share.

    How long blocks are decides the order: one panel of columns for all rows, or a few rows for all columns. Products of
    planes and batches share all loops but those over tiles of a row. Weights are prefetched however few they are. Of
    three kernels of a ResNet-50 one remains, which takes 1.12 times as long to compile; runs take 0.98 (slider) to 1.01
    (ResNet-50) of the time (Sapphire Rapids).

    The variants for few rows take the same forms.

    Args:
        f: scheduled. Stages that no product rule scheduled stay as they are.
    """
    uniform = False
    for s in f.stages:
        own = [d for d in f.schedule if d.stage == s.name and not d.update]
        if any(d.rule not in (_RULE, _FEW_ROWS) for d in own):
            continue
        extents = {a.name: a.extent for a in s.axes}
        for variant in dict.fromkeys(d.variant for d in own):
            old = [d for d in own if d.variant == variant and d.call != "specialize"]
            if made := _in_form(old, extents):
                at = f.schedule.index(old[0])
                rest = [d for d in f.schedule if d not in old]
                f, uniform = replace(f, schedule=(*rest[:at], *made, *rest[at:])), True
    return _fetched(f) if uniform else f


def _in_form(own: Sequence[Directive], extents: dict[str, Dim]) -> list[Directive]:
    """The loops of a product in the form that all share; nothing if it has none of their forms."""
    found = _loops(own)
    if found is None:
        return _row_by_row(own, extents)
    return _in_blocks(found, extents) if len(extents) == 2 else _shared(found)


@dataclass(frozen=True)
class _Product:
    """The schedule of a product's result.

    Attributes:
        splits: of its columns into panels, of these into vectors, and of its rows into tiles.
        block: the split of the tiles into blocks, if there is one.
        order: the loops, innermost first: lanes, vectors, rows of a tile, tiles, and those around them.
        inner: what is vectorised and unrolled.
        threads: fused loops, and the one that threads share.
    """

    splits: tuple[Directive, Directive, Directive]
    block: Directive | None
    order: tuple[Arg, ...]
    inner: tuple[Directive, ...]
    threads: tuple[Directive, ...]

    def directive(self, call: str, *args: Arg) -> Directive:
        return replace(self.splits[0], call=call, args=args)


def _loops(own: Sequence[Directive]) -> _Product | None:
    """The parts of a schedule, or None if no product with tiles of several rows has it."""
    splits = [d for d in own if d.call == "split"]
    orders = [d for d in own if d.call == "reorder"]
    inner = tuple(d for d in own if d.call in ("vectorize", "unroll"))
    threads = tuple(d for d in own if d.call in ("fuse", "parallel"))
    if len(splits) not in (3, 4) or len(orders) != 1 or len(own) != len(splits) + 1 + len(inner) + len(threads):
        return None
    panels, vectors, tiles, *block = splits
    if vectors.args[0] != panels.args[2] or (block and block[0].args[0] != tiles.args[1]):
        return None
    order = orders[0].args
    if order[:4] != (vectors.args[2], vectors.args[1], tiles.args[2], tiles.args[1]):
        return None
    return _Product((panels, vectors, tiles), block[0] if block else None, order, inner, threads)


def _in_blocks(p: _Product, extents: dict[str, Dim]) -> list[Directive]:
    """A product of rows and columns: blocks of rows, in each all panels of a block of columns."""
    columns, rows = p.splits[0], p.splits[2]
    panels, tiles = (ceildiv(extents[str(d.args[0])], _factor(d)) for d in (columns, rows))
    panel, tile = str(columns.args[1]), str(rows.args[1])
    few_rows = p.block is not None and p.order[4] == panel  # all panels for one block of rows
    length = _factor(p.block) if p.block is not None else tiles
    together: Dim = panels
    if not few_rows and p.threads:
        together = 1
    elif any(d.call == "fuse" for d in p.threads):
        together = ceildiv(panels, ceildiv(_TASKS, ceildiv(tiles, length)))
    row_block, column_block = f"{rows.args[0]}b", f"{columns.args[0]}b"
    shared = f"{column_block}{row_block}"
    return [
        *p.splits,
        p.directive("split", tile, row_block, tile, _at_call(length), "GuardWithIf"),
        p.directive("split", panel, column_block, panel, _at_call(together), "GuardWithIf"),
        p.directive("reorder", *p.order[:4], panel, row_block, column_block),
        *p.inner,
        p.directive("fuse", row_block, column_block, shared),
        p.directive("parallel", shared),
    ]


def _row_by_row(own: Sequence[Directive], extents: dict[str, Dim]) -> list[Directive]:
    """A product of few rows: blocks of columns, which threads share, in each a row at a time."""
    splits = [d for d in own if d.call == "split"]
    orders = [d for d in own if d.call == "reorder"]
    inner = [d for d in own if d.call in ("vectorize", "unroll")]
    threads = [d for d in own if d.call == "parallel"]
    if len(splits) != 2 or len(orders) != 1 or len(own) != 3 + len(inner) + len(threads) or len(extents) != 2:
        return []
    panels, vectors = splits
    column, panel, order = str(panels.args[0]), str(panels.args[1]), orders[0].args
    if vectors.args[0] != panels.args[2] or order[:2] != (vectors.args[2], vectors.args[1]) or order[3:] != (panel,):
        return []
    together = 1 if threads else ceildiv(extents[column], _factor(panels))
    block = f"{column}b"
    return [
        *splits,
        replace(panels, args=(panel, block, panel, _at_call(together), "GuardWithIf")),
        replace(orders[0], args=(*order, block)),
        *inner,
        replace(panels, call="parallel", args=(block,)),
    ]


def _fetched(f: TeFunc) -> TeFunc:
    """The function with prefetches of packed weights, however few they are, in panels that are not short."""
    known = {(d.stage, d.args[0]): d for d in f.schedule if d.call == "fetch_ahead" and d.rule in (_RULE, _FEW_ROWS)}
    made = [d for d in f.schedule if d not in known.values()]
    for p in f.params:
        size = product(p.type.physical[1:]) * p.type.dtype.itemsize
        worth = isinstance(size, int) and size % _LINE == 0 and size > _SHORT
        for s in f.stages:
            rule = _rule_of_tiles(s, f)
            if (s.name, p.name) in known:
                made.append(known[s.name, p.name])
            elif worth and rule and _reads_panels(s, p):
                made.append(Directive(s.name, "fetch_ahead", (p.name, size), rule=rule))
    return replace(f, schedule=tuple(made))


def _rule_of_tiles(s: AnyStage, f: TeFunc) -> str:
    """The rule that computes several rows of a stage at a time, if one does."""
    axes = {a.name for a in s.axes}
    rows = (d for d in f.schedule if (d.stage, d.call, d.update) == (s.name, "unroll", 0) and d.args[0] in axes)
    return next((d.rule for d in rows), "")


def _reads_panels(s: AnyStage, p: Param) -> bool:
    """Whether a stage reads a parameter along its columns, which is stored in panels of them."""
    indices = (i for n in loads(*s.exprs) if n.source == p.name for i in n.index)
    names = {x.name for i in indices for x in walk(i) if isinstance(x, Index)}
    return bool(p.type.layout.tiles and s.axes) and s.axes[-1].name in names


def _shared(p: _Product) -> list[Directive]:
    """A product of planes or batches: threads share all loops around tiles, if they share any."""
    made = [*p.splits, p.directive("reorder", *p.order), *p.inner]
    if p.block is not None:
        made.insert(len(p.splits), p.block)
    *around, loop = p.order[4:]
    if not p.threads:
        return made
    for inner in reversed(around):
        fused = f"{loop}{inner}"
        made.append(p.directive("fuse", inner, loop, fused))
        loop = fused
    return [*made, p.directive("parallel", loop)]


def _factor(split: Directive) -> Dim:
    factor = split.args[3]
    assert isinstance(factor, (int, Sym))
    return factor


def _at_call(length: Dim) -> Dim:
    """A length that a call passes: a size alone would be that size."""
    return length if isinstance(length, int) else maximum(length, 1)
