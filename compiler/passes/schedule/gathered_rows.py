"""Recognises stages that gather from computed rows, such as the last axis of a Resize."""

from __future__ import annotations

from occ.compiler.ir.te.expr import Load, Reduce
from occ.compiler.ir.te.function import TeFunc, TeStage, loads, position
from occ.compiler.ir.te.walks import walk


def sampled_rows(f: TeFunc) -> dict[str, str]:
    """Stages worth computing row by row, each with the result in whose loops its rows are read.

    A row is computed with vectors, while each sampled element takes as long as a vector, and each element of the result
    needs several samples.
    """
    found: dict[str, str] = {}
    stages = {r.name: r for r in f.stages if isinstance(r, TeStage)}
    for s in stages.values():
        reads = loads(s.expr) if len(s.axes) > 1 else ()
        read = dict.fromkeys(n.source for n in reads if n.index and loads(n.index[-1]))
        rows = [name for name in read if name in stages and _is_sampled(stages[name], s, f)]
        if rows and (home := _home(s, f)):
            found |= dict.fromkeys(rows, home)
    return found


def _home(s: TeStage, f: TeFunc) -> str:
    """The result that `s` is, or that is its only reader, in place."""
    results = {r.name for r in f.results}
    if s.name in results:
        return s.name
    readers = [x for x in f.stages if isinstance(x, TeStage) and any(n.source == s.name for n in loads(x.expr))]
    if len(readers) != 1 or readers[0].name not in results or readers[0].shape != s.shape:
        return ""
    reader = readers[0]
    in_place = all(n.index == position(reader.axes) for n in loads(reader.expr) if n.source == s.name)
    return reader.name if in_place and not any(isinstance(n, Reduce) for n in walk(reader.expr)) else ""


def _is_sampled(r: TeStage, s: TeStage, f: TeFunc) -> bool:
    reads = [n for n in loads(s.expr) if n.source == r.name]
    plain = not any(isinstance(n, Reduce) for e in (r.expr, s.expr) for n in walk(e))
    if not reads or not plain or isinstance(r.expr, Load) or len(r.axes) != len(s.axes):
        return False
    if any(n.source == r.name for x in f.stages if x is not s for n in loads(*x.exprs)):
        return False
    row = position(s.axes)[:-1]
    return all(n.index[:-1] == row and loads(n.index[-1]) for n in reads)
