"""Liveness of ops: an op is live while its results, or a size that only it defines, are read."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from occ.compiler.ir.attribute_keys import is_plain
from occ.compiler.ir.build_te import static_elements
from occ.compiler.ir.dim import Sym, symbols
from occ.compiler.ir.func import Func
from occ.compiler.ir.op import Op, Region, Value
from occ.compiler.ir.shape import depends_on_data
from occ.compiler.ir.types import TensorType, Type


def is_live(op: Op, sizes: Container[str]) -> bool:
    """Whether something reads a result of an op, or a size in `sizes` that only it defines.

    Ops that check something are also live.
    """
    if not op.results or any(r.uses for r in op.results) or "checks" in op.attrs or _compares(op):
        return True
    return any(s in sizes for s in _defined_sizes(op))


def _compares(op: Op) -> bool:
    """Whether an op defines sizes with known expected values, which the run compares."""
    finds = op.attrs.get("defines", ())
    if all(isinstance(d, Sym) and d.is_symbol for d in finds):
        return False
    vector = op.operands[0]
    return vector is not None and static_elements(vector) != tuple(finds)


def defined_sizes(func: Func) -> dict[str, int]:
    """Sizes that a function's own steps define, with the index of the first such step."""
    given, defined = parameter_sizes(func), dict[str, int]()
    for k, op in enumerate(func.body.body):
        for name in _defined_sizes(op) - given - defined.keys():
            defined[name] = k
    return defined


def parameter_sizes(func: Func) -> set[str]:
    """Data-dependent sizes in the types of a function's parameters."""
    return {s for v in func.args for s in _data_symbols_of(v.type)}


def _defined_sizes(op: Op) -> set[str]:
    """Sizes that an op defines: those in result types that operands do not determine, and data-dependent ones."""
    shown = {s for v in op.inputs for s in _data_symbols_of(v.type)}
    found = {str(d) for d in op.attrs.get("defines", ()) if isinstance(d, Sym) and d.is_symbol}
    return found | {s for r in op.results for s in _data_symbols_of(r.type)} - shown


def data_symbols(op: Op) -> set[str]:
    """Symbols of run-time sizes in the result types and attributes of an op."""
    dims = [d for r in op.results for d in _sizes_in(r.type)]
    dims += (d for value in op.attrs.values() for d in _dims_in(value))
    return {s for d in dims if depends_on_data(d) for s in symbols(d)}


def _data_symbols_of(t: Type | None) -> set[str]:
    return {s for d in _sizes_in(t) if depends_on_data(d) for s in symbols(d)}


def _sizes_in(t: Type | None) -> Sequence[Sym]:
    """The extents of a type that are no numbers."""
    return [d for d in t.shape if isinstance(d, Sym)] if isinstance(t, TensorType) and t.shape else ()


def _dims_in(value: object) -> Iterator[Sym]:
    if isinstance(value, Sym):
        yield value
    elif isinstance(value, tuple) and not is_plain(value):
        for x in value:
            yield from _dims_in(x)


def captured_values(region: Region) -> list[Value]:
    """Values, including weights, that ops in `region` read but that are defined outside, in order of first use."""
    found: dict[Value, None] = {}
    inside: set[Value] = set(region.args)
    for op in region.walk():
        inside.update(op.results)
        for nested in op.regions:
            inside.update(nested.args)
    for op in region.walk():
        for value in op.inputs:
            if value not in inside:
                found[value] = None
    return list(found)
