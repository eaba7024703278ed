"""Parser of `.occ` text to a syntax tree. The grammar is ir/grammar.lark."""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import lark
import numpy as np
from lark.exceptions import VisitError

from occ.compiler.frontend.te_text import literal as te_literal
from occ.compiler.frontend.te_text import te_func
from occ.compiler.frontend.weight_text import WeightText, array_of
from occ.compiler.ir import dim as dims
from occ.compiler.ir import dtype as dt
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.dtype import DType
from occ.compiler.ir.func import Constraint, SymbolInfo
from occ.compiler.ir.layout import ROW, Layout
from occ.compiler.ir.location import Location
from occ.compiler.ir.op import FuncRef
from occ.compiler.ir.te import expr as ex
from occ.compiler.ir.te.function import Param, TeFunc
from occ.compiler.ir.te.schedule import AtMost, Directive
from occ.compiler.ir.types import MapType, OptionalType, SequenceType, TensorType, Type


class OpText(NamedTuple):
    """A parsed op, with operands as names."""

    results: list[str]
    name: str
    operands: list[tuple[str, str]]
    attrs: dict[str, Any]
    types: list[Type | None]
    regions: list[RegionText]
    loc: Location
    line: int


class RegionText(NamedTuple):
    """The parameters and ops of a region."""

    params: list[tuple[str, Type | None]]
    ops: list[OpText]


class FuncText(NamedTuple):
    """A parsed function."""

    name: str
    region: RegionText
    result_names: list[str]


_SIGNS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le"}


def _string(token: str) -> str:
    return json.loads(token)


def _name(token: str) -> str:
    """The name after `%` or `@`, unquoted."""
    return json.loads(token[1:]) if token[1] == '"' else str(token[1:])


def _present(items: list[Any]) -> list[Any]:
    return [i for i in items if i is not None]


class Reader(lark.Transformer):  # pyright: ignore[reportMissingTypeArgument]
    """Builds data from the parse, bottom-up and left to right, so that dims are declared before they are used."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols: dict[str, SymbolInfo] = {}
        self.te_symbols: dict[str, Dim] = {}  # bounded dims of the current te function

    def _call_userfunc(self, tree: Any, new_children: list[Any] | None = None) -> Any:
        """The result of a grammar rule's method for its children.

        The name is a plain `str`: CPython loses a Ctrl-C that arrives while it compares a lark token with method names.
        """
        try:
            return getattr(self, str(tree.data))(*(tree.children if new_children is None else new_children))
        except Exception as e:
            raise VisitError(tree.data, tree, e) from e

    # dims
    dim = staticmethod(lambda d: d)
    dint = staticmethod(int)
    dadd = staticmethod(lambda a, b: a + b)
    dsub = staticmethod(lambda a, b: a - b)
    dmul = staticmethod(lambda a, b: a * b)
    dneg = staticmethod(lambda a: -a)
    dfloordiv = staticmethod(dims.floordiv)
    dmin = staticmethod(dims.minimum)
    dmax = staticmethod(dims.maximum)

    def dname(self, name: str) -> Dim:
        if name in self.te_symbols:
            return self.te_symbols[name]
        info = self.symbols.get(name)
        return info.dim if info else dims.symbol(str(name))

    def dim_decl(self, name: str, label: str, bounds: Any, multiple: Any) -> SymbolInfo:
        lo, hi = bounds or (0, None)
        info = SymbolInfo(dims.Symbol(str(name), lo, hi, multiple or 1), _string(label))
        self.symbols[str(name)] = info
        return info

    def bounds(self, lo: str, hi: str) -> tuple[int, int | None]:
        return int(lo), None if hi == "inf" else int(hi)

    multiple = staticmethod(int)

    def te_dim(self, name: str, bounds: Any, multiple: Any) -> str:
        if bounds or multiple:
            lo, hi = bounds or (0, None)
            self.te_symbols[str(name)] = dims.symbol(str(name), lo, hi, multiple or 1)
        return str(name)

    def constraint(self, lhs: Dim, rhs: Dim, node: str, func: str | None) -> Constraint:
        return Constraint(lhs, rhs, _string(node), "main" if func is None else _name(func))

    # types
    def tensor(self, dtype: str, *rest: Any) -> TensorType:
        *extents, layout = rest
        shape, layout = tuple(_present(extents)), layout or ROW
        if layout.order and len(layout.order) != len(shape):
            raise ValueError(f"the layout `{layout}` has {len(layout.order)} axes, and the tensor {len(shape)}")
        return TensorType(dt.BY_NAME[dtype], shape, layout)

    def layout(self, tag: str, *extents: Any) -> Layout:
        return Layout.parse(_name(tag), _present([*extents]))

    def unranked(self, dtype: str) -> TensorType:
        return TensorType(dt.BY_NAME[dtype], None)

    seq = staticmethod(SequenceType)
    opt = staticmethod(OptionalType)
    map_type = staticmethod(lambda key, value: MapType(dt.BY_NAME[key], value))

    unknown = staticmethod(lambda: None)
    types = staticmethod(lambda *types: [*types])

    # values
    int = staticmethod(int)
    float = staticmethod(float)
    true = staticmethod(lambda: True)
    false = staticmethod(lambda: False)
    string = staticmethod(_string)
    none_value = staticmethod(lambda: None)
    dim_value = staticmethod(lambda d: d)
    symbol = staticmethod(lambda token: FuncRef(_name(token)))

    type_value = staticmethod(lambda t: t)

    def list(self, *items: Any) -> tuple[Any, ...]:
        return () if items == (None,) else items

    def numbers(self, text: str) -> tuple[int | float, ...]:
        items = text[1:-1].split(",")
        try:
            return tuple(map(int, items))
        except ValueError:
            return tuple(float(i) if set(i) & {*".eE"} else int(i) for i in items)

    def words(self, text: str) -> tuple[str, ...]:
        return tuple(json.loads(text))

    def dtype(self, name: str) -> DType:
        return dt.BY_NAME[name]

    def tensor_value(self, type_: TensorType, *items: Any) -> np.ndarray:
        return array_of(type_, _present([*items]))

    def attrs(self, *pairs: tuple[str, Any]) -> dict[str, Any]:
        return dict(_present([*pairs]))

    def attr(self, name: str, value: Any) -> tuple[str, Any]:
        return str(name), value

    # ops
    def loc(self, *names: str) -> Location:
        return Location(tuple(map(_string, names)))

    use = staticmethod(lambda token: ("%", _name(token)))
    sym = staticmethod(lambda token: ("@", _name(token)))
    none = staticmethod(lambda: ("none", ""))
    operands = staticmethod(lambda *items: [*items])
    results = staticmethod(lambda *items: [_name(str(i)) for i in items])
    param = staticmethod(lambda name, type_: (_name(name), type_))
    params = staticmethod(lambda *items: [*items])
    names = te_dims = staticmethod(lambda *items: [str(i) for i in items])

    def close(self, operands: Any) -> OpText:
        return OpText([], "yield", operands or [], {}, [], [], Location(), 0)

    def block(self, *ops: OpText) -> list[OpText]:
        return [*ops]

    def region(self, params: Any, ops: Any) -> RegionText:
        return RegionText(params or [], ops)

    def op(self, results: Any, name: lark.Token, operands: Any, attrs: Any, types: Any, *rest: Any) -> OpText:
        *regions, loc = rest
        return OpText(
            results or [],
            str(name),
            operands or [],
            attrs or {},
            types or [],
            regions,
            loc or Location(),
            name.line or 0,
        )

    labels = staticmethod(lambda *names: [_string(str(n)) for n in names])

    def func(self, name: str, params: Any, _types: Any, labels: Any, ops: Any) -> FuncText:
        return FuncText(_name(name), RegionText(params or [], ops), labels or [])

    def weight(self, name: str, type_: TensorType, data: Any) -> WeightText:
        return WeightText(_name(name), type_, *data)

    def ref(self, offset: str, size: str) -> tuple[tuple[int, int], list[Any]]:
        return (int(offset), int(size)), []

    def dense(self, *values: Any) -> tuple[None, list[Any]]:
        return None, _present([*values])

    def packed(self, data: str) -> tuple[None, bytes]:
        return None, zlib.decompress(base64.b64decode(_string(data)))

    # expressions; loads and indices get their dtype in a second step, when sources are known
    index = staticmethod(lambda name: ex.Index(str(name)))
    size = staticmethod(lambda d: ex.wrap(d))
    exprs = staticmethod(lambda *items: [*items])
    axes = staticmethod(lambda *items: tuple(items))
    axis = staticmethod(lambda name, extent: ex.Axis(str(name), extent))
    literal = staticmethod(lambda token: te_literal(token))
    bor = staticmethod(lambda a, b: ("binary", "or", a, b))
    bxor = staticmethod(lambda a, b: ("binary", "xor", a, b))
    band = staticmethod(lambda a, b: ("binary", "and", a, b))
    add = staticmethod(lambda a, b: ("binary", "add", a, b))
    sub = staticmethod(lambda a, b: ("binary", "sub", a, b))
    mul = staticmethod(lambda a, b: ("binary", "mul", a, b))
    div = staticmethod(lambda a, b: ("binary", "div", a, b))
    floordiv = staticmethod(lambda a, b: ("binary", "floordiv", a, b))
    mod = staticmethod(lambda a, b: ("binary", "mod", a, b))
    compare = staticmethod(lambda a, sign, b: ("binary", _SIGNS[sign], a, b))
    select = staticmethod(lambda c, a, b: ("select", c, a, b))
    call = staticmethod(lambda fn, args: ("call", str(fn), args))
    carried = staticmethod(lambda token: ("carried", dt.BY_NAME[token[8:-1]]))
    cast = staticmethod(lambda token, arg: (token.partition("<")[0], dt.BY_NAME[token.partition("<")[2][:-1]], arg))
    load = staticmethod(lambda name, index: ("load", str(name), index or []))
    load_param = staticmethod(lambda name, index: ("load", _name(name), index or []))
    reduce = staticmethod(lambda kind, axes, body: ("reduce", str(kind), axes or (), body))

    # te functions
    note = staticmethod(_string)
    role = staticmethod(str)

    def stage(self, name: str, axes: Any, expr: Any, role: Any, loc: Any) -> tuple[Any, ...]:
        return ("stage", str(name), axes or (), expr, role, loc)

    def scatter(self, name: str, axes: Any, kind: str, over: Any, *rest: Any) -> tuple[Any, ...]:
        init, target, value, loc = rest
        return (
            "scatter",
            str(name),
            axes or (),
            kind.removeprefix("scatter."),
            over or (),
            init,
            target or [],
            value,
            loc,
        )

    def check(self, axes: Any, cond: Any, message: str) -> tuple[Any, ...]:
        return ("check", axes or (), cond, _string(message))

    name = staticmethod(str)

    def directive(self, *parts: Any) -> Directive:
        heads = [str(p) for p in parts if isinstance(p, lark.Token)]
        args = tuple(p for p in parts if p is not None and not isinstance(p, lark.Token))
        found = {m[1]: int(m[2] or 1) for h in heads[1:-1] if (m := re.fullmatch(r"(update|variant)(\d*)", h))}
        update, variant = found.get("update", 0), found.get("variant", 0)
        return Directive(heads[0], heads[-1], args, update, variant, parts[0].line or 0)

    test = staticmethod(AtMost.parsed)

    def schedule(self, rule: Any, *directives: Directive) -> tuple[Any, ...]:
        return ("schedule", [replace(d, rule=str(rule or "")) for d in directives])

    halide = staticmethod(lambda text: ("halide", _string(text)))
    hint = staticmethod(lambda text: ("hint", _string(text)))
    te_result = staticmethod(lambda name, type_: Param(str(name), type_))
    te_body = staticmethod(lambda *items: _present([*items]))

    def te(self, name: str, names: Any, params: Any, *rest: Any) -> TeFunc:
        *results, body = rest
        self.te_symbols.clear()
        return te_func(_name(name), names or [], params or [], _present(results), body)

    def module(self, name: str, attrs: dict[str, Any], *items: Any) -> tuple[str, dict[str, Any], list[Any]]:
        return _name(name), attrs, [*items]


@cache
def parser() -> lark.Lark:
    """The parser of a whole text."""
    text = files("occ.compiler.ir").joinpath("grammar.lark").read_text("utf-8")
    return lark.Lark(text, start="module", parser="lalr", maybe_placeholders=True)
