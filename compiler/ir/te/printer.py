"""The text of te functions: numbers, attributes, expressions, stages, schedules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from occ.compiler.ir.dim import Dim, Sym, Symbol, symbols
from occ.compiler.ir.dtype import BOOL, F32, I64
from occ.compiler.ir.te.expr import (
    Axis,
    Binary,
    Bitcast,
    Call,
    Carried,
    Cast,
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    Select,
    Size,
)
from occ.compiler.ir.te.function import AnyStage, Scatter, TeFunc, reduce_axes

_BARE = re.compile(r"[\w.\/-]+")
_LEVEL = {
    "or": 1, "xor": 2, "and": 3, "eq": 4, "ne": 4, "lt": 4, "le": 4, "add": 5, "sub": 5, "mul": 6, "div": 6,
    "floordiv": 6, "mod": 6,
}  # fmt: skip
_SIGN = {
    "or": "|", "xor": "^", "and": "&", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "add": "+", "sub": "-",
    "mul": "*", "div": "/", "floordiv": "//", "mod": "%",
}  # fmt: skip


def quote(text: str) -> str:
    """A string literal: JSON escapes, ASCII only, so that no name from a model can end it."""
    return json.dumps(text)


def sigil(mark: str, name: str) -> str:
    """A value or symbol name, quoted if it is not a plain word."""
    return mark + (name if name.isascii() and _BARE.fullmatch(name) else quote(name))


def number(value: Any) -> str:
    """A literal without a dtype."""
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, str):
        return quote(value)
    return repr(value)


def _shortest(value: np.floating[Any]) -> float:
    """The shortest decimal that rounds to `value` in the same type."""
    short = float(str(value))
    return short if type(value)(short) == value else float(value)


def elements(data: np.ndarray) -> list[Any]:
    if data.dtype.kind == "f" and data.dtype.itemsize < 8:
        return [_shortest(v) for v in data.reshape(-1)]
    if data.dtype.kind in "biuf":
        return data.reshape(-1).tolist()
    if data.dtype.kind in "OUST":
        return [v.decode() if isinstance(v, bytes) else str(v) for v in data.reshape(-1)]
    return data.reshape(-1).astype(np.float64).tolist()


# Expressions --------------------------------------------------------------------------------------------------------


def expr_text(e: Expr, params: Iterable[str] = (), level: int = 0) -> str:
    """An expression; `params` are the sources that print with `%`."""
    match e:
        case Const():
            return _const(e)
        case Index():
            return e.name
        case Size():
            return f"dim({e.dim})"
        case Load():
            mark = "%" if e.source in params else ""
            return f"{mark}{e.source}[{', '.join(expr_text(i, params) for i in e.index)}]"
        case Binary() if e.op in _SIGN:
            mine = _LEVEL[e.op]
            left = expr_text(e.lhs, params, mine + (mine == 4))
            text = f"{left} {_SIGN[e.op]} {expr_text(e.rhs, params, mine + 1)}"
            return f"({text})" if mine < level else text
        case Binary():
            return f"{e.op}({expr_text(e.lhs, params)}, {expr_text(e.rhs, params)})"
        case Call():
            return f"{e.fn}({', '.join(expr_text(a, params) for a in e.args)})"
        case Select():
            cond = expr_text(e.cond, params, 1)
            text = f"{cond} ? {expr_text(e.then, params)} : {expr_text(e.other, params)}"
            return f"({text})" if level else text
        case Cast():
            return f"cast<{e.dtype}>({expr_text(e.arg, params)})"
        case Bitcast():
            return f"bitcast<{e.dtype}>({expr_text(e.arg, params)})"
        case Carried():
            return f"carried<{e.dtype}>"
        case Reduce():
            return f"{e.kind}[{axes_text(e.axes)}]({expr_text(e.body, params)})"
        case _:
            raise AssertionError(f"no text for {type(e)}")


def _const(c: Const) -> str:
    if c.dtype in (BOOL, I64):
        return number(c.value)
    text = repr(short_floats(c.value) if c.dtype == F32 else c.value)
    return text if c.dtype == F32 else f"{text}_{c.dtype}"


def axes_text(axes: Sequence[Axis]) -> str:
    return ", ".join(f"{a.name}<{a.extent}" for a in axes)


def stage_text(s: AnyStage, params: Iterable[str] = ()) -> str:
    """One stage of a te function, on one line."""
    head = f"{s.name}[{axes_text(s.axes)}] = "
    loc = f" loc({quote(s.note)})" if s.note else ""
    if isinstance(s, Scatter):
        targets = ", ".join(expr_text(e, params) for e in s.target)
        parts = f"{expr_text(s.init, params)}; {targets}; {expr_text(s.value, params)}"
        return f"{head}scatter.{s.combine}[{axes_text(s.over)}]({parts}){loc}"
    role = f" role({s.role})" if s.role else ""
    return f"{head}{expr_text(s.expr, params)}{role}{loc}"


def _reduced(f: TeFunc) -> Iterator[Dim]:
    """Extents that stages reduce over."""
    for s in f.stages:
        yield from (a.extent for e in s.exprs for a in reduce_axes(e))


def te_text(f: TeFunc, indent: str = "") -> str:
    """A te function."""
    names = {p.name for p in f.params}
    params = ", ".join(f"%{p.name}: {p.type}" for p in f.params)
    results = ", ".join(f"{r.name}: {r.type}" for r in f.results)
    found = symbols(*(d for p in (*f.params, *f.results) for d in p.type.dims), *(d for s in f.stages for d in s.shape))
    found = symbols(*(a for d in f.schedule for a in d.args if isinstance(a, Sym)), *_reduced(f)) | found
    dims = ", ".join(f"{d}{bounds_text(found[d]) if d in found else ''}" for d in f.dims)
    lines = [f"te {sigil('@', f.name)}[{dims}]({params}) -> ({results}) {{"]
    lines += [f"  {stage_text(s, names)}" for s in f.stages]
    lines += [f"  check[{axes_text(c.axes)}] {expr_text(c.cond, names)}, {quote(c.message)}" for c in f.checks]
    if f.halide:
        lines.append(f"  halide {quote(f.halide)}")
    if f.hint:
        lines.append(f"  hint {quote(f.hint)}")
    for rule, made in groupby(f.schedule, key=lambda d: d.rule):
        lines += [f"  schedule by {rule} {{" if rule else "  schedule {", *(f"    {d}" for d in made), "  }"]
    return "\n".join(indent + line for line in [*lines, "}"])


def short_floats(value: Any) -> Any:
    """Numbers, or tuples of them, as the shortest decimals that round to the same 32-bit floats."""
    if isinstance(value, tuple):
        plain = bool(value) and set(map(type, value)) == {float}
        return _short_singles(value) if plain else tuple(map(short_floats, value))
    if not isinstance(value, float):
        return value
    with np.errstate(over="ignore"):
        return _shortest(np.float32(value))


def _short_singles(values: tuple[float, ...]) -> tuple[float, ...]:
    """`short_floats` for many numbers at once."""
    with np.errstate(over="ignore"):
        singles = np.asarray(values, np.float32)
        short = singles.astype(np.str_).astype(np.float64)
        return tuple(np.where(short.astype(np.float32) == singles, short, singles.astype(np.float64)).tolist())


def bounds_text(s: Symbol) -> str:
    """The bounds of a symbol as text; empty if it has none."""
    ends = f" [{s.lo}, {'inf' if s.hi is None else s.hi}]" if s.lo or s.hi is not None else ""
    return ends + (f" % {s.divisible_by}" if s.divisible_by > 1 else "")
