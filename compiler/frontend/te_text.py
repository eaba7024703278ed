"""Reads te functions from `.occ` text, and infers the dtypes of their expressions."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from occ.compiler.ir import dtype as dt
from occ.compiler.ir.dtype import DType
from occ.compiler.ir.te import expr as ex
from occ.compiler.ir.te.function import Check, Param, Scatter, TeFunc, TeStage
from occ.compiler.ir.te.schedule import Directive


def literal(token: str) -> ex.Const:
    """A constant: `true`, `2` (i64), `0.5` (f32), or with its dtype, `1.5_f64`."""
    text = str(token)
    if text in ("true", "false"):
        return ex.literal(text == "true", dt.BOOL)
    if "_" in text:
        value, dtype = text.split("_", 1)
        kind = dt.BY_NAME[dtype]
        return ex.literal(float(value) if kind.is_float else int(value), kind)
    is_int = re.fullmatch(r"-?\d+", text)
    return ex.literal(int(text), dt.I64) if is_int else ex.literal(float(np.float32(text)), dt.F32)


def _typed(tree: Any, sources: dict[str, DType]) -> ex.Expr:
    """An expression from its parse; nodes are created as written, without simplification."""
    if isinstance(tree, ex.Expr):
        return tree
    match tree:
        case ("load", name, index):
            if name not in sources:
                raise KeyError(f"`{name}` is not a parameter or an earlier stage")
            return ex.Load(name, tuple(_typed(i, sources) for i in index), sources[name])
        case ("binary", op, a, b):
            lhs, rhs = _typed(a, sources), _typed(b, sources)
            return ex.Binary(op, lhs, rhs, dt.BOOL if op in ex.COMPARISONS else lhs.dtype)
        case ("select", c, a, b):
            return ex.Select(_typed(c, sources), _typed(a, sources), _typed(b, sources))
        case ("cast", dtype, arg):
            return ex.Cast(_typed(arg, sources), dtype)
        case ("bitcast", dtype, arg):
            return ex.Bitcast(_typed(arg, sources), dtype)
        case ("carried", dtype):
            return ex.Carried(dtype)
        case ("call", fn, args):
            given = tuple(_typed(a, sources) for a in args)
            if fn in ex.BINARY:
                return ex.Binary(fn, given[0], given[1], given[0].dtype)
            if ex.CALLS.get(fn) != len(given):
                raise KeyError(f"`{fn}` is not a function of {len(given)} arguments")
            return ex.Call(fn, given, ex.call_dtype(fn, given[0].dtype))
        case ("reduce", kind, axes, body):
            inner = _typed(body, sources)
            return ex.Reduce(kind, axes, inner, dt.I64 if kind in ("argmax", "argmin") else inner.dtype)
        case _:
            raise AssertionError(tree)


def te_func(
    name: str, dim_names: list[str], params: list[tuple[str, Any]], results: list[Param], body: list[Any]
) -> TeFunc:
    """A te function from its parsed parts."""
    sources = {n: t.dtype for n, t in params}
    stages: list[TeStage | Scatter] = []
    checks: list[Check] = []
    directives: tuple[Directive, ...] = ()
    source = hint = ""
    for item in body:
        match item:
            case ("stage", stage, axes, expr, role, loc):
                stages.append(TeStage(stage, axes, _typed(expr, sources), loc or "", role or ""))
                sources[stage] = stages[-1].dtype
            case ("scatter", stage, axes, kind, over, init, target, value, loc):
                start, to, what = (
                    _typed(init, sources),
                    tuple(_typed(e, sources) for e in target),
                    _typed(value, sources),
                )
                stages.append(Scatter(stage, axes, start, over, to, what, kind, loc or ""))
                sources[stage] = stages[-1].dtype
            case ("check", axes, cond, message):
                checks.append(Check(axes, _typed(cond, sources), message))
            case ("schedule", found):
                directives += tuple(found)
            case ("halide", source):
                pass
            case ("hint", hint):
                pass
            case _:
                raise AssertionError(item)
    made = tuple(Param(n, t) for n, t in params)
    return TeFunc(name, tuple(dim_names), made, tuple(stages), tuple(results), tuple(checks), directives, source, hint)
