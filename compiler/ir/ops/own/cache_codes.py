"""Internal ops on KV caches of 8-bit codes, with a scale for each head of each token."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from occ.compiler.ir.dtype import F32, I8
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.te.expr import call, cast, literal, maximum, where

_MOST = 127  # of a code: both signs have as many
_LEAST = 1e-30  # minimum magnitude that a scale is made for: rows of zeros have one too


@op("head_scales", reads="last", own_attributes="")
class HeadScales:
    """The value of one code in each row: `max(|x|) / 127` in f32, `[.., D]` --> `[..]`; NaN if a row contains one."""

    def body(t, x, *, a):
        top = t.reduce("max", x.shape[:-1], [x.shape[-1]], lambda *i: call("abs", cast(F32, x[i])), name="top")
        return t.map(top.shape, lambda *i: maximum(top[i], _LEAST) * (1 / _MOST), name="scales")


@op("head_codes", reads="last", own_attributes="")
class HeadCodes:
    """Each row in units of its scale, rounded to nearest, ties to even: i8, -127 to 127.

    A row with an infinity or NaN has codes of 0, and a scale that makes NaN of them.
    """

    operands = ("x", "scales")

    def body(t, x, scales, *, a):
        def element(*i):
            value = cast(F32, x[i]) / scales[i[:-1]]
            return cast(I8, call("nearest", where(call("abs", value) <= _MOST + 0.5, value, literal(0, F32))))

        return t.map(x.shape, element, name="codes")


@op("head_values", own_attributes="to=dtype")
class HeadValues:
    """The values of `head_codes`."""

    operands = ("codes", "scales")

    def body(t, codes, scales, *, a):
        return t.map(codes.shape, lambda *i: cast(a.to, cast(F32, codes[i]) * scales[i[:-1]]), name="values")


ALL = (HeadScales, HeadCodes, HeadValues)
