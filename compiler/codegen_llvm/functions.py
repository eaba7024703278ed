"""Elementary functions: te approximations for f32, LLVM intrinsics, or the C library."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from occ.compiler.codegen_llvm.values import Ops, lanes, undefined
from occ.compiler.ir.dtype import BOOL, F64, DType
from occ.compiler.native_entry.types import DOUBLE, FLOAT, I32

_INTRINSICS = {
    "abs": "fabs", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round_even": "roundeven",
}  # fmt: skip
_LIBM = frozenset({
    "exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf",
    "pow", "atan2", "log1p",
})  # fmt: skip


def emit_call(o: Ops, fn: str, args: list[Any], dtype: DType) -> Any:
    """A `Call` of te on operands of `dtype`."""
    x = args[0]
    if fn == "not":
        return o.b.not_(x)
    if dtype == BOOL:
        return x
    if dtype.is_float:
        return _float_call(o, fn, args, dtype)
    zero = o.constant(0, dtype, lanes(x))
    match fn:
        case "neg":
            return o.b.sub(zero, x)
        case "abs":
            return o.b.select(o.b.icmp_signed("<", x, zero), o.b.sub(zero, x), x) if dtype.kind == "i" else x
        case "sign":
            one = o.constant(1, dtype, lanes(x))
            positive = o.b.select(o.binary("lt", zero, x, dtype), one, zero)
            return o.b.select(o.binary("lt", x, zero, dtype), o.b.sub(zero, one), positive)
        case "floor" | "ceil" | "trunc" | "round_even":
            return x
        case "isnan" | "isinf":
            return o.constant(False, BOOL, lanes(x))
        case "popcount":
            return o.intrinsic("llvm.ctpop", x)
        case "pow":
            return _integer_power(o, args, dtype)
        case _:
            wide = [o.cast(a, dtype, F64) for a in args]
            return o.cast(_float_call(o, fn, wide, F64), F64, dtype)


def _float_call(o: Ops, fn: str, args: list[Any], dtype: DType) -> Any:
    x = args[0]
    n = lanes(x)
    match fn:
        case "neg":
            return o.b.fneg(x)
        case "isnan":
            return o.b.fcmp_unordered("uno", x, x)
        case "isinf":
            return o.b.fcmp_ordered("==", o.intrinsic("llvm.fabs", x), o.constant(float("inf"), dtype, n))
        case "sign":
            one, zero = o.constant(1, dtype, n), o.constant(0, dtype, n)
            nonzero = o.b.select(o.b.fcmp_ordered("<", x, zero), o.b.fneg(one), one)
            return o.b.select(o.b.fcmp_unordered("ueq", x, zero), x, nonzero)  # keeps 0, -0 and NaN
        case "nearest":
            whole = ir.VectorType(I32, n) if n else I32
            return o.b.fptosi(o.intrinsic("llvm.roundeven", x), whole)
        case "fma":
            return o.intrinsic("llvm.fma", *o.match(*args))
        case _ if fn in _INTRINSICS:
            return o.rounded(o.intrinsic(f"llvm.{_INTRINSICS[fn]}", x), dtype)
        case "decay":
            return o.rounded(_libm(o, "exp", args), dtype)
        case _ if fn in _LIBM:
            return o.rounded(_libm(o, fn, args), dtype)
        case _:
            raise AssertionError(fn)


def _libm(o: Ops, fn: str, args: list[Any]) -> Any:
    """A function of the C library, lane by lane."""
    args = o.match(*args)
    n = lanes(args[0])
    scalar = args[0].type.element if n else args[0].type
    name = fn + ("f" if scalar == FLOAT else "")
    assert scalar in (FLOAT, DOUBLE)
    if not n:
        return o.call(name, scalar, args)
    result = undefined(args[0].type)
    for k in range(n):
        lane = [o.b.extract_element(a, I32(k)) for a in args]
        result = o.b.insert_element(result, o.call(name, scalar, lane), I32(k))
    return result


def _integer_power(o: Ops, args: list[Any], dtype: DType) -> Any:
    """Integer powers by squaring over the bits of the exponent.

    A negative exponent yields 0, or +-1 for a base of +-1.
    """
    base, exponent = o.match(*args)
    n = lanes(base)
    one, zero = o.constant(1, dtype, n), o.constant(0, dtype, n)
    result = one
    square, rest = base, exponent
    for _ in range(dtype.bits):  # large powers wrap too
        odd = o.b.icmp_unsigned("!=", o.b.and_(rest, one), zero)
        result = o.b.select(odd, o.b.mul(result, square), result)
        square = o.b.mul(square, square)
        rest = o.b.lshr(rest, one)
    if dtype.kind == "i":
        minus = o.b.sub(zero, one)
        is_one = o.b.icmp_signed("==", base, one)
        odd = o.b.icmp_unsigned("!=", o.b.and_(exponent, one), zero)
        sign = o.b.select(odd, minus, one)
        inverse = o.b.select(is_one, one, o.b.select(o.b.icmp_signed("==", base, minus), sign, zero))
        result = o.b.select(o.b.icmp_signed("<", exponent, zero), inverse, result)
    return result
