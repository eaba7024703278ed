"""Checks that a module is well formed.

A failure is a bug in the compiler, so it names ops, not remedies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from occ.compiler.diagnostics import Invalid, Unresolved
from occ.compiler.ir.builder import OPERATOR_FAILURES, infer_results
from occ.compiler.ir.calls import ROUTINES, agree, call_problems
from occ.compiler.ir.deferred import has_unknown_rank, is_deferred
from occ.compiler.ir.dim import Dim, Sym, symbols
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import FuncRef, Op, Region, Value, Weight
from occ.compiler.ir.printer import op_text
from occ.compiler.ir.shape import depends_on_data
from occ.compiler.ir.te.verify import te_problems
from occ.compiler.ir.types import TensorType


def problems(m: Module, *, types: bool = True) -> Iterator[str]:
    """Errors of a module: dominance, uses, weights, te functions, and types that inference does not confirm.

    Args:
        m: the module.
        types: whether inferring every value's type again must confirm it (from stage `inferred` on).
    """
    for func in m.funcs.values():
        yield from _region(func.body, set(), m, types=types)
        for arg in func.args:
            if unknown := _unknown_sizes(m, _dims(arg)):
                yield f"@{func.name} takes %{arg.name} : {arg.type}, whose size {unknown[0]} is not declared"
    for op in m.walk():
        for value in op.attrs.values():
            if isinstance(value, FuncRef) and value not in m.funcs:
                yield f"{op_text(op)} runs @{value}, which does not exist"
        yield from _captures(op, m)
        yield from _undeclared(op, m)
        yield from _lacking(op)
    for name, w in m.weights.items():
        if w.name != name:
            yield f"weight @{name} calls itself @{w.name}"
        if tuple(w.data.shape) != w.tensor.physical:
            yield f"weight @{name} is {w.type} but holds {w.data.shape}"
    for f in m.te.values():
        yield from te_problems(f)


def _region(region: Region, outer: set[Value], m: Module, *, types: bool) -> Iterator[str]:
    visible = outer | set(region.args)
    if region.last is None or not region.last.is_terminator:
        yield "a region does not end with yield"
    for op in region:
        for k, value in enumerate(op.operands):
            if value is None:
                continue
            if (op, k) not in value.uses:
                yield f"operand {k} of {op_text(op)} is not in the uses of its value"
            if isinstance(value, Weight):
                if m.weights.get(value.name) is not value:
                    yield f"{op_text(op)} reads the weight @{value.name}, which is not in the module"
            elif value not in visible:
                yield f"{op_text(op)} reads %{value.name}, which is not defined before it"
        if op.spec.own_attributes is not None:
            yield from (f"{op_text(op)} {text}" for text in op.spec.own_attributes.problems(op.attrs))
        for inner in op.regions:
            seen = set[Value]() if op.name == "fuse" else visible  # a kernel reads its own parameters
            yield from _region(inner, seen, m, types=types and op.name not in ("deferred", "host"))
        if types and not op.is_terminator:
            yield from _types(op)
        if types and op.name == "fuse":
            yield from _shown_inside(op)
        visible.update(op.results)


def _captures(op: Op, m: Module) -> Iterator[str]:
    n = op.attrs.get("captures", 0)
    runs = [m.funcs[f] for f in op.attrs.values() if isinstance(f, FuncRef) and f in m.funcs]
    if not isinstance(op.attrs.get("num_scan_inputs", 0), int):
        yield f"{op_text(op)} does not define how many of its operands it scans"
    elif not isinstance(n, int) or not 0 <= n <= min([len(op.operands), *(len(f.args) for f in runs)]):
        yield f"{op_text(op)} has {n} captures, more than it has or passes to a function"
    elif op.name in ROUTINES:
        found = (call_problems(ROUTINES[op.name], op.operands, op.results, op.attrs, f) for f in runs)
        yield from (f"{op_text(op)} {text}" for texts in found for text in texts)


def _lacking(op: Op) -> Iterator[str]:
    """Functions missing from an op's attributes, and negative result sizes."""
    graphs = [a for a in op.spec.attrs.values() if a.required and a.kind == "GRAPH"]
    yield from (
        f"{op_text(op)} runs no function as `{a.name}`" for a in graphs if not isinstance(op.attrs.get(a.name), FuncRef)
    )
    for r in op.results:
        shape = (r.type.shape or ()) if isinstance(r.type, TensorType) else ()
        if negative := [d for d in shape if isinstance(d, int) and d < 0]:
            yield f"{op_text(op)} has a result of {negative[0]} elements along an axis"


def _undeclared(op: Op, m: Module) -> Iterator[str]:
    """Sizes in result types and attributes that the module does not define."""
    for r in op.results:
        if unknown := _unknown_sizes(m, _dims(r)):
            yield f"{op_text(op)} has the size {unknown[0]}, which is not declared"
    for key, value in op.attrs.items():
        dims = [d for d in (value if isinstance(value, (tuple, list)) else (value,)) if isinstance(d, Sym)]
        if unknown := _unknown_sizes(m, dims):
            yield f"{op_text(op)} has the size {unknown[0]} in `{key}`, which is not declared"


def _dims(value: Value) -> Sequence[Dim]:
    """The extents of a value, none if their number is unknown."""
    return value.type.dims if isinstance(value.type, TensorType) and value.type.shape is not None else ()


def _unknown_sizes(m: Module, dims: Iterable[Dim]) -> list[str]:
    """Names of sizes that the module does not declare."""
    return [name for name in symbols(*dims) if name not in m.symbols]


def _shown_inside(op: Op) -> Iterator[str]:
    """Errors of a region: its arguments' types, and values that no kernel computes."""
    if len(op.regions) != 1:
        yield f"{op_text(op)} has {len(op.regions)} regions, not one"
        return
    meant = [x for x in op.regions[0] if not x.is_terminator and x.spec.body is None and x.spec.composite is None]
    yield from (f"{op_text(x)} is in a kernel, which computes no `{x.name}`" for x in meant)
    given, shown = op.operands, op.regions[0].args
    if len(given) != len(shown):
        yield f"{op_text(op)} passes {len(given)} operands to a region of {len(shown)}"
        return
    for value, arg in zip(given, shown, strict=True):
        if value is not None and not agree(arg.type, value.type):
            yield f"{op_text(op)} passes %{value.name} : {value.type} to %{arg.name} : {arg.type}"


def _types(op: Op) -> Iterator[str]:
    if any(r.type is None for r in op.results):
        yield f"{op_text(op)} has a result without a type"
        return
    if "declared" in op.spec.tags or has_unknown_rank(
        op
    ):  # the latter waits for its operands, and has no shape to check
        return
    try:
        inferred = infer_results(op)
    except (Unresolved, Invalid) as e:
        # Otherwise the op is deferred, or in a branch that does not fit, an error only if it is taken.
        waits = isinstance(e, Unresolved) and (any(map(_is_loose, op.inputs)) or is_deferred(op))
        if not waits and not any(map(_is_loose, op.results)):
            yield f"{op_text(op)}{' is invalid' if isinstance(e, Invalid) else ''}: {e}"
        return
    except OPERATOR_FAILURES as e:
        yield f"{op_text(op)} has no result for these operands and attributes: {type(e).__name__}: {e}"
        return
    if len(op.results) > len(inferred):
        yield f"{op_text(op)} has {len(op.results)} results, and is inferred to have {len(inferred)}"
    for value, found in zip(op.results, inferred, strict=False):
        if not agree(value.type, found):
            yield f"{op_text(op)}: %{value.name} is inferred as {found}"


def _is_loose(value: Value) -> bool:
    """Whether the shape of a value is data-dependent."""
    return isinstance(value.type, TensorType) and (
        value.type.shape is None or any(map(depends_on_data, value.type.shape))
    )
