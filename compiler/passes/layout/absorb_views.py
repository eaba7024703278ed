"""Absorbs views into layouts: transpositions in a layout chain that cost nothing."""

from __future__ import annotations

from collections.abc import Sequence

from occ.compiler.ir.access import ANY, LAST, ROWS, writes
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.layout import ROW, Layout
from occ.compiler.ir.op import Op, Region, Value
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.types import TensorType

Order = tuple[int, ...]


def layout_of_order(order: Order) -> Layout:
    """The layout for an axis order; row-major if the axes are in their own order."""
    return ROW if order == tuple(range(len(order))) else Layout(order)


def reshaped_order(source: Sequence[Dim], order: Order, target: Sequence[Dim]) -> Order | None:
    """The axis order after a reshape that moves no bytes; None if they would have to move.

    `[n, c, h, w]` in the order `n h w c`, reshaped to `[n, c, h*w]`, has the order `n hw c`.
    """
    groups = _groups(source, target)
    if groups is None:
        return None
    place = {axis: k for k, axis in enumerate(order)}
    ordered: list[tuple[float, list[int]]] = []
    for mine, theirs in groups:
        moving = [a for a in mine if source[a] != 1]
        places = [place[a] for a in moving]
        # Axes of extent 1 can be anywhere; the others must follow each other in memory as they do in the shape.
        between = [a for a in order if source[a] != 1]
        ranks = [between.index(a) for a in moving]
        if ranks != list(range(ranks[0], ranks[0] + len(ranks))) if ranks else False:
            return None
        ordered.append((places[0] if places else -1, theirs))
    return tuple(axis for _, part in sorted(ordered, key=lambda g: g[0]) for axis in part)


def _groups(source: Sequence[Dim], target: Sequence[Dim]) -> list[tuple[list[int], list[int]]] | None:
    """Shortest runs of axes on both sides with equal products."""
    made: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        mine, theirs = [i] if i < len(source) else [], [j] if j < len(target) else []
        a: Dim = source[i] if mine else 1
        b: Dim = target[j] if theirs else 1
        i, j = i + len(mine), j + len(theirs)
        while a != b:
            if i < len(source) and _grows(a, b):
                a, mine, i = a * source[i], [*mine, i], i + 1
            elif j < len(target):
                b, theirs, j = b * target[j], [*theirs, j], j + 1
            elif i < len(source):
                a, mine, i = a * source[i], [*mine, i], i + 1
            else:
                return None
        made.append((mine, theirs))
    return made


def _grows(a: Dim, b: Dim) -> bool:
    """Whether the left side is smaller, or cannot be proved larger."""
    return a < b if isinstance(a, int) and isinstance(b, int) else isinstance(a, int)


def absorb(body: Region, rw: Rewriter) -> int:
    """Let the producer write in the order of its only reader, if it can: `pack(f(x))` --> `f(x)`."""
    absorbed = 0
    for op in list(body):
        if op.name != "pack":
            continue
        value, wanted = op.operands[0], op.result.tensor.layout
        assert value is not None
        views: list[Op] = []
        layout: Layout | None = wanted
        while (maker := value.defining_op) is not None and maker.name == "view" and len(value.uses) == 1:
            views.append(maker)
            value = maker.operands[0]
            assert value is not None
        if maker is None or len(value.uses) != 1 or not _written(value) <= {ANY, LAST} or len(maker.results) != 1:
            continue
        source = op.operands[0]
        assert source is not None
        for view in views:  # from the reader back to the producer
            layout = None if layout is None else _before(view, layout)
        if layout is None or (LAST in _written(value) and layout.order and layout.order[-1] != value.tensor.rank - 1):
            continue
        value.type = value.tensor.with_layout(layout)
        if maker.name == "fuse":
            maker.regions[0].yields[0].type = value.type
        _relabel(views, wanted)
        op.result.replace_uses(source)
        rw.erase(op)
        absorbed += 1
    return absorbed


def _relabel(views: list[Op], last: Layout) -> None:
    """Assign layouts to the results of a chain of views, reader first, so that it ends in `last`."""
    layout: Layout | None = last
    for view in views:
        assert layout is not None
        view.result.type = view.result.tensor.with_layout(layout)
        layout = _before(view, layout)


def _before(view: Op, layout: Layout) -> Layout | None:
    """The layout of the operand of a view whose result has a layout."""
    value = view.operands[0]
    assert value is not None
    old_out = view.result.tensor.layout.order or tuple(range(view.result.tensor.rank))
    old_in = value.tensor.layout.order or tuple(range(value.tensor.rank))
    out = layout.order or tuple(range(view.result.tensor.rank))
    if "transposed" in view.attrs:
        axis = dict(zip(old_out, old_in, strict=True))  # the axes at one position in memory are the same
        return layout_of_order(tuple(axis[a] for a in out))
    order = reshaped_order(view.result.tensor.dims, out, value.tensor.dims)
    return None if order is None else layout_of_order(order)


def _written(value: Value) -> set[str]:
    """The orders in which a value's producer can write; for a region, those of the op that computes the result."""
    maker = value.defining_op
    if maker is None or (maker.regions and maker.name != "fuse"):
        return {ROWS}
    if maker.name == "fuse":
        return _written(maker.regions[0].yields[maker.results.index(value)])
    order = writes(maker)
    inside = [v for v in maker.inputs if v.defining_op is not None and v.defining_op.parent is maker.parent]
    follows = order == ANY and maker.parent is not None and maker.parent.owner is not None
    return {order}.union(*(_written(v) for v in inside)) if follows else {order}


def ranked(value: Value) -> bool:
    """Whether a value is a tensor of known rank; a data-dependent one may have none."""
    return isinstance(value.type, TensorType) and value.type.shape is not None
