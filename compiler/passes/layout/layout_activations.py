"""Chooses memory layouts of activations: channels last around convolutions, and free transpositions."""

from __future__ import annotations

from typing import Any, ClassVar

from occ.compiler.ir.access import ANY, CHANNELS, FIRST, PLANES, ROWS, access, reads, writes
from occ.compiler.ir.layout import ROW, Layout, channels_last
from occ.compiler.ir.liveness import captured_values
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Region, Value, Weight
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.types import TensorType
from occ.compiler.passes.base import Context, Pass
from occ.compiler.passes.layout.absorb_views import absorb, layout_of_order, ranked, reshaped_order
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class LayoutActivations(Pass):
    """Lays activations out so that kernels run along contiguous memory.

    Convolutions and pools produce channels-last values; elementwise ops and the like follow their operands; Transpose
    and Reshape become views if the bytes are already in the right order; what needs another order gets a `pack`.

    `%y = Conv(%x, @w) : f32[1,64,56,56]  %z = Transpose(%y) {perm=[0, 2, 3, 1]}`
    --> `%y = Conv(%x, @w) : f32[1,64,56,56]@acdb  %z = view(%y) : f32[1,56,56,64]`
    """

    name: ClassVar[str] = "layout-activations"

    def run(self, m: Module, ctx: Context) -> bool:
        packs = views = 0
        rw = Rewriter(m)
        for func in m.funcs.values():
            if _is_laid_out(func.body):
                continue
            chooser = _Chooser(func.body, rw)
            for op in list(func.body.body):
                chooser.op(op)
            end = func.body.terminator
            for k in range(len(end.operands)):
                chooser.need_rows(end, k)
            packs += chooser.packs - absorb(func.body, rw)
            views += chooser.views
        ctx.hits["layout-pack"] += packs
        ctx.hits["layout-view"] += views
        return bool(packs or views)


def _is_laid_out(body: Region) -> bool:
    """Whether layouts have been chosen already: this happens once, on the named ops."""
    values = [r for op in body for r in op.results if isinstance(r.type, TensorType)]
    return any(op.name in ("pack", "view") for op in body) or any(not v.tensor.layout.is_row_major for v in values)


class _Chooser:
    """Walks the ops in order; every operand has its layout before its readers are visited."""

    def __init__(self, body: Region, rw: Rewriter) -> None:
        self.body, self.rw = body, rw
        self.packs = self.views = 0
        self.captured = {v for op in body for r in op.regions if op.name != "fuse" for v in captured_values(r)}
        self._packed: dict[tuple[Value, Layout], Value] = {}

    def op(self, op: Op) -> None:
        """Choose the layout of an op's results, and convert its operands to the layouts that it accepts."""
        inner = [o for r in op.regions for o in r.body] if op.name == "fuse" else [op]
        takes_any = op.name == "fuse" or (op.spec.body is not None and not op.regions and "view" not in op.spec.tags)
        if takes_any and op.name != "fuse" and self._transpose(op):
            return
        if "view" in op.spec.tags and op.operands and op.operands[0] is not None:
            self._view(op)
            return
        if not takes_any:
            for k in range(len(op.operands)):
                self.need_rows(op, k)
            return
        for o in inner:
            match self._settled(op, o, reads(o)):
                case "last":
                    for k in range(len(o.operands)):
                        self._need_last(op, o, k)
                case "channels":
                    self._need_channels(op, o)
                case "rows" if (j := self._outer(op, o, 0)) is not None:
                    self.need_rows(op, j)
                case _:
                    pass
        self._follow(op, {self._settled(op, o, writes(o)) for o in inner})

    def _settled(self, op: Op, inner: Op, order: str) -> str:
        """The layout inside `op`, given by the layout of its first operand if it works plane by plane."""
        if order != PLANES:
            return order
        j = self._outer(op, inner, 0)
        value = None if j is None else op.operands[j]
        return ROWS if value is not None and ranked(value) and value.tensor.layout.is_row_major else CHANNELS

    # operands

    def need_rows(self, op: Op, k: int) -> None:
        """Convert an operand to row-major."""
        self._need(op, k, ROW)

    def _need(self, op: Op, k: int, layout: Layout) -> None:
        value = op.operands[k]
        if (
            value is None
            or not isinstance(value.type, TensorType)
            or not ranked(value)
            or _same(value.tensor.layout, layout, value.tensor.rank)
        ):
            return
        self.rw.replace_operand(op, k, self._pack(value, layout))
        if op.name == "fuse":
            op.regions[0].args[k].type = op.operands[k].type  # pyright: ignore[reportOptionalMemberAccess]

    def _pack(self, value: Value, layout: Layout) -> Value:
        if (value, layout) not in self._packed:
            made = Op("pack", [value], {}, [value.tensor.with_layout(layout)], result_names=[value.name])
            maker = value.defining_op
            self.body.insert(made, maker.next if maker is not None else self.body.first)
            made.loc = maker.loc if maker is not None else made.loc
            self._packed[value, layout] = made.result
            self.packs += 1
        return self._packed[value, layout]

    def _outer(self, op: Op, inner: Op, k: int) -> int | None:
        """The operand of `op` that an inner op reads as operand `k`, if it comes from outside."""
        value = inner.operands[k] if k < len(inner.operands) else None
        if value is None or isinstance(value, Weight):
            return None
        if inner is op:
            return k
        return op.regions[0].args.index(value) if value in op.regions[0].args else None

    def _need_last(self, op: Op, inner: Op, k: int) -> None:
        """Vectors and sums along the last axis need it innermost."""
        j = self._outer(op, inner, k)
        value = None if j is None else op.operands[j]
        if j is not None and value is not None and (order := value.tensor.layout.order) and order[-1] != len(order) - 1:
            self.need_rows(op, j)

    def _need_channels(self, op: Op, inner: Op) -> None:
        j = self._outer(op, inner, 0)
        value = None if j is None else op.operands[j]
        if j is None or value is None:
            return
        wide = value.tensor.dims[1]
        if not isinstance(wide, int) or wide >= 8:
            self._need(op, j, channels_last(value.tensor.rank))

    # results

    def _follow(self, op: Op, written: set[str]) -> None:
        layout = self._result_layout(op, written)
        for k, r in enumerate(op.results):
            if not ranked(r) or r in self.captured or r.tensor.rank != len(layout.order):
                continue
            if any(u.parent is not op.parent for u in r.users):
                continue
            r.type = r.tensor.with_layout(layout)
            if op.name == "fuse":
                op.regions[0].yields[k].type = r.type
        if op.name == "fuse":
            for arg, given in zip(op.regions[0].args, op.operands, strict=True):
                assert given is not None
                arg.type = given.type

    def _result_layout(self, op: Op, written: set[str]) -> Layout:
        result = op.results[0] if op.results else None
        if result is None or not ranked(result) or result.tensor.rank < 3:
            return ROW
        rank = result.tensor.rank
        if CHANNELS in written:
            return channels_last(rank)
        if not written <= {ANY, FIRST}:
            return ROW
        sizes = [v for v in op.operands if v is not None and ranked(v) and v.tensor.rank == rank]
        moved = [v for v in sizes if v.tensor.layout.is_permuted]
        full = [v for v in moved if v.tensor.dims == result.tensor.dims] or moved
        plain = [v for v in sizes if not v.tensor.layout.is_permuted and v.tensor.dims == result.tensor.dims]
        if not full or len(plain) > len(full):
            return ROW
        return full[0].tensor.layout

    # views

    def _transpose(self, op: Op) -> bool:
        """A Transpose moves no bytes: its result is the operand under permuted axes."""
        perm = access(op).permutation
        value = next(iter(op.inputs), None)
        if (
            perm is None
            or value is None
            or isinstance(value, Weight)
            or not isinstance(value.type, TensorType)
            or op.result in self.captured
        ):
            return False
        rank = value.tensor.rank
        order = value.tensor.layout.order or tuple(range(rank))
        self._show(op, value, layout_of_order(tuple(perm.index(k) for k in order)), {"transposed": 1})
        return True

    def _view(self, op: Op) -> None:
        """A view keeps the bytes if each group of axes that it joins or splits is contiguous.

        Otherwise the operand is converted to row-major.
        """
        value = op.operands[0]
        assert value is not None
        if isinstance(value.type, TensorType) and value.tensor.layout.is_permuted:
            order = reshaped_order(value.tensor.dims, value.tensor.layout.order, op.result.tensor.dims)
            if order is not None and op.result not in self.captured:
                self._show(op, value, layout_of_order(order))
                return
        self.need_rows(op, 0)

    def _show(self, op: Op, value: Value, layout: Layout, attrs: dict[str, Any] | None = None) -> None:
        made = Op(
            "view",
            [value],
            attrs or {},
            [op.result.tensor.with_layout(layout)],
            result_names=[op.result.name],
            loc=op.loc,
        )
        self.rw.exchange(op, made)
        self.views += 1


def _same(a: Layout, b: Layout, rank: int) -> bool:
    rows = tuple(range(rank))
    return (a.order or rows, a.tiles) == (b.order or rows, b.tiles)
