"""Moves ops into the region of a `fuse` op."""

from __future__ import annotations

from typing import Any

from occ.compiler.ir.liveness import captured_values
from occ.compiler.ir.location import fuse as fuse_locations
from occ.compiler.ir.op import Op, Region, Value, Weight
from occ.compiler.ir.rewriter import Rewriter


def results_of(group: list[Op]) -> list[Value]:
    """The values of a group that outside ops read."""
    return [r for op in group for r in op.results if any(u not in group for u in r.users)]


def kind_of(group: list[Op]) -> str:
    """A generated name for a group without one."""
    return "_".join(op.name.rpartition(".")[2].lower() for op in group[:4])


def outline(group: list[Op], rw: Rewriter, before: Op | None = None, **attrs: Any) -> Op:
    """Move the ops of a group, in order, into the region of a new `fuse` op.

    Args:
        group: the ops.
        rw: of the module.
        before: the insertion point; the place of the last op by default.
        attrs: attributes of the op; `kind` is its name.
    """
    results = results_of(group)
    home, anchor = group[-1].parent, before or group[-1].next
    assert home is not None
    body = Region()
    loc = fuse_locations(op.loc for op in group)
    rw.move(group, body)
    args: dict[Value, Value | None] = {
        v: body.add_arg(v.type, v.name) for v in captured_values(body) if not isinstance(v, Weight)
    }
    for op in group:
        rw.map_operands(op, args)
    _bring_in_dims(body, args)
    attrs = {"kind": kind_of(group)} | attrs
    types, names = [r.type for r in results], [r.name for r in results]
    fused = Op("fuse", list(args), attrs, types, result_names=names, regions=[body], loc=loc)
    for old, new in zip(results, fused.results, strict=True):
        old.replace_uses(new, outside=group)
    body.close(results)
    return home.insert(fused, anchor)


def outline_foreign(
    group: list[Op], operands: list[Value], results: list[Value], rw: Rewriter, before: Op | None = None, **attrs: Any
) -> Op:
    """Move the ops of a group, in order, into the region of a new `foreign` op.

    Args:
        group: the ops.
        operands: the kernel's inputs, constants too, in its order.
        results: the kernel's outputs, in its order; all values that outside ops read.
        rw: of the module.
        before: the insertion point; the place of the last op by default.
        attrs: attributes of the op.
    """
    home, anchor = group[-1].parent, before or group[-1].next
    assert home is not None
    body = Region([v.type for v in operands], [v.name for v in operands])
    args: dict[Value, Value | None] = dict(
        zip(reversed(operands), reversed(body.args), strict=True)
    )  # the first position of each
    loc = fuse_locations(op.loc for op in group)
    rw.move(group, body)
    for op in group:
        rw.map_operands(op, args)
    types, names = [r.type for r in results], [r.name for r in results]
    made = Op("foreign", operands, attrs, types, result_names=names, regions=[body], loc=loc)
    for old, new in zip(results, made.results, strict=True):
        old.replace_uses(new, outside=group)
    body.close(results)
    return home.insert(made, anchor)


def _bring_in_dims(body: Region, args: dict[Value, Value | None]) -> None:
    """Put a copy of each `dims` op that decides a shape inside, where inference can see it."""
    for outer, arg in list(args.items()):
        maker = outer.defining_op
        if arg is None or maker is None or not maker.is_dims:
            continue
        inner = Op("dims", (), maker.attrs, [outer.type], result_names=[outer.name], loc=maker.loc)
        body.insert(inner, body.first)
        arg.replace_uses(inner.result)
        body.args.remove(arg)
        del args[outer]
