"""Writes modules and te functions as `.occ` text. `print(parse(print(m)))` equals `print(m)` byte for byte."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Literal

import numpy as np

from occ.compiler.ir.dim import Dim, Sym, Symbol, symbols
from occ.compiler.ir.dtype import BOOL, F32, I64, DType, from_numpy
from occ.compiler.ir.module import Constraint, Func, Module
from occ.compiler.ir.op import FuncRef, Op, Region
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
from occ.compiler.ir.types import MapType, OptionalType, SequenceType, TensorType, Type
from occ.compiler.ir.value import Value, Weight

LARGEST_DENSE = 16  # elements of a weight that is printed inline
_ALIGN = 64
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


def attr_text(value: Any) -> str:
    """An attribute value."""
    match value:
        case None:
            return "none"
        case DType():
            return value.name
        case FuncRef():
            return sigil("@", value)
        case Sym():
            return f"dim<{value}>"
        case TensorType() | SequenceType() | OptionalType() | MapType():
            return f"type<{value}>"
        case tuple() | list():
            if set(map(type, value)) <= {int, float}:
                return repr(list(value))
            return f"[{', '.join(map(attr_text, value))}]"
        case np.ndarray():
            kind = f"{from_numpy(value.dtype)}[{','.join(map(str, value.shape))}]"
            return f"tensor<{', '.join([kind, *(number(v) for v in _elements(value))])}>"
        case _:
            return number(value)


def _shortest(value: np.floating[Any]) -> float:
    """The shortest decimal that rounds to `value` in the same type."""
    short = float(str(value))
    return short if type(value)(short) == value else float(value)


def _elements(data: np.ndarray) -> list[Any]:
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
    dims = ", ".join(f"{d}{_bounds(found[d]) if d in found else ''}" for d in f.dims)
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


# Modules ------------------------------------------------------------------------------------------------------------


class _Names:
    """Unique printed names of the values of one function."""

    def __init__(self, func: Func) -> None:
        self.names: dict[Value, str] = {}
        self._taken: dict[str, int] = {}
        for value in func.args:
            self.add(value)

    def add(self, value: Value) -> str:
        name = base = value.name or "v"
        while name in self._taken:
            self._taken[base] += 1
            name = f"{base}.{self._taken[base]}"
        self._taken[name] = 0
        self.names[value] = name
        return sigil("%", name)

    def __getitem__(self, value: Value | None) -> str:
        if value is None:
            return "none"
        return sigil("@", value.name) if isinstance(value, Weight) else sigil("%", self.names[value])


def type_text(type_: Type | None) -> str:
    """A type, or `?` if it is not known yet."""
    return "?" if type_ is None else str(type_)


def types_text(types: Sequence[Type | None]) -> str:
    listed = list(map(type_text, types))
    return listed[0] if len(listed) == 1 else f"({', '.join(listed)})"


def op_text(op: Op, names: _Names | None = None) -> str:
    """One op without its regions, as diagnostics show it."""
    show = names.__getitem__ if names else _loose
    operands = ", ".join(show(v) for v in op.operands)
    head = f"{', '.join(names[r] if names else _loose(r) for r in op.results)} = " if op.results else ""
    attrs = f" {{{', '.join(f'{k}={_attr_of(op, k)}' for k in sorted(op.attrs))}}}" if op.attrs else ""
    typed = any(r.type is not None for r in op.results)
    types = f" : {types_text([r.type for r in op.results])}" if typed else ""
    return f"{head}{op.name}({operands}){attrs}{types}"


def _attr_of(op: Op, name: str) -> str:
    """An attribute of an op; those stored as 32-bit floats in ONNX with the fewest digits."""
    value = op.attrs[name]
    return attr_text(short_floats(value) if name in op.spec.float_attrs else value)


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


def _loose(value: Value | None) -> str:
    if value is None:
        return "none"
    return sigil("@" if isinstance(value, Weight) else "%", value.name)


def _op_lines(op: Op, names: _Names, indent: str) -> list[str]:
    if op.name == "yield":
        word = "return" if op.parent is not None and op.parent.owner is None else "yield"
        return [f"{indent}{word} {', '.join(names[v] for v in op.operands)}".rstrip()]
    for value in op.results:
        names.add(value)
    lines = [indent + op_text(op, names)]
    for region in op.regions:
        args = ", ".join(f"{names.add(a)}: {type_text(a.type)}" for a in region.args)
        lines.append(f"{indent}  do ({args}) {{")
        lines += _region_lines(region, names, indent + "    ")
        lines.append(f"{indent}  }}")
    if op.loc.nodes:
        lines[-1] += f" loc({', '.join(map(quote, op.loc.nodes))})"
    return lines


def _region_lines(region: Region, names: _Names, indent: str) -> list[str]:
    return [line for op in region for line in _op_lines(op, names, indent)]


def func_text(func: Func, indent: str = "  ") -> str:
    """A function."""
    names = _Names(func)
    params = ", ".join(f"{names[a]}: {type_text(a.type)}" for a in func.args)
    results = types_text([r.type for r in func.results])
    labels = f" as {', '.join(map(quote, func.result_names))}" if func.result_names else ""
    lines = [f"func {sigil('@', func.name)}({params}) -> {results}{labels} {{"]
    lines += _region_lines(func.body, names, "  ")
    return "\n".join(indent + line for line in [*lines, "}"])


def weight_offsets(m: Module) -> dict[str, int]:
    """The offset of each weight in the weights file unless it is printed inline: in order, aligned to 64 bytes."""
    offsets: dict[str, int] = {}
    end = 0
    for name, w in m.weights.items():
        if w.data.size > LARGEST_DENSE and w.data.dtype.kind not in "OUST":
            offsets[name] = end = -(-end // _ALIGN) * _ALIGN
            end += w.data.nbytes
    return offsets


def _weight_line(w: Weight, offsets: dict[str, int], *, inline: bool) -> str:
    head = f"  weight {sigil('@', w.name)} : {w.type} = "
    if w.name in offsets and inline:
        data = zlib.compress(np.ascontiguousarray(w.data).tobytes(), 1)
        return f"{head}zlib<{quote(base64.b64encode(data).decode())}>"
    if w.name in offsets:
        return f"{head}ref({offsets[w.name]}, {w.data.nbytes})"
    return f"{head}dense<{', '.join(number(v) for v in _elements(w.data))}>"


def _symbol_line(s: Symbol, label: str) -> str:
    return f"  dim {s.name} {quote(label)}{_bounds(s)}"


def _bounds(s: Symbol) -> str:
    """The bounds of a symbol as text; empty if it has none."""
    ends = f" [{s.lo}, {'inf' if s.hi is None else s.hi}]" if s.lo or s.hi is not None else ""
    return ends + (f" % {s.divisible_by}" if s.divisible_by > 1 else "")


def _constraint_line(c: Constraint) -> str:
    where = "" if c.func == "main" else f" in {sigil('@', c.func)}"
    return f"  constraint {c.lhs} == {c.rhs} {quote(c.node)}{where}"


WeightLines = Literal["first", "last", "names", "none"]


def module_text(m: Module, weights_file: str = "", *, inline: bool = False, weights: WeightLines = "first") -> str:
    """A module.

    Args:
        m: the module.
        weights_file: the file with the output of `weight_bytes`, which holds the weights that are not inline.
        inline: whether to put those weights into the text, compressed.
        weights: where to print them; `names` (last, without their data) and `none` are for people, and do not parse.
    """
    attrs = {"stage": m.stage} | ({"target": m.target} if m.target else {})
    offsets = weight_offsets(m)
    if offsets and not inline and weights in ("first", "last"):
        attrs["weights"] = weights_file
    lines = [f"module {sigil('@', m.name)} {{{', '.join(f'{k}={quote(v)}' for k, v in attrs.items())}}} {{"]
    lines += [_symbol_line(info.symbol, info.label) for info in m.symbols.values()]
    lines += [_constraint_line(c) for c in m.constraints]
    listed = [_weight_line(w, offsets, inline=inline) for w in m.weights.values()] if weights != "none" else []
    if weights == "names":
        listed = [line.partition(" = ")[0] for line in listed]
    lines += listed if weights == "first" else []
    lines += [func_text(f) for f in m.funcs.values()]
    lines += [te_text(f, "  ") for f in m.te.values()]
    lines += listed if weights != "first" else []
    return "\n".join([*lines, "}", ""])


def weight_bytes(m: Module) -> Iterable[bytes | memoryview]:
    """The contents of the weights file, in pieces."""
    end = 0
    for name, offset in weight_offsets(m).items():
        yield b"\0" * (offset - end)
        data = np.ascontiguousarray(m.weights[name].data)
        yield data.reshape(-1).view(np.uint8).data
        end = offset + data.nbytes
