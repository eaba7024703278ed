"""Computes the operands of joins directly in the memory of their result."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from occ.compiler.ir.build_te import build_te
from occ.compiler.ir.dim import Dim, is_multiple, product
from occ.compiler.ir.layout import Layout
from occ.compiler.ir.liveness import captured_values
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.ops.movement import Concat
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.te.function import Scatter
from occ.compiler.passes.base import Context, Pass
from occ.compiler.passes.layout.use_joins import Claims, axis_of, mostly
from occ.runtime.buffers import ALIGNMENT
from occ.runtime.dataclass import dataclass

_SHORTEST = 8  # elements per row; below this, kernels that access partial rows lose more than a copy costs


@dataclass(frozen=True)
class PlaceJoins(Pass):
    """Places the operands of joins side by side in the memory of the result.

    Operands that cannot be computed there are copied. A join with mostly copied operands becomes a Concat again.

    `%a = Conv(%x, @w) : f32[1,64,56,56]@acdb  %c = join(%a, %b) {axis=1} : f32[1,256,56,56]@acdb`
    --> `%a = Conv(%x, @w) : f32[1,64,56,56]@acdb.b256  ..`
    """

    strided: bool = True  # whether kernels can write rows that are not contiguous

    name: ClassVar[str] = "place-joins"

    def run(self, m: Module, ctx: Context) -> bool:
        made, rw = 0, Rewriter(m)
        for func in m.funcs.values():
            claims = Claims(func)
            for op in reversed(list(func.body)):  # a join inside another one comes first
                if op.name == "append":
                    made += _place(rw.exchange(op, _joined(op)), claims, rw, strided=self.strided, always=True)
                elif op.name == "join":
                    made += _place(op, claims, rw, strided=self.strided)
                elif op.name == "write_into" and (base := op.operands[0]) is not None and base.defining_op is None:
                    rw.replace_operand(op, 0, _copied(base, "copy", base.tensor.layout, op, claims))
                    made += 1
        ctx.hits["place-joins"] += made
        return made > 0


def _place(join: Op, claims: Claims, rw: Rewriter, *, strided: bool, always: bool = False) -> int:
    """Place the operands of a join: `always`, or if most of them can be computed there.

    Returns the number of changes.
    """
    layout = _layout_inside(join)
    if layout is None or (layout.within and not strided):
        return _copy_all(join, rw)
    chosen = [v for v in join.inputs if claims.may_lie_in(v, join) and _fits(v, join, layout)]
    if not always and not mostly(join, chosen):
        return _copy_all(join, rw)
    claims.taken.update(chosen)
    changes = 0
    for k, v in enumerate(join.inputs):
        if v not in chosen:
            rw.replace_operand(join, k, _copied(v, _copying(v, layout), layout, join, claims))
            changes += 1
        elif v.tensor.layout != layout:
            _retype(v, layout)
            changes += 1
    return changes


def _joined(op: Op) -> Op:
    """An `append` as a join."""
    new, past = op.operands
    return Op("join", [past, new], {"axis": 0}, [op.result.type], result_names=[op.result.name], loc=op.loc)


def _copied(value: Value, how: str, layout: Layout, reader: Op, claims: Claims) -> Value:
    made = Op(how, [value], {}, [value.tensor.with_layout(layout)], result_names=[value.name], loc=reader.loc)
    return claims.body.insert(made, reader).result


def _copying(value: Value, layout: Layout) -> str:
    """The copy of an operand into a join.

    A caller may already have placed an input there; a `copy` detects that.
    """
    return "copy" if value.defining_op is None and value.tensor.layout == layout and not layout.within else "pack"


def _layout_inside(join: Op) -> Layout | None:
    """The layout of parts of a join's result.

    None if its rows have no constant length, or are too short.
    """
    whole, axis = join.result.tensor, axis_of(join)
    order = whole.layout.order or tuple(range(whole.rank))
    place = order.index(axis)
    if all(whole.dims[a] == 1 for a in order[:place]):
        return whole.layout  # each part is one run of memory
    n = dict(whole.layout.within).get(axis, whole.dims[axis])
    row = product(whole.dims[a] for a in order[place + 1 :])
    if not isinstance(n, int) or any(_is_short(v.tensor.dims[axis] * row) for v in join.inputs):
        return None
    return replace(whole.layout, within=tuple(sorted((dict(whole.layout.within) | {axis: n}).items())))


def _is_short(row: Dim) -> bool:
    return isinstance(row, int) and 0 < row < _SHORTEST


def _fits(value: Value, join: Op, layout: Layout) -> bool:
    """Whether the kernel of an operand can write it with the layout of its part of the join."""
    rows = tuple(range(join.result.tensor.rank))
    if value.tensor.layout.tiles or (value.tensor.layout.order or rows) != (layout.order or rows):
        return False
    maker = value.defining_op
    if maker is None or (value.tensor.layout.within and value.tensor.layout != layout):
        return False
    return _starts_aligned(value, join) or not _updates_in_place(maker)


def _starts_aligned(value: Value, join: Op) -> bool:
    whole, axis = join.result.tensor, axis_of(join)
    order = whole.layout.order or tuple(range(whole.rank))
    before = sum((v.tensor.dims[axis] for v in join.inputs[: join.inputs.index(value)]), start=0)
    return is_multiple(before * whole.strides[order.index(axis)] * whole.dtype.itemsize, ALIGNMENT)


def _updates_in_place(maker: Op) -> bool:
    """Whether a kernel reads its own output; Halide then assumes that whole vectors can be read there."""
    if maker.name == "join":
        return False
    if maker.name == "fuse":
        (region,) = maker.regions
        ops, results = region.body, region.yields
        args = [*region.args, *(v for v in captured_values(region) if isinstance(v, Weight))]
    else:
        ops, results, args = [maker], maker.results, list(dict.fromkeys(maker.inputs))
    return any(isinstance(s, Scatter) for s in build_te("probe", ops, args, results).stages)


def _copy_all(join: Op, rw: Rewriter) -> int:
    """Turn a join back into a Concat."""
    made = Op(Concat.name, join.operands, join.attrs, [join.result.type], result_names=[join.result.name], loc=join.loc)
    rw.exchange(join, made)
    return 1


def _retype(value: Value, layout: Layout) -> None:
    """Assign a layout to a value, also in the region that computes it and in those that read it."""
    value.type = value.tensor.with_layout(layout)
    maker = value.defining_op
    if maker is not None and maker.name == "fuse":
        maker.regions[0].yields[0].type = value.type
    for user, k in value.uses:
        if user.name == "fuse":
            user.regions[0].args[k].type = value.type
