"""Names of dims by their role in a product: `M` rows, `K` terms, `N` columns; `H`, `W` of an image."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace

from occ.compiler.ir.dim import Dim, symbol, symbols
from occ.compiler.ir.te.expr import Binary, Index, Reduce
from occ.compiler.ir.te.function import TeFunc, TeStage, loads
from occ.compiler.passes.te.bind_dims import bind_dims

_PLANES = ("M",), ("H", "W"), ("B", "H", "W")  # names of the axes before the columns, by their number


def named_by_role(f: TeFunc, free: Set[str]) -> TeFunc:
    """The function with dims renamed by role where possible, in the same order.

    Args:
        f: a function.
        free: names of dims that may be changed.
    """
    product = next((s for s in f.stages if isinstance(s, TeStage) and is_product(s)), None)
    if product is None:
        return f
    bounds = symbols(
        *(d for p in (*f.params, *f.results) for d in p.type.dims), *(d for s in f.stages for d in s.shape)
    )
    names: dict[str, str] = {}
    for name, extent in _roles(product):
        found = symbols(extent)
        if len(found) == 1 and found.keys() <= free and name not in {*names.values(), *f.dims}:
            names.setdefault(next(iter(found)), name)
    made = {
        old: symbol(new, s.lo, s.hi, s.divisible_by) for old, new in names.items() if (s := bounds.get(old)) is not None
    }
    dims = tuple(names[d] if d in made else d for d in f.dims)
    return replace(bind_dims(f, made), dims=dims)


def is_product(s: TeStage) -> bool:
    """Whether a stage sums products of two values."""
    r = s.expr
    return isinstance(r, Reduce) and r.kind == "sum" and isinstance(r.body, Binary) and r.body.op == "mul"


def _roles(s: TeStage) -> Iterator[tuple[str, Dim]]:
    """Extents of a product, each with its name."""
    assert isinstance(s.expr, Reduce)
    used = {i.name for n in loads(s.expr) for i in n.index if isinstance(i, Index)}
    rows, columns = s.axes[:-1], s.axes[-1:]
    yield from (("N", a.extent) for a in columns)
    yield from (("K", a.extent) for a in s.expr.axes if a.name in used or len(s.expr.axes) == 1)
    if 0 < len(rows) <= len(_PLANES):
        yield from zip(_PLANES[len(rows) - 1], (a.extent for a in rows), strict=True)
