"""Te functions that compute each item of a batch from that item alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from occ.compiler.ir.dim import Dim, Sym, symbols
from occ.compiler.ir.dtype import I64
from occ.compiler.ir.te.expr import Axis, Expr, Index, Load, Reduce, Size, literal
from occ.compiler.ir.te.function import TeFunc, TeStage
from occ.compiler.ir.te.walks import transform, walk


def is_per_item(f: TeFunc, batch: Sym) -> bool:
    """Whether item `i` of each result depends on item `i` of the operands only, as for every other `i`.

    Args:
        f: the function; parameters and stages that have items have the symbol `batch` as their first extent.
        batch: the symbol, which no other size contains.
    """
    name = str(batch)
    shapes = {source: shape for source, shape in f.shapes.items() if name in symbols(*shape)}
    if any(shape[0] != batch or name in symbols(*shape[1:]) for shape in shapes.values()):
        return False
    boxes: list[tuple[Sequence[Axis], Expr]] = [(c.axes, c.cond) for c in f.checks]
    for s in f.stages:
        if not isinstance(s, TeStage):
            return False
        boxes.append((s.axes, s.expr))
    return all(_reads_own_item(axes, e, shapes.keys(), batch) for axes, e in boxes)


def _reads_own_item(axes: Sequence[Axis], e: Expr, batched: Collection[str], batch: Sym) -> bool:
    """Whether an expression loads what has items at its own item, and uses the item's number for nothing else."""
    extents: list[Dim] = [a.extent for a in axes]
    item = Index(axes[0].name) if extents and extents[0] == batch else None
    if str(batch) in symbols(*extents[item is not None :]):
        return False
    elsewhere: list[Load] = []

    def at_first(n: Expr) -> Expr | None:
        if not isinstance(n, Load) or n.source not in batched:
            return None
        if n.index[0] != item:
            elsewhere.append(n)
            return None
        return Load(n.source, (literal(0, I64), *n.index[1:]), n.dtype)

    rest = list(walk(transform(e, at_first)))
    sizes = [n.dim for n in rest if isinstance(n, Size)]
    sizes += [a.extent for n in rest if isinstance(n, Reduce) for a in n.axes]
    return not elsewhere and item not in rest and str(batch) not in symbols(*sizes)
