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

_RULE = "packed_contraction"
_ROW = [(call, 0, "elementwise") for call in ("split", "vectorize", "parallel")]  # of a long row that threads share
_TASKS = 8  # as many as `parallel` asks for
_LINE = 64  # bytes of a cache line
# Bytes of panels that are not prefetched: the first tile waits less for them than all tiles take to prefetch. Two
# pictures by MobileNet v2 in codes, x86-64-v3 on Zen 4: 12.2 --> 11.8 ms.
_SHORT = 2048


def uniform_loops(f: TeFunc) -> TeFunc:
    """The function with outer loops in the forms that kernels for any sizes have."""
    return _uniform_maps(_uniform_products(f))


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
            replace(split, args=(x, outer, inner, many, "ShiftInwards" if extent % many else "Auto")),
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

    Args:
        f: scheduled. Stages with variants, and those that no product rule scheduled, stay as they are.
    """
    for s in f.stages:
        own = [d for d in f.schedule if d.stage == s.name and not d.update]
        found = _loops(own) if all(d.rule == _RULE and not d.variant for d in own) else None
        if found is not None:
            extents = {a.name: a.extent for a in s.axes}
            made = _in_blocks(found, extents) if len(s.axes) == 2 else _shared(found)
            at = next(k for k, d in enumerate(f.schedule) if d is own[0])
            rest = [d for d in f.schedule if d not in own]
            f = _fetched(replace(f, schedule=(*rest[:at], *made, *rest[at:])))
    return f


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


def _fetched(f: TeFunc) -> TeFunc:
    """The function with prefetches of packed weights, however few they are, in panels that are not short."""
    known = {d.args[0]: d for d in f.schedule if d.call == "fetch_ahead" and d.rule == _RULE}
    made = [d for d in f.schedule if d not in known.values()]
    for p in f.params:
        size = product(p.type.physical[1:]) * p.type.dtype.itemsize
        reader = next((s for s in f.stages if _reads_panels(s, p)), None)
        if p.name in known:
            made.append(known[p.name])
        elif reader is not None and isinstance(size, int) and size % _LINE == 0 and size > _SHORT:
            made.append(Directive(reader.name, "fetch_ahead", (p.name, size), rule=_RULE))
    return replace(f, schedule=tuple(made))


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
