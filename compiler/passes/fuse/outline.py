"""Moves ops into the region of a `fuse` op."""

from __future__ import annotations

from typing import Any

from occ.compiler.ir.location import fuse as fuse_locations
from occ.compiler.ir.op import Op, Region, outer_values
from occ.compiler.ir.value import Value, Weight


def results_of(group: list[Op]) -> list[Value]:
    """The values of a group that ops outside of it read."""
    return [r for op in group for r in op.results if any(u not in group for u in r.users)]


def kind_of(group: list[Op]) -> str:
    """A name for a group that nobody named."""
    return "_".join(op.name.rpartition(".")[2].lower() for op in group[:4])


def outline(group: list[Op], before: Op | None = None, **attrs: Any) -> Op:
    """Move the ops of a group, in order, into the region of a new `fuse` op.

    Args:
        group: the ops.
        before: where to put it; in the place of the last one by default.
        attrs: attributes of the op; `kind` is its name.
    """
    results = results_of(group)
    home, anchor = group[-1].parent, before or group[-1].next
    assert home is not None
    body = Region()
    loc = fuse_locations(op.loc for op in group)
    for op in group:
        home.remove(op)
        body.insert(op)
    args = {v: body.add_arg(v.type, v.name) for v in outer_values(body) if not isinstance(v, Weight)}
    for op in group:
        op.set_operands([v if v is None else args.get(v, v) for v in op.operands])
    _bring_in_dims(body, args)
    users = [[(u, k) for u, k in r.uses if u not in group] for r in results]
    attrs = {"kind": kind_of(group)} | attrs
    types, names = [r.type for r in results], [r.name for r in results]
    fused = Op("fuse", list(args), attrs, types, result_names=names, regions=[body], loc=loc)
    for new, readers in zip(fused.results, users, strict=True):
        for user, k in readers:
            user.set_operand(k, new)
    body.insert(Op("yield", results, {}, ()))
    return home.insert(fused, anchor)


def enclose(group: list[Op], operands: list[Value], results: list[Value], before: Op | None = None, **attrs: Any) -> Op:
    """Move the ops of a group, in order, into the region of a new `foreign` op, which states what it computes.

    Args:
        group: the ops.
        operands: what the kernel reads, constants too, in its order.
        results: what it writes, in its order; all that ops outside of the group read.
        before: where to put it; in the place of the last one by default.
        attrs: attributes of the op.
    """
    home, anchor = group[-1].parent, before or group[-1].next
    assert home is not None
    body = Region([v.type for v in operands], [v.name for v in operands])
    args = dict(zip(reversed(operands), reversed(body.args), strict=True))  # the first place of each
    loc = fuse_locations(op.loc for op in group)
    for op in group:
        home.remove(op)
        body.insert(op)
        op.set_operands([v if v is None else args.get(v, v) for v in op.operands])
    users = [[(u, k) for u, k in r.uses if u not in group] for r in results]
    types, names = [r.type for r in results], [r.name for r in results]
    made = Op("foreign", operands, attrs, types, result_names=names, regions=[body], loc=loc)
    for new, readers in zip(made.results, users, strict=True):
        for user, k in readers:
            user.set_operand(k, new)
    body.insert(Op("yield", results, {}, ()))
    return home.insert(made, anchor)


def _bring_in_dims(body: Region, args: dict[Value, Value]) -> None:
    """Put a copy of each `dims` op that decides a shape inside, where inference can see it."""
    for outer, arg in list(args.items()):
        maker = outer.defining_op
        if maker is None or maker.name != "dims":
            continue
        inner = Op("dims", (), maker.attrs, [outer.type], result_names=[outer.name], loc=maker.loc)
        body.insert(inner, body.first)
        for user, k in list(arg.uses):
            user.set_operand(k, inner.result)
        body.args.remove(arg)
        del args[outer]
