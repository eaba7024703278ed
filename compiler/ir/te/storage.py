"""Storage of float8, float4 and sub-byte integers as bytes.

te supports these types; native code does not. `to_bytes` rewrites a te function so that every value of such a type is
its code in a u8, decoded by integer arithmetic where it is converted or compared, and encoded where one is produced.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from occ.compiler.ir.dtype import F32, I8, I32, U8, DType
from occ.compiler.ir.te.expr import (
    Binary,
    Bitcast,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Reduce,
    Select,
    binary,
    call,
    cast,
    clamp,
    equal,
    literal,
    minimum,
    where,
)
from occ.compiler.ir.te.function import AnyStage, Check, Param, Scatter, TeFunc
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class Format:
    """A float with a sign, `exponent` and `mantissa` bits; `special` gives the meaning of the largest codes.

    `ieee`: infinity and NaN in the last exponent; `fn`: the last code is NaN; `fnuz`: the code of -0 is NaN, there is
    no -0; `finite`: neither infinity nor NaN.
    """

    exponent: int
    mantissa: int
    bias: int
    special: str

    @property
    def magnitude(self) -> int:
        """Mask of the code without its sign."""
        return (1 << (self.exponent + self.mantissa)) - 1

    @property
    def largest(self) -> int:
        """Code of the largest finite value."""
        if self.special == "ieee":
            return (((1 << self.exponent) - 1) << self.mantissa) - 1
        return self.magnitude - (self.special == "fn")


FORMATS = {
    "f8e4m3fn": Format(4, 3, 7, "fn"),
    "f8e4m3fnuz": Format(4, 3, 8, "fnuz"),
    "f8e5m2": Format(5, 2, 15, "ieee"),
    "f8e5m2fnuz": Format(5, 2, 16, "fnuz"),
    "f4e2m1": Format(2, 1, 1, "finite"),
}
_NAN, _INF = literal(float("nan"), F32), literal(float("inf"), F32)


def is_stored(dtype: DType) -> bool:
    """Whether values of the type are kept as codes in bytes."""
    return dtype.name in FORMATS or dtype.name == "f8e8m0" or (dtype.is_int and dtype.bits < 8)


def decode(code: Expr, dtype: DType) -> Expr:
    """The value of a code: an f32 for a float, an i8 or u8 for an integer."""
    if dtype.is_int:
        mask = (1 << dtype.bits) - 1
        if dtype.kind == "u":
            return code & mask
        sign = 1 << (dtype.bits - 1)
        return cast(I8, ((code & mask) ^ sign) - sign)
    bits = cast(I32, code)
    if dtype.name == "f8e8m0":
        power = where(equal(bits, 0), literal(0x00400000, I32), _left(bits, 23))  # 2 ** -127 is below the normal range
        return where(equal(bits, 255), _NAN, Bitcast(power, F32))
    f = FORMATS[dtype.name]
    magnitude = bits & f.magnitude
    # The code moves to exponent and mantissa of an f32, then the bias is corrected; this is right for subnormals too.
    value = Bitcast(_left(magnitude, 23 - f.mantissa), F32) * 2.0 ** (127 - f.bias)
    if f.special == "ieee":
        value = where(magnitude > f.largest, where(equal(magnitude, f.largest + 1), _INF, _NAN), value)
    elif f.special == "fn":
        value = where(equal(magnitude, f.magnitude), _NAN, value)
    signed = where((bits & (f.magnitude + 1)) > 0, -value, value)
    return where(equal(bits, f.magnitude + 1), _NAN, signed) if f.special == "fnuz" else signed


def encode(x: Expr, dtype: DType) -> Expr:
    """The code of a value: an integer keeps its low bits, a float rounds to nearest even.

    f64 rounds to f32 first, as in ml_dtypes.
    """
    if dtype.is_int:
        wide = cast(I32, clamp(x, dtype.lowest, dtype.highest)) if x.dtype.is_float else cast(I32, x)
        return cast(U8, wide & ((1 << dtype.bits) - 1))
    x = cast(F32, x)
    bits = Bitcast(x, I32)
    exponent, is_nan = _right(bits, 23) & 255, call("isnan", x)
    if dtype.name == "f8e8m0":
        up = where(exponent > 0, (bits & 0x7FFFFF) >= 0x400000, (bits & 0x7FFFFF) > 0x400000)
        rounded = minimum(exponent + cast(I32, up), 255)
        return cast(U8, where(is_nan | (x < 0.0), literal(255, I32), rounded))
    f = FORMATS[dtype.name]
    size = bits & 0x7FFFFFFF
    shift = 23 - f.mantissa
    rebiased = size - ((127 - f.bias) << 23)
    odd = _right(rebiased, shift) & 1
    normal = _right(rebiased + ((1 << (shift - 1)) - 1) + odd, shift)
    small = cast(I32, call("round_even", Bitcast(size, F32) * 2.0 ** (f.bias + f.mantissa - 1)))
    code = where(size < ((128 - f.bias) << 23), small, normal)
    sign = where(bits < 0, literal(f.magnitude + 1, I32), literal(0, I32))
    match f.special:
        case "ieee":
            code = where(is_nan, literal(f.magnitude, I32), minimum(code, f.largest + 1)) + sign
        case "fn":
            code = where(is_nan, literal(f.magnitude, I32), minimum(code, f.magnitude)) + sign
        case "finite":
            code = where(is_nan, literal(0, I32), minimum(code, f.largest)) + where(is_nan, literal(8, I32), sign)
        case _:
            above = is_nan | (code > f.largest)
            signed = where(equal(code, 0), code, code + sign)
            code = where(above, literal(f.magnitude + 1, I32), signed)
    return cast(U8, code)


def _left(x: Expr, n: int) -> Expr:
    return binary("shl", x, literal(n, I32))


def _right(x: Expr, n: int) -> Expr:
    return binary("shr", x, literal(n, I32))


def to_bytes(f: TeFunc) -> TeFunc:
    """The function with codes instead of values of types without machine arithmetic; unchanged if it has none."""
    used = {p.type.dtype for p in (*f.params, *f.results)} | {s.dtype for s in f.stages}
    if not any(map(is_stored, used)):
        return f
    return replace(
        f,
        params=tuple(map(_param, f.params)),
        results=tuple(map(_param, f.results)),
        stages=tuple(map(_stage, f.stages)),
        checks=tuple(Check(c.axes, _expr(c.cond), c.message) for c in f.checks),
    )


def _param(p: Param) -> Param:
    return replace(p, type=replace(p.type, dtype=U8)) if is_stored(p.type.dtype) else p


def _stage(s: AnyStage) -> AnyStage:
    if isinstance(s, Scatter):
        assert s.combine in ("set", "into") or not is_stored(s.dtype), "codes are not combined"
        return replace(s, init=_expr(s.init), target=tuple(map(_expr, s.target)), value=_expr(s.value))
    return replace(s, expr=_expr(s.expr))


def _expr(e: Expr) -> Expr:
    """`e` with codes for values. The types of the original nodes tell what a rewritten child represents."""
    return _Rewriting().visit(e)


class _Rewriting:
    def __init__(self) -> None:
        self.memo: dict[int, tuple[Expr, Expr]] = {}  # keeps the node alive, so that its id stays unique

    def visit(self, e: Expr) -> Expr:
        """The rewritten node: a code if `e` has a stored type."""
        found = self.memo.get(id(e))
        if found is None:
            found = self.memo[id(e)] = (e, self._made(e))
        return found[1]

    def value(self, e: Expr) -> Expr:
        """The rewritten node as a value for arithmetic."""
        new = self.visit(e)
        return decode(new, e.dtype) if is_stored(e.dtype) else new

    def _made(self, e: Expr) -> Expr:
        stored = is_stored(e.dtype)
        match e:
            case Const():
                return _code(e) if stored else e
            case Load():
                return Load(e.source, tuple(map(self.visit, e.index)), U8 if stored else e.dtype)
            case Cast():
                value = self.value(e.arg)
                return encode(value, e.dtype) if stored else cast(e.dtype, value)
            case Bitcast():
                arg = self.visit(e.arg)
                to = U8 if stored else e.dtype
                return arg if arg.dtype == to else Bitcast(arg, to)
            case Select():
                return where(self.visit(e.cond), self.visit(e.then), self.visit(e.other))
            case Binary():
                made = binary(e.op, self.value(e.lhs), self.value(e.rhs))
                return encode(made, e.dtype) if stored else made
            case Call():
                made = call(e.fn, *map(self.value, e.args))
                return encode(made, e.dtype) if stored else made
            case Reduce():
                assert not stored or e.kind in ("max", "min"), "codes are not summed"
                made = Reduce(e.kind, e.axes, self.value(e.body), self.value(e.body).dtype if stored else e.dtype)
                return encode(made, e.dtype) if stored else made
            case _:
                return e


def _code(e: Const) -> Const:
    with np.errstate(all="ignore"):
        return literal(int(np.asarray(e.value).astype(e.dtype.numpy).view(np.uint8)), U8)
