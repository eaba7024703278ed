"""Internal ops on rows quantised at run time, as in DynamicQuantizeLinear."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from occ.compiler.ir.dtype import F32, I8, I64, U8
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.te.expr import call, cast, maximum, where

_LEAST_RANGE = 1e-30  # minimum range of a row: smaller ones, usually of equal elements, use fewer steps


@op("code_table", own_attributes="")
class CodeTable:
    """Looks up the codes of `x` in `table : [256]`, which starts at the lowest code."""

    operands = ("table", "x")

    def body(t, table, x, *, a):
        first = 128 if x.dtype == I8 else 0
        return t.map(x.shape, lambda *i: table[(cast(I64, x[i]) + first,)], name="looked_up")


@op("row_range", reads="last", own_attributes="")
class RowRange:
    """The minimum and maximum of each row, `[.., K]` --> `[.., 2]`; NaN if a row contains one."""

    def body(t, x, *, a):
        rows, depth = x.shape[:-1], x.shape[-1]
        low, high = (t.reduce(kind, rows, [depth], lambda *i: x[i], name=kind) for kind in ("min", "max"))
        return t.map((*rows, 2), lambda *i: where(i[-1] < 1, low[i[:-1]], high[i[:-1]]), name="range")


@op("row_codes", reads="last", own_attributes="")
class RowCodes:
    """Quantises each row to u8, in 255 steps from its minimum to its maximum.

    `between` is their `row_range`.
    """

    def body(t, x, between, *, a):
        def element(*i):
            low, high = between[(*i[:-1], 0)], between[(*i[:-1], 1)]
            return cast(U8, call("nearest", (x[i] - low) * (255.0 / maximum(high - low, _LEAST_RANGE))))

        return t.map(x.shape, element, name="codes")


@op("from_row_codes", own_attributes="")
class FromRowCodes:
    """Dequantises products of `row_codes` and a weight's codes.

    `scale` and `total` have an element per column: the value of one code, and the sum of its codes times that.
    """

    def body(t, sums, between, scale, total, *, a):
        def element(*i):
            low, high = between[(*i[:-1], 0)], between[(*i[:-1], 1)]
            step = (high - low) * (1 / 255)
            return cast(F32, sums[i]) * (step * scale[i[-1]]) + low * total[i[-1]]

        return t.map(sums.shape, element, name="scaled")


ALL = (CodeTable, RowRange, RowCodes, FromRowCodes)
