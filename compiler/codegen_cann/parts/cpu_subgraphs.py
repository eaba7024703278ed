"""Moves the ops that the CPU runs into modules of their own."""

from __future__ import annotations

from occ.compiler.codegen_cann.parts.partition import Part, reads
from occ.compiler.ir.func import Func
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import FuncRef, Op, Region, Value, Weight


def cpu_module(m: Module, part: Part) -> Module:
    """A canonical module that computes a part: its arguments are the inputs, its results the outputs, by position."""
    made = Module(f"{m.name}.{part.name}", "canonical")
    made.symbols, made.constraints = dict(m.symbols), list(m.constraints)
    region = Region([v.type for v in part.inputs], [v.name for v in part.inputs])
    copies: dict[Value, Value] = dict(zip(part.inputs, region.args, strict=True))
    for op in part.ops:
        _sizes(op, copies, region)
        _weights(op, copies, made)
        _functions(op, m, made)
        region.insert(clone(op, copies))
    region.close([copies[v] for v in part.outputs])
    made.funcs["main"] = Func("main", region, [f"{k}.{v.name}" for k, v in enumerate(part.outputs)])
    return made


def _sizes(op: Op, copies: dict[Value, Value], region: Region) -> None:
    """Sizes that an op reads are recomputed in its own part."""
    for value in reads(op):
        maker = value.defining_op
        if value not in copies and maker is not None and maker.is_dims:
            region.insert(clone(maker, copies))


def _weights(op: Op, copies: dict[Value, Value], made: Module) -> None:
    for value in reads(op):
        if isinstance(value, Weight) and value not in copies:
            copies[value] = made.add_weight(value.name, value.data, value.tensor)


def _functions(op: Op, m: Module, made: Module) -> None:
    """The functions that an op calls, and those that they call."""
    for ref in op.attrs.values():
        if not isinstance(ref, FuncRef) or ref in made.funcs:
            continue
        source = m.funcs[ref]
        copies: dict[Value, Value] = {}
        for inner in source.body.walk():
            _weights(inner, copies, made)
        made.funcs[ref] = Func(source.name, _clone_region(source.body, copies), list(source.result_names))
        for inner in source.body.walk():
            _functions(inner, m, made)


def clone(op: Op, copies: dict[Value, Value]) -> Op:
    """A copy of an op on other operands.

    Its results, and those of nested ops, are added to `copies`.
    """
    regions = [_clone_region(r, copies) for r in op.regions]
    operands = [None if v is None else copies.get(v, v) for v in op.operands]
    names = [r.name for r in op.results]
    made = Op(
        op.operator, operands, op.attrs, [r.type for r in op.results], result_names=names, regions=regions, loc=op.loc
    )
    copies.update(zip(op.results, made.results, strict=True))
    return made


def _clone_region(region: Region, copies: dict[Value, Value]) -> Region:
    made = Region([a.type for a in region.args], [a.name for a in region.args])
    copies.update(zip(region.args, made.args, strict=True))
    for op in region:
        made.insert(clone(op, copies))
    return made
