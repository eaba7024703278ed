"""Sub-graphs of control flow become functions of the module; what they take from outside becomes arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from occ.compiler.ir.module import Func, Module
from occ.compiler.ir.op import FuncRef, Op, Region, outer_values
from occ.compiler.ir.value import Value, Weight

_HEAD = {"Loop": 2}  # operands that are there before the variadic ones, absent or not


def outline(m: Module, op: Op, regions: Mapping[str, Region]) -> None:
    """Give an op functions in the place of its sub-graphs: `If(%c) do () {...}` --> `If(%c, %x) {then_branch=@f, ...}`.

    Args:
        m: gets the functions.
        op: an op without captures yet.
        regions: sub-graphs by the attribute that holds them.
    """
    captured: dict[Value, None] = {}
    for region in regions.values():
        captured |= dict.fromkeys(v for v in outer_values(region) if not isinstance(v, Weight))
    for attr, region in regions.items():
        name = m.unused_func(f"{op.name.lower()}.{attr}")
        args = {v: region.add_arg(None, v.name) for v in captured}
        _redirect(region, args)
        m.funcs[name] = Func(name, region, [])
        op.attrs[attr] = FuncRef(name)
    op.attrs["captures"] = len(captured)
    operands = [*op.operands, *[None] * (_HEAD.get(op.name, 0) - len(op.operands))]
    op.set_operands([*operands, *captured])


def _redirect(region: Region, args: Mapping[Value, Value]) -> None:
    for inner in region.walk():
        inner.set_operands(_mapped(inner.operands, args))


def _mapped(operands: Sequence[Value | None], args: Mapping[Value, Value]) -> list[Value | None]:
    return [v if v is None else args.get(v, v) for v in operands]
