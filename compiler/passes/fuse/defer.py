"""Outlines deferred ops, which are compiled during the run."""

from __future__ import annotations

from typing import ClassVar

from occ.compiler.diagnostics import shorten
from occ.compiler.ir.deferred import foreign_types, is_deferred
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Region, Value
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.passes.base import Context, Pass, finish
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class Defer(Pass):
    """Puts every op that waits for its operands into a region of its own, which nothing inspects before the run.

    `%y = Reshape(%x, %s)` --> `%y = deferred(%x, %s) do (%a, %b) { %r = Reshape(%a, %b)  yield %r }`
    """

    refuse: bool = False  # report such an op instead

    name: ClassVar[str] = "defer"

    def run(self, m: Module, ctx: Context) -> bool:
        rw = Rewriter(m)
        deferred = 0
        for func in m.funcs.values():
            for op in func.body.body:
                if is_deferred(op):
                    if self.refuse:
                        _refuse(op, ctx)
                        continue
                    _defer(op, rw)
                    deferred += 1
        ctx.sink.raise_errors()
        rw.hits["defer"] += deferred
        return finish(rw, ctx, deferred)


def _refuse(op: Op, ctx: Context) -> None:
    where = f"{shorten(ctx.source)}: {shorten(str(op.loc))}"
    if foreign := foreign_types(op):
        ctx.sink.error(
            "OCC0302",
            f"target `{ctx.target.name}` has no kernels for the element type {foreign[0]}",
            where=where,
            help="without `-C deferred=off` the node is interpreted at run time",
        )
        return
    ctx.sink.error(
        "OCC0203",
        f"`{op.name}` has to be compiled at run time, which `-C deferred=off` forbids",
        where=where,
        notes=[f"`{shorten(v.name, 60)}` is {v.type}" for v in op.inputs[:4]],
        help="set the input shapes with `--shape NAME=...`, so that more of the graph can be evaluated",
    )


def _defer(op: Op, rw: Rewriter) -> None:
    home = op.parent
    assert home is not None
    outer = list(dict.fromkeys(op.inputs))
    body = Region([v.type for v in outer], [v.name for v in outer])
    inside: dict[Value, Value | None] = dict(zip(outer, body.args, strict=True))
    deferred = Op(
        "deferred", outer, {"op": op.name}, [r.type for r in op.results], result_names=[r.name for r in op.results],
        regions=[body], loc=op.loc,
    )  # fmt: skip
    home.insert(deferred, op)
    for old, new in zip(op.results, deferred.results, strict=True):
        old.replace_uses(new)
    rw.move([op], body)
    rw.map_operands(op, inside)
    body.close(op.results)
