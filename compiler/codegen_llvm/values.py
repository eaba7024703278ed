"""te values in LLVM registers: types, casts and arithmetic, for scalars and vectors alike.

Floats narrower than 32 bits are in f32 registers and are rounded to their own type after each operation, so that every
operation is exact for its element type. Bools are i1 in registers and a byte in memory.
"""

# The arithmetic of llvmlite's builder is made by decorators that hide its parameters.
# pyright: reportCallIssue=false
from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from llvmlite import ir

from occ.compiler.ir.dtype import BF16, BOOL, F16, F32, F64, DType
from occ.compiler.native_entry.types import DOUBLE, FLOAT, HALF, I1, I8, I32, I64

Value = Any  # llvmlite's values have no common public base with type information


def lanes(v: Value) -> int:
    """Number of lanes, 0 for a scalar."""
    return v.type.count if isinstance(v.type, ir.VectorType) else 0


def register_type(dtype: DType, n: int = 0) -> ir.Type:
    """The LLVM type of a value in a register."""
    match dtype:
        case _ if dtype == BOOL:
            base: ir.Type = I1
        case _ if dtype == F64:
            base = DOUBLE
        case _ if dtype.is_float:
            base = FLOAT
        case _:
            base = ir.IntType(max(dtype.bits, 8))
    return ir.VectorType(base, n) if n else base


def memory_type(dtype: DType) -> ir.Type:
    """The LLVM type of an element in memory."""
    if dtype == F64:
        return DOUBLE
    if dtype == F32:
        return FLOAT
    return HALF if dtype == F16 else ir.IntType(dtype.itemsize * 8)


class _Short(ir.Constant):
    """The same constant in all lanes, written once; llvmlite writes it for each."""

    def __init__(self, kind: ir.Type, one: Any, text: str) -> None:
        super().__init__(kind, one)
        self._text = text

    def _get_reference(self) -> str:
        return self._text


# llvmlite's own object makes the text of a constant once, however often it is used.
@cache
def undefined(kind: ir.Type) -> ir.Constant:
    """An undefined value, to insert lanes into."""
    return _Short(kind, ir.Undefined, "undef")


@cache
def in_lanes(one: ir.Constant, n: int) -> ir.Constant:
    """A scalar constant in all lanes of a vector."""
    return _Short(ir.VectorType(one.type, n), one, f"splat ({one})")


@cache
def iota(n: int) -> ir.Constant:
    """0, 1, ... as i64."""
    return ir.Constant(ir.VectorType(I64, n), [I64(k) for k in range(n)])


class Ops:
    """Arithmetic on te values through a builder."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.b = builder

    # constants and lanes

    def constant(self, value: Any, dtype: DType, n: int = 0) -> Value:
        base = register_type(dtype)
        if dtype.is_int:
            value = int(value) & ((1 << base.width) - 1)  # pyright: ignore[reportAttributeAccessIssue]
        elif dtype == BOOL:
            value = int(bool(value))
        elif dtype not in (F64, F32):
            value = float(dtype.numpy.type(value))
        one = ir.Constant(base, value)
        return in_lanes(one, n) if n else one

    def splat(self, v: Value, n: int) -> Value:
        """A scalar in all lanes; a vector as it is."""
        if not n or lanes(v):
            return v
        if isinstance(v, ir.Constant):
            return in_lanes(v, n)
        vector = ir.VectorType(v.type, n)
        first = self.b.insert_element(undefined(vector), v, I32(0))
        return self.b.shuffle_vector(first, undefined(vector), in_lanes(I32(0), n))

    def match(self, *values: Value) -> list[Value]:
        """Values broadcast to the widest number of lanes among them."""
        n = max(map(lanes, values))
        return [self.splat(v, n) for v in values]

    def intrinsic(self, name: str, v: Value, *args: Value, suffix: bool = True) -> Value:
        """Call `llvm.NAME.TYPE` with a result of the type of `v`."""
        full = f"{name}.{_mangled(v.type)}" if suffix else name
        return self.call(full, v.type, [v, *args])

    def call(self, name: str, result: ir.Type, args: list[Value], flags: Sequence[str] = ()) -> Value:
        module = self.b.module
        if name in module.globals:
            fn = module.globals[name]
        else:
            fn = ir.Function(module, ir.FunctionType(result, [a.type for a in args]), name)
        return self.b.call(fn, args, fastmath=flags)

    # arithmetic

    def rounded(self, v: Value, dtype: DType) -> Value:
        """An f32 rounded to the narrower float type that it represents."""
        if dtype == F16:
            half = ir.VectorType(HALF, lanes(v)) if lanes(v) else HALF
            return self.b.fpext(self.b.fptrunc(v, half), v.type)
        if dtype == BF16:
            return self._from_bits(self.b.shl(self.bf16_bits(v), self._int(16, v)), v.type)
        return v

    def bf16_bits(self, v: Value) -> Value:
        """The upper 16 bits of an f32 rounded to nearest even, as i32; NaN stays NaN."""
        bits = self.b.bitcast(v, ir.VectorType(I32, lanes(v)) if lanes(v) else I32)
        odd = self.b.and_(self.b.lshr(bits, self._int(16, v)), self._int(1, v))
        up = self.b.lshr(self.b.add(bits, self.b.add(odd, self._int(0x7FFF, v))), self._int(16, v))
        nan = self.b.or_(self.b.lshr(bits, self._int(16, v)), self._int(0x40, v))
        return self.b.select(self.b.fcmp_unordered("uno", v, v), nan, up)

    def _int(self, value: int, like: Value) -> Value:
        n = lanes(like)
        return in_lanes(I32(value), n) if n else I32(value)

    def _from_bits(self, bits: Value, type_: ir.Type) -> Value:
        return self.b.bitcast(bits, type_)

    def binary(self, op: str, a: Value, b: Value, dtype: DType) -> Value:
        """A `Binary` of te on operands of `dtype`."""
        a, b = self.match(a, b)
        if op in ("eq", "ne", "lt", "le"):
            return self._compare(op, a, b, dtype)
        if dtype.is_float:
            return self.rounded(self._float(op, a, b), dtype)
        return self._integer(op, a, b, dtype)

    def _compare(self, op: str, a: Value, b: Value, dtype: DType) -> Value:
        sign = {"eq": "==", "ne": "!=", "lt": "<", "le": "<="}[op]
        if dtype.is_float:
            return self.b.fcmp_unordered(sign, a, b) if op == "ne" else self.b.fcmp_ordered(sign, a, b)
        return self.b.icmp_signed(sign, a, b) if dtype.kind == "i" else self.b.icmp_unsigned(sign, a, b)

    def _float(self, op: str, a: Value, b: Value) -> Value:
        fuse = ("contract",)  # a product and a sum may be fused; nothing else is relaxed
        match op:
            case "add":
                return self.b.fadd(a, b, flags=fuse)
            case "sub":
                return self.b.fsub(a, b, flags=fuse)
            case "mul":
                return self.b.fmul(a, b, flags=fuse)
            case "div":
                return self.b.fdiv(a, b)
            case "rem":
                return self.b.frem(a, b)
            case "floordiv":
                return self.intrinsic("llvm.floor", self.b.fdiv(a, b))
            case "mod":
                return self._float_mod(a, b)
            case "min" | "max":
                return self._extremum(op, a, b)
            case _:
                raise AssertionError(op)

    def _extremum(self, op: str, a: Value, b: Value) -> Value:
        """NaN if either is NaN.

        Against a constant number, one comparison suffices: it is false if `x` is NaN, and keeps it.
        """
        for x, c in ((a, b), (b, a)):
            if isinstance(c, ir.Constant) and not _is_nan(c):
                below = self.b.fcmp_ordered("<" if op == "max" else ">", x, c)
                return self.b.select(below, c, x)
        return self.intrinsic("llvm.maximum" if op == "max" else "llvm.minimum", a, b)

    def extremum_of_terms(self, op: str, a: Value, b: Value) -> Value:
        """NaN if either is NaN; of zeros of both signs either one, as a reduction has no order."""
        name = f"llvm.{op}imum.{_mangled(a.type)}"
        return self.call(name, a.type, [a, b], flags=("nsz",))

    def _float_mod(self, a: Value, b: Value) -> Value:
        r = self.b.frem(a, b)
        zero = self.splat(ir.Constant(a.type.element if lanes(a) else a.type, 0.0), lanes(a))
        differs = self.b.xor(self.b.fcmp_ordered("<", r, zero), self.b.fcmp_ordered("<", b, zero))
        moved = self.b.and_(differs, self.b.fcmp_unordered("!=", r, zero))
        result = self.b.select(moved, self.b.fadd(r, b), r)
        signed_zero = self.intrinsic("llvm.copysign", zero, b)
        return self.b.select(self.b.fcmp_ordered("==", result, zero), signed_zero, result)

    def _integer(self, op: str, a: Value, b: Value, dtype: DType) -> Value:
        signed = dtype.kind == "i"
        match op:
            case "add":
                return self.b.add(a, b)
            case "sub":
                return self.b.sub(a, b)
            case "mul":
                return self.b.mul(a, b)
            case "and":
                return self.b.and_(a, b)
            case "or":
                return self.b.or_(a, b)
            case "xor":
                return self.b.xor(a, b)
            case "min" | "max":
                less = self._compare("lt", a, b, dtype)
                return self.b.select(less, a, b) if op == "min" else self.b.select(less, b, a)
            case "shl" | "shr":
                return self._shift(op, a, b, dtype)
            case _:
                return self._divide(op, a, b, signed=signed)

    def _shift(self, op: str, a: Value, b: Value, dtype: DType) -> Value:
        """Shifts by the width or more, or by a negative count, shift out every bit."""
        width = self.splat(ir.Constant(register_type(dtype), dtype.bits), lanes(a))
        inside = self.b.icmp_unsigned("<", b, width)
        zero = self.splat(ir.Constant(register_type(dtype), 0), lanes(a))
        safe = self.b.select(inside, b, zero)
        if op == "shl":
            return self.b.select(inside, self.b.shl(a, safe), zero)
        if dtype.kind == "i":
            top = self.splat(ir.Constant(register_type(dtype), dtype.bits - 1), lanes(a))
            return self.b.ashr(a, self.b.select(inside, b, top))
        return self.b.select(inside, self.b.lshr(a, safe), zero)

    def _divide(self, op: str, a: Value, b: Value, *, signed: bool) -> Value:
        """Division never traps: a divisor of 0 counts as 1, and division by -1 is a negation, which cannot trap."""
        zero = self.splat(ir.Constant(b.type if not lanes(b) else b.type.element, 0), lanes(b))
        one = self.splat(ir.Constant(b.type if not lanes(b) else b.type.element, 1), lanes(b))
        is_zero = self.b.icmp_signed("==", b, zero)
        if not signed:
            safe = self.b.select(is_zero, one, b)
            return self.b.udiv(a, safe) if op in ("div", "floordiv") else self.b.urem(a, safe)
        minus = self.b.icmp_signed("==", b, self.b.sub(zero, one))
        safe = self.b.select(self.b.or_(is_zero, minus), one, b)
        quotient = self.b.select(minus, self.b.sub(zero, a), self.b.sdiv(a, safe))
        remainder = self.b.select(minus, zero, self.b.srem(a, safe))
        if op in ("div", "rem"):
            return quotient if op == "div" else remainder
        # Rounding down: one less, plus the divisor, if the signs of remainder and divisor differ.
        moved = self.b.and_(
            self.b.icmp_signed("!=", remainder, zero),
            self.b.icmp_signed("<", self.b.xor(remainder, b), zero),
        )
        if op == "floordiv":
            return self.b.select(moved, self.b.sub(quotient, one), quotient)
        return self.b.select(moved, self.b.add(remainder, b), remainder)

    # conversions

    def cast(self, v: Value, source: DType, target: DType) -> Value:
        """`Cast` of te: floats saturate and truncate to integers, NaN becomes 0."""
        if source == target:
            return v
        n = lanes(v)
        to = register_type(target, n)
        if target == BOOL:
            zero = self.constant(0, source, n)
            return self.b.fcmp_unordered("!=", v, zero) if source.is_float else self.b.icmp_unsigned("!=", v, zero)
        if source == BOOL:
            return self.b.uitofp(v, to) if target.is_float else self.b.zext(v, to)
        if source.is_float and target.is_float:
            if (source == F64) != (target == F64):
                v = self.b.fptrunc(v, to) if source == F64 else self.b.fpext(v, to)
            return self.rounded(v, target)
        if source.is_float and n and target.kind == "i" and target.bits >= 32:
            return self._saturated(v, to, target)
        if source.is_float:
            name = "llvm.fptosi.sat" if target.kind == "i" else "llvm.fptoui.sat"
            return self.call(f"{name}.{_mangled(to)}.{_mangled(v.type)}", to, [v])
        if target.is_float:
            made = self.b.sitofp(v, to) if source.kind == "i" else self.b.uitofp(v, to)
            return self.rounded(made, target)
        if source.bits < target.bits:
            return self.b.sext(v, to) if source.kind == "i" else self.b.zext(v, to)
        return self.b.trunc(v, to) if source.bits > target.bits else v

    def _saturated(self, v: Value, to: ir.Type, target: DType) -> Value:
        """Floats to signed integers: LLVM has vectors for the conversion, but not for its saturating form."""
        n, f = lanes(v), F64 if v.type.element == DOUBLE else F32
        end = 2.0 ** (target.bits - 1)
        high, low, zero = (self.constant(x, f, n) for x in (end, -end, 0.0))
        below, above = self.b.fcmp_ordered("<", v, low), self.b.fcmp_ordered(">=", v, high)
        inside = self.b.and_(self.b.fcmp_ordered(">=", v, low), self.b.fcmp_ordered("<", v, high))  # no NaN
        whole = self.b.fptosi(self.b.select(inside, v, zero), to)
        whole = self.b.select(above, self.constant(target.highest, target, n), whole)
        return self.b.select(below, self.constant(target.lowest, target, n), whole)

    def from_memory(self, v: Value, dtype: DType) -> Value:
        """A loaded value as a register value."""
        n = lanes(v)
        if dtype == BOOL:
            return self.b.icmp_unsigned("!=", v, self.splat(I8(0), n))
        if dtype == F16:
            return self.b.fpext(v, register_type(dtype, n))
        if dtype == BF16:
            wide = self.b.zext(v, ir.VectorType(I32, n) if n else I32)
            return self.b.bitcast(self.b.shl(wide, self._int(16, wide)), register_type(dtype, n))
        return v

    def to_memory(self, v: Value, dtype: DType) -> Value:
        """A register value as it is stored."""
        n = lanes(v)
        kind = memory_type(dtype)
        to = ir.VectorType(kind, n) if n else kind
        if dtype == BOOL:
            return self.b.zext(v, to)
        if dtype == F16:
            return self.b.fptrunc(v, to)
        if dtype == BF16:
            return self.b.trunc(self.bf16_bits(v), to)
        return v


def _mangled(t: ir.Type) -> str:
    """The type suffix of an intrinsic."""
    if isinstance(t, ir.VectorType):
        return f"v{t.count}{_mangled(t.element)}"
    if isinstance(t, ir.IntType):
        return f"i{t.width}"
    return {"float": "f32", "double": "f64", "half": "f16"}[str(t)]


mangled = _mangled


def _is_nan(c: ir.Constant) -> bool:
    """Whether a constant, or each lane of one, is NaN."""
    one = c.constant[0].constant if isinstance(c.type, ir.VectorType) else c.constant
    return one != one
