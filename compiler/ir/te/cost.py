"""Arithmetic operations of a te function, as a size expression over its dims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from occ.compiler.ir.dim import Dim, product
from occ.compiler.ir.te.expr import Binary, Call, Expr, Load, Reduce, Select
from occ.compiler.ir.te.function import AnyStage, Scatter, TeFunc, TeStage, loads
from occ.compiler.ir.te.walks import children, walk

SERIAL = 40_000  # operations below which a second thread does not pay off: about 10 us
_FREE = ("neg", "not", "isnan", "isinf")


def operations(f: TeFunc) -> Dim:
    """Additions, multiplications, comparisons and elementary functions on data; index arithmetic is not counted.

    A multiply-add counts as two, as usual for FLOP/s. Shared subexpressions count once.
    """
    total: Dim = 0
    for s in _at_large(f):
        box = product(s.shape)
        if isinstance(s, Scatter):
            total = total + box * _of(s.init) + product(a.extent for a in s.over) * (1 + _of(s.value))
        else:
            total = total + box * _of(s.expr)
    return total


def _at_large(f: TeFunc) -> Iterator[AnyStage]:
    """The stages without those that only compute a result of few rows in another way."""
    variants = Counter(d.stage for d in f.schedule if d.call == "specialize")
    read = {r.name for r in f.results}
    for s in reversed(f.stages):
        if s.name not in read:
            continue
        for _ in range(variants[s.name]):
            if isinstance(s, TeStage) and isinstance(s.expr, Select):
                s = replace(s, expr=s.expr.other)
        read |= {n.source for n in loads(*s.exprs)}
        yield s


def _of(e: Expr) -> Dim:
    """Operations of one evaluation; the body of a reduction counts once per term."""
    repeats: dict[int, Dim] = {}  # of each node, by id
    total: Dim = 0
    for node in reversed(list(walk(e))):  # parents before children
        times = repeats.get(id(node), 0 if repeats else 1)  # nothing reaches the nodes of an index
        inner = times * product(a.extent for a in node.axes) if isinstance(node, Reduce) else times
        if not isinstance(node, Load):  # an index is arithmetic on positions
            repeats |= {id(c): inner for c in children(node)}
        if isinstance(node, Reduce):
            total = total + inner
        elif isinstance(node, (Binary, Select)) or (isinstance(node, Call) and node.fn not in _FREE):
            total = total + (times if node.dtype.name not in ("i64", "bool") else 0)
    return total
