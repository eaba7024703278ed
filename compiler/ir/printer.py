"""Writes modules and te functions as `.occ` text. `print(parse(print(m)))` equals `print(m)` byte for byte."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from occ.compiler.ir.dim import Sym, Symbol
from occ.compiler.ir.dtype import DType, from_numpy
from occ.compiler.ir.func import Constraint, Func, SymbolInfo
from occ.compiler.ir.op import FuncRef, Op, Region, Value, Weight
from occ.compiler.ir.te.function import TeFunc
from occ.compiler.ir.te.printer import (
    bounds_text,
    elements,
    number,
    quote,
    short_floats,
    sigil,
    te_text,
)
from occ.compiler.ir.types import MapType, OptionalType, SequenceType, TensorType, Type

LARGEST_DENSE = 16  # elements of a weight that is printed inline
_ALIGN = 64


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
            return f"tensor<{', '.join([kind, *(number(v) for v in elements(value))])}>"
        case _:
            return number(value)


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


def _loose(value: Value | None) -> str:
    if value is None:
        return "none"
    return sigil("@" if isinstance(value, Weight) else "%", value.name)


def _op_lines(op: Op, names: _Names, indent: str) -> list[str]:
    if op.is_terminator:
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
    """The text of a function."""
    names = _Names(func)
    params = ", ".join(f"{names[a]}: {type_text(a.type)}" for a in func.args)
    results = types_text([r.type for r in func.results])
    labels = f" as {', '.join(map(quote, func.result_names))}" if func.result_names else ""
    lines = [f"func {sigil('@', func.name)}({params}) -> {results}{labels} {{"]
    lines += _region_lines(func.body, names, "  ")
    return "\n".join(indent + line for line in [*lines, "}"])


class Printed(Protocol):
    """What is printed of a module."""

    @property
    def name(self) -> str: ...
    @property
    def stage(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def funcs(self) -> Mapping[str, Func]: ...
    @property
    def weights(self) -> Mapping[str, Weight]: ...
    @property
    def te(self) -> Mapping[str, TeFunc]: ...
    @property
    def symbols(self) -> Mapping[str, SymbolInfo]: ...
    @property
    def constraints(self) -> Sequence[Constraint]: ...


def weight_offsets(m: Printed) -> dict[str, int]:
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
    return f"{head}dense<{', '.join(number(v) for v in elements(w.data))}>"


def _symbol_line(s: Symbol, label: str) -> str:
    return f"  dim {s.name} {quote(label)}{bounds_text(s)}"


def _constraint_line(c: Constraint) -> str:
    where = "" if c.func == "main" else f" in {sigil('@', c.func)}"
    return f"  constraint {c.lhs} == {c.rhs} {quote(c.node)}{where}"


WeightLines = Literal["first", "last", "names", "none"]


def module_text(m: Printed, weights_file: str = "", *, inline: bool = False, weights: WeightLines = "first") -> str:
    """The text of a module.

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


def weight_bytes(m: Printed) -> Iterable[bytes | memoryview]:
    """The contents of the weights file, in pieces."""
    end = 0
    for name, offset in weight_offsets(m).items():
        yield b"\0" * (offset - end)
        data = np.ascontiguousarray(m.weights[name].data)
        yield data.reshape(-1).view(np.uint8).data
        end = offset + data.nbytes
