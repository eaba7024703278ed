"""Outlines sub-graphs of control flow as functions; captured values become arguments."""

from __future__ import annotations

from collections.abc import Mapping

from occ.compiler.ir.func import Func
from occ.compiler.ir.liveness import captured_values
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import FuncRef, Op, Region, Value, Weight
from occ.compiler.ir.rewriter import Rewriter

_HEAD = {"Loop": 2}  # operands before the variadic ones, absent or not


def outline(m: Module, op: Op, regions: Mapping[str, Region]) -> None:
    """Replace an op's sub-graphs by functions: `If(%c) do () {...}` --> `If(%c, %x) {then_branch=@f, ...}`.

    Args:
        m: the module that the functions are added to.
        op: an op without captures yet.
        regions: sub-graphs by the attribute that holds them.
    """
    rw = Rewriter(m)
    captured: dict[Value, None] = {}
    for region in regions.values():
        captured |= dict.fromkeys(v for v in captured_values(region) if not isinstance(v, Weight))
    for attr, region in regions.items():
        name = m.unused_func(f"{op.name.lower()}.{attr}")
        args: dict[Value, Value | None] = {v: region.add_arg(None, v.name) for v in captured}
        for inner in region.walk():
            rw.map_operands(inner, args)
        m.funcs[name] = Func(name, region, [])
        op.attrs[attr] = FuncRef(name)
    op.attrs["captures"] = len(captured)
    operands = [*op.operands, *[None] * (_HEAD.get(op.name, 0) - len(op.operands))]
    rw.replace_operands(op, [*operands, *captured])


def outline_batches(m: Module, op: Op, body: Region) -> None:
    """Rewrite a Scan of opset 8 as a Scan over the batch whose body scans the steps.

    Args:
        m: the module that the functions are added to.
        op: its operands are initial states and sequences, all with the batch axis first.
        body: one step, for one element of the batch.
    """
    batch = Region()
    args = [batch.add_arg(None, f"of_batch_{k}") for k in range(len(op.operands))]
    directions = op.attrs.pop("directions", None)
    attrs = {**op.attrs, **({"scan_input_directions": directions} if directions else {})}
    inner = Op(op.operator, args, attrs, (None,) * len(op.results), loc=op.loc)
    outline(m, inner, {"body": body})
    batch.insert(inner)
    batch.close(inner.results)
    op.attrs["num_scan_inputs"] = len(args)
    outline(m, op, {"body": batch})
