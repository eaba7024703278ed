"""Reads `.occ` text of any stage into a module.

`syntax.py` parses; ir/printer.py is the writer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lark.exceptions import UnexpectedInput, VisitError

from occ.compiler.diagnostics import error
from occ.compiler.frontend.syntax import FuncText, Reader, RegionText, parser
from occ.compiler.frontend.weight_text import WeightsFile, WeightText, data_of, shaped
from occ.compiler.ir.func import Constraint, Func, SymbolInfo
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Region, Value, Weight
from occ.compiler.ir.operator.registry import Registry
from occ.compiler.ir.te.function import TeFunc


def parse(
    text: str,
    registry: Registry | None = None,
    *,
    path: Path | None = None,
    weights: Sequence[np.ndarray] | None = None,
) -> Module:
    """The module that a `.occ` text describes.

    Args:
        text: the text.
        registry: the available operators; the built-in ones if None.
        path: its path; the weights file is found relative to it.
        weights: the data of weights that are not inline, in order, instead of a weights file.

    Raises:
        CompileError: OCC0601 the text is not valid; OCC0604 the weights file is missing or too short.
    """
    where = str(path or "<text>")
    try:
        name, attrs, items = Reader().transform(parser().parse(text))
    except UnexpectedInput as e:
        context = e.get_context(text, 40).strip().splitlines()[0] if e.pos_in_stream is not None else ""
        message = f"unexpected text at line {e.line}, column {e.column}"
        raise error("OCC0601", message, where=where, notes=[context]) from None
    except VisitError as e:
        raise error("OCC0601", f"{e.orig_exc}", where=where) from None
    m = Module(name, attrs.get("stage", "imported"), target=attrs.get("target", ""), registry=registry or Registry())
    try:
        file = WeightsFile(attrs.get("weights", ""), path)
        given = iter(weights or ())
        _fill(m, items, file.read if weights is None else lambda w: _next(given, w))
        if (unknown := next((op.name for op in m.walk() if op.name not in m.registry), None)) is not None:
            raise KeyError(f"there is no operator `{unknown}`; if a rule file defines it, add `--rules FILE`")
    except (KeyError, ValueError, OverflowError, TypeError) as e:  # unknown names, or weights unlike their type
        raise error("OCC0601", str(e.args[0] if e.args else e), where=where) from None
    return m


def _next(given: Iterator[np.ndarray], w: WeightText) -> np.ndarray:
    data = next(given, None)
    if data is None:
        raise ValueError(f"there are no data for the weight `{w.name}`")
    return shaped(data, w.type)


def _fill(m: Module, items: list[Any], read: Callable[[WeightText], np.ndarray]) -> None:
    for item in sorted(items, key=lambda item: isinstance(item, FuncText)):  # they read weights, which may come later
        match item:
            case SymbolInfo():
                m.symbols[item.symbol.name] = item
            case Constraint():
                m.constraints.append(item)
            case WeightText():
                data = read(item) if item.ref else data_of(item.type, item.values)
                m.weights[item.name] = Weight(item.name, data, item.type)
            case FuncText():
                m.funcs[item.name] = _func(item, m)
            case TeFunc():
                m.te[item.name] = item
            case _:
                raise AssertionError(item)


def _func(text: FuncText, m: Module) -> Func:
    made = Func(text.name, _region(text.region, {}, m), text.result_names)
    if text.name == "main" and not made.result_names:  # written by hand
        made.result_names = [v.name for v in made.results]
    inputs, n = [a.name for a in made.args], len(made.result_names)
    if n not in (0, len(made.results)):
        raise KeyError(f"`@{text.name}` names {n} results, and returns {len(made.results)}")
    if twice := next((name for name in inputs if inputs.count(name) > 1), ""):
        raise KeyError(f"`@{text.name}` has two inputs with the name `{twice}`")
    return made


def _region(text: RegionText, outer: dict[str, Value], m: Module) -> Region:
    region = Region([t for _, t in text.params], [n for n, _ in text.params])
    scope = outer | {v.name: v for v in region.args}

    def look_up(kind: str, name: str) -> Value | None:
        if kind == "none":
            return None
        table = m.weights if kind == "@" else scope
        if name not in table:
            raise KeyError(f"`{kind}{name}` is not defined")
        return table[name]

    for t in text.ops:
        inner = [_region(r, scope, m) for r in t.regions]
        types = t.types or [None] * len(t.results)
        operands = [look_up(kind, name) for kind, name in t.operands]
        if len(types) != len(t.results):
            raise KeyError(f"`{t.name}` has {len(t.results)} results and {len(types)} types")
        operator = m.registry.get(t.name, t.name)
        attrs = t.attrs
        if not isinstance(operator, str):
            for problem in operator.own_attributes.problems(attrs) if operator.own_attributes is not None else ():
                raise KeyError(f"line {t.line}: `{t.name}` {problem}")
            attrs = operator.rounded(attrs)
        op = Op(operator, operands, attrs, types, result_names=t.results, regions=inner, loc=t.loc)
        region.insert(op)
        scope.update({v.name: v for v in op.results})
    return region
