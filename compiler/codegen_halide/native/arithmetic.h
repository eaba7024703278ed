// The arithmetic of te in Halide's own types, where plain Halide arithmetic means something else.
#pragma once
#include "Halide.h"
#include "wraps.h"
#include <cmath>
#include <cstring>
#include <limits>

namespace whole {

using namespace Halide;

Expr te_inf(Type t) { return cast(t, Expr(std::numeric_limits<float>::infinity())); }
Expr te_nan(Type t) { return cast(t, Expr(std::numeric_limits<float>::quiet_NaN())); }

// IEEE 754 operations, taken literally. Halide's own lose infinities, NaN and rounding: its simplifier turns `x - x`
// into 0 and `a + b == a` into `b == 0`, multiplies by the reciprocal of a constant divisor, and tells LLVM that NaN
// does not occur. Operands are unchanged: `strict_float` would compute them again, without fused multiply-add.
Expr strictly(Internal::Call::IntrinsicOp op, const Expr &a, const Expr &b, Type t) {
    return Internal::Call::make(t, op, {a, b}, Internal::Call::PureIntrinsic);
}
Expr strictly(Internal::Call::IntrinsicOp op, const Expr &a, const Expr &b) { return strictly(op, a, b, a.type()); }
Expr te_add(const Expr &a, const Expr &b) {
    return wraps(a.type()) ? wrapping("te_wrapping_add", a, b) : strictly(Internal::Call::strict_add, a, b);
}
Expr te_sub(const Expr &a, const Expr &b) {
    return wraps(a.type()) ? wrapping("te_wrapping_sub", a, b) : strictly(Internal::Call::strict_sub, a, b);
}
Expr te_mul(const Expr &a, const Expr &b) {
    return wraps(a.type()) ? wrapping("te_wrapping_mul", a, b) : strictly(Internal::Call::strict_mul, a, b);
}
Expr te_lt(const Expr &a, const Expr &b) { return strictly(Internal::Call::strict_lt, a, b, Bool()); }
Expr te_eq(const Expr &a, const Expr &b) { return strictly(Internal::Call::strict_eq, a, b, Bool()); }
Expr te_le(const Expr &a, const Expr &b) { return te_lt(a, b) || te_eq(a, b); }  // by default Halide emits !(b < a), true for NaN
Expr te_ne(const Expr &a, const Expr &b) { return !te_eq(a, b); }
Expr te_neg(const Expr &x) { return te_sub(x.type().is_float() ? cast(x.type(), -0.0f) : cast(x.type(), 0), x); }
Expr te_abs(const Expr &x) { return select(x < 0, te_neg(x), x); }  // of integers; the lowest one's is itself

// Whether a value is NaN or infinite, by its bits: fast-math lets LLVM assume that no computed value is.
Expr magnitude(const Expr &x) {
    Type whole = UInt(x.type().bits());
    return reinterpret(whole, x) & (whole.max() >> 1);
}
Expr infinity_of(Type t) { return reinterpret(UInt(t.bits()), te_inf(t)); }
Expr te_isnan(const Expr &x) { return magnitude(x) > infinity_of(x.type()); }

// Not by its bits: LLVM recognises that test as a class test, from which fast-math drops the infinities.
Expr te_isinf(const Expr &x) {
    if (x.type().bits() < 32) return te_isinf(cast<float>(x));
    return te_eq(reinterpret(x.type(), magnitude(x)), te_inf(x.type()));
}

// The maximum and the minimum; NaN if either is NaN.
//
// A comparison with select is one instruction on x86, which returns its second operand if either is NaN. So one of the
// two orders returns the NaN, and the bitwise or of both is a NaN too; without NaN both are equal. That keeps
// everything in vector registers: comparisons into masks, one for the order and one for NaN, take five times as long on
// Zen 4.
Expr te_joined(const Expr &x, const Expr &y) {
    Type bits = UInt(x.type().bits());
    return reinterpret(x.type(), reinterpret(bits, x) | reinterpret(bits, y));
}
Expr te_max(const Expr &a, const Expr &b) {
    if (a.type().bits() < 32) return select(te_isnan(a) || te_lt(b, a), a, b);
    return te_joined(select(te_lt(b, a), a, b), select(te_lt(a, b), b, a));
}
Expr te_min(const Expr &a, const Expr &b) {
    if (a.type().bits() < 32) return select(te_isnan(a) || te_lt(a, b), a, b);
    return te_joined(select(te_lt(a, b), a, b), select(te_lt(b, a), b, a));
}
// The same against a constant other than NaN: the comparison is false for NaN, which is kept.
Expr te_max_const(const Expr &x, const Expr &c) { return select(te_lt(x, c), c, x); }
Expr te_min_const(const Expr &x, const Expr &c) { return select(te_lt(c, x), c, x); }

// A divisor that does not trap: not 0, which a check reports, nor -1, which overflows the lowest integer.
Expr te_divisor(const Expr &b) {
    Expr one = cast(b.type(), 1);
    return b.type().is_uint() ? select(b == 0, one, b) : select(b == 0 || b == -1, one, b);
}

// A C library function of its arguments' type.
Expr te_libm(const char *name, const std::vector<Expr> &x) {
    return Internal::Call::make(x[0].type(), name, x, Internal::Call::PureExtern);
}

// Integers truncate toward zero; Halide's own `/` and `%` round down.
Expr te_div(const Expr &a, const Expr &b) {
    if (a.type().is_float()) return strictly(Internal::Call::strict_div, a, b);
    Expr quotient = div_round_to_zero(a, te_divisor(b));
    return a.type().is_uint() ? quotient : select(b == -1, wraps(a.type()) ? te_neg(a) : -a, quotient);
}
Expr te_rem(const Expr &a, const Expr &b) {
    if (!a.type().is_float()) return mod_round_to_zero(a, te_divisor(b));
    // A rounded quotient says nothing about the remainder if it is large.
    if (a.type() == Float(64)) return te_libm("fmod", {a, b});
    return cast(a.type(), te_libm("fmodf", {cast<float>(a), cast<float>(b)}));
}
Expr te_floordiv(const Expr &a, const Expr &b) { return a.type().is_float() ? floor(te_div(a, b)) : a / b; }
Expr te_mod(const Expr &a, const Expr &b) {
    if (a.type().is_float()) {  // the remainder has the sign of b, even if it is zero
        Expr zero = cast(a.type(), 0);
        Expr r = te_rem(a, b);
        Type whole = UInt(a.type().bits());
        Expr negative_zero = reinterpret(a.type(), cast(whole, 1) << (whole.bits() - 1));
        Expr signed_zero = select(te_lt(b, zero), negative_zero, zero);
        return select(te_eq(r, zero), signed_zero, te_lt(r, zero) != te_lt(b, zero), te_add(r, b), r);
    }
    if (a.type().is_uint()) return a % b;
    Expr r = te_rem(a, b);
    return select(r != 0 && ((r < 0) != (b < 0)), r + b, r);
}

// The nearest integer, ties to even, if it fits in i32.
Expr te_nearest(const Expr &x) { return cast<int32_t>(round(x)); }

// The same for an f32 below 2**22: the sum with a number whose last bit is 1 has no fractional bits. On x86 Halide's
// `round` splits AVX-512 vectors: five instructions instead of two.
constexpr float kWhole = 12582912.0f;
Expr te_nearest_small(const Expr &x) {
    return reinterpret<int32_t>(te_add(x, kWhole)) - reinterpret<int32_t>(Expr(kWhole));
}

// Whether codes are packed by instructions that saturate, two vectors at a time (packed_codes.h); set before a kernel
// is built. AVX-512 narrows each vector by one instruction.
bool packs_codes = false;
bool packs(const Halide::Target &t) {
    return t.arch == Halide::Target::X86 && t.has_feature(Halide::Target::SSE41) && !t.has_feature(Halide::Target::AVX512);
}

// The integer nearest to x plus `zero`, ties to even, saturated as an integer of 8 bits. What packs codes saturates them,
// so that only numbers beyond the range of i32 are left: the conversion makes each of them its lowest one.
Expr te_saturated(Type t, const Expr &x, int zero) {
    const float high = float(t.is_int() ? 127 : 255) - float(zero);
    if (!packs_codes) return cast(t, te_nearest_small(te_min_const(te_max_const(x, high - 255), high)) + zero);
    const Expr whole = saturating_cast<int16_t>(te_nearest(te_min_const(x, high)));
    return saturating_cast(t, zero ? saturating_add(whole, cast<int16_t>(zero)) : whole);
}

// a * b + c rounded once. LLVM fuses one product with one sum; the strict operation after them, which changes nothing,
// keeps it from regrouping longer sums.
Expr te_fma(const Expr &a, const Expr &b, const Expr &c) {
    Type t = a.type();
    return Internal::Call::make(t, Internal::Call::strict_max, {a * b + c, t.min()}, Internal::Call::PureIntrinsic);
}

// Whether the target has fused multiply-add; set before a kernel is built.
bool fuses_multiply_adds = true;
bool fuses(const Halide::Target &t) {
    if (t.arch == Halide::Target::X86) return t.has_feature(Halide::Target::FMA);
    return (t.arch == Halide::Target::ARM && t.bits == 64) || t.arch == Halide::Target::RISCV || t.arch == Halide::Target::POWERPC;
}

// A reciprocal in two parts, the first cut toward zero, so that both have its sign: x * first + x * rest is x / divisor
// within 2**-46 of it before it is rounded, and no difference of infinities.
struct Reciprocal {
    float first, rest;

    explicit Reciprocal(float divisor) {
        const double whole = 1.0 / double(divisor);
        first = float(whole);
        if (std::fabs(double(first)) > std::fabs(whole)) first = std::nextafter(first, 0.0f);
        rest = float(whole - double(first));
    }

    // x * rest without its last bit, which keeps LLVM from multiplying x by the sum of both parts: it cannot know that bit.
    Expr second(const Expr &x) const {
        return reinterpret(x.type(), reinterpret<uint32_t>(te_mul(x, Expr(rest))) & Expr(~uint32_t(1)));
    }
    float second(float x) const {
        float product = x * rest;
        uint32_t bits;
        std::memcpy(&bits, &product, sizeof bits);
        bits &= ~uint32_t(1);
        std::memcpy(&product, &bits, sizeof bits);
        return product;
    }

    // Whether rounded quotients and sums of the two products have the same nearest integers. They are equal, or
    // neighbours, so only numbers next to the boundaries between the integers can tell; of most divisors none does.
    bool same_integers(float divisor, float low, float high) const {
        for (float below = low; below < high; below++) {
            float x = (below + 0.5f) * divisor;
            for (int k = 0; k < 4; k++) x = std::nextafter(x, -std::numeric_limits<float>::infinity());
            for (int k = 0; k < 9; k++, x = std::nextafter(x, std::numeric_limits<float>::infinity())) {
                if (std::nearbyint(x / divisor) != std::nearbyint(std::fma(x, first, second(x)))) return false;
            }
        }
        return true;
    }
};

// The integer nearest to x / divisor within bounds, with the quotient rounded once, as te_nearest(clamp(te_div(..))). A
// division of an AVX-512 vector takes as long as 20 products. So the quotient is the sum of two products where that has
// the same integers. Otherwise it is a product with the reciprocal, corrected by the remainder of x: first to the last
// digit, then to the exact quotient (Markstein, 1990, theorem 8.5). Both need fused multiply-adds and ordinary
// magnitudes: far beyond the bounds is clamped, below rounds to 0.
Expr te_nearest_quotient(const Expr &x, float divisor, float low, float high) {
    Expr q;
    const Reciprocal r(divisor);
    if (!fuses_multiply_adds) {
        q = te_div(x, divisor);
    } else if (!r.rest) {  // of a power of two
        q = te_mul(x, Expr(r.first));
    } else if (std::isfinite(low * divisor) && std::isfinite(high * divisor) && r.same_integers(divisor, low, high)) {
        // The bounds keep LLVM from joining a factor of x with the reciprocal; where it knows the sign of x, one goes.
        const float least = std::fmin(low * divisor, high * divisor), most = std::fmax(low * divisor, high * divisor);
        const Expr within = te_min_const(te_max_const(x, least), most);
        return te_nearest_small(te_fma(within, Expr(r.first), r.second(within)));
    } else {
        float far = std::ldexp(std::fabs(divisor), 23), reciprocal = 1.0f / divisor;
        Expr y = te_min_const(te_max_const(x, -far), far);
        // Otherwise LLVM would multiply divisor and reciprocal. Where it knows the sign, one of the bounds goes.
        q = te_min_const(te_max_const(y * reciprocal, std::ldexp(-1.0f, 24)), std::ldexp(1.0f, 24));
        for (int k = 0; k < 2; k++) q = te_fma(te_fma(q, Expr(-divisor), y), Expr(reciprocal), q);
    }
    return te_nearest_small(te_min_const(te_max_const(q, low), high));
}

// A condition that bounds inference does not analyse.
Expr te_opaque(const Expr &cond) { return cast<uint8_t>(cond) != cast<uint8_t>(0); }

// Shifts by the width or more shift out every bit. Left shifts are unsigned: Halide assumes that signed integers of 32
// bits and more do not overflow, so a bit that reaches the sign would be undefined.
Expr te_shl(const Expr &a, const Expr &b) {
    Type whole = UInt(a.type().bits());
    Expr count = cast(whole, b);
    Expr moved = cast(whole, a) << min(count, whole.bits() - 1);
    return select(count < whole.bits(), cast(a.type(), moved), cast(a.type(), 0));
}
Expr te_shr(const Expr &a, const Expr &b) {
    int bits = a.type().bits();
    Expr count = cast(UInt(bits), b);
    Expr all = a.type().is_int() ? a >> (bits - 1) : cast(a.type(), 0);
    return select(count < bits, a >> min(count, bits - 1), all);
}

// Truncates, saturates; NaN becomes 0.
Expr te_to_int(Type to, const Expr &x) {
    // The bounds round outward as floats, so the comparison comes first and the conversion sees only values in range.
    const int bits = to.bits();
    Expr low = cast(x.type(), Expr(to.is_int() ? -std::ldexp(1.0, bits - 1) : 0.0));
    Expr high = cast(x.type(), Expr(std::ldexp(1.0, to.is_int() ? bits - 1 : bits) - 1));  // 2**63 in f64
    Expr under = te_lt(x, low), over = !te_lt(x, high);
    Expr value = cast(to, trunc(select(under || over, cast(x.type(), 0), x)));
    value = select(under, to.min(), over, to.max(), value);
    return select(te_isnan(x), cast(to, 0), value);
}

// Rounds to nearest even by integer arithmetic, like Halide's own cast, which turns some NaNs into numbers.
Expr te_to_bf16(const Expr &x) {
    Expr value = cast<float>(x);
    Expr bits = reinterpret<uint32_t>(value);
    Expr whole = (bits + (((bits >> 16) & 1) + 0x7fff)) >> 16;
    return reinterpret<bfloat16_t>(cast<uint16_t>(select(te_isnan(value), (bits >> 16) | 0x40, whole)));
}

Expr te_sign(const Expr &x) {
    Expr one = cast(x.type(), 1);
    if (x.type().is_uint()) return select(x > 0, one, x);
    if (x.type().is_float()) return select(te_lt(cast(x.type(), 0), x), one, te_lt(x, cast(x.type(), 0)), -one, x);
    return select(x > 0, one, x < 0, -one, x);
}

// Non-finite f32 are handled by their bits: fast-math lets LLVM assume that they do not occur, and strict comparisons
// would compute their operand again, without fused multiply-add.
constexpr uint32_t kInfinity = 0x7f800000, kNaN = 0x7fc00000, kSign = 0x80000000;
uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
Expr bits_of(const Expr &x) { return reinterpret<uint32_t>(x); }
Expr float_of(const Expr &bits) { return reinterpret<float>(bits); }

// Whether x is farther from zero than a number; false for NaN.
Expr is_beyond(const Expr &x, float number) {
    uint32_t limit = bits_of(number), infinity = std::signbit(number) ? kSign | kInfinity : kInfinity;
    return bits_of(x) - Expr(limit + 1) < Expr(infinity - limit);
}

// 2**n times the polynomial of e**r with |r| <= ln 2 / 2: n is added to the exponent, so that NaN, whose n is
// arbitrary, stays.
Expr scaled_power(const Expr &r, const Expr &n) {
    Expr p = ((((0.00138368358f * r + 0.00837482419f) * r + 0.0416682251f) * r + 0.166664198f) * r + 0.49999991f) * r * r + r + 1.0f;
    return reinterpret<float>(reinterpret<int32_t>(p) + (n << 23));
}

// y - n ln 2. With two roundings, n ln 2 would have an error of n units; the product with its first ten bits is exact.
Expr without_powers(const Expr &y, const Expr &n) {
    if (fuses_multiply_adds) return y - n * 0.693147181f;
    return strict_float(y - n * 0.693359375f) - n * -2.12194440e-4f;
}

// e**x: `x = n ln 2 + r`; relative error 1e-7 near 0, and 3e-7 at the ends. Zero below the normal numbers. Beyond the
// ends the result is invalid and replaced; Halide's own turns NaN into a number, and infinity into zero.
Expr te_exp(const Expr &x) {
    if (x.type() == Float(64)) return exp(x);
    Expr y = cast<float>(x);
    Expr n = te_sub(y * 1.44269504f + kWhole, kWhole);  // as above; out of range it is replaced
    Expr value = bits_of(scaled_power(without_powers(y, n), cast<int32_t>(n)));
    value = select(is_beyond(y, 88.7228317f), Expr(kInfinity), is_beyond(y, -87.33f), Expr(0u), value);
    return cast(x.type(), float_of(value));
}

// The same for x <= 0.
Expr te_decay(const Expr &x) {
    if (x.type() != Float(32)) return te_exp(x);
    Expr n = cast<int32_t>(x * 1.44269504f - 0.5f);  // truncates, so this rounds non-positive values
    Expr value = scaled_power(without_powers(x, cast<float>(n)), n);
    return float_of(select(is_beyond(x, -87.33f), Expr(0u), bits_of(value)));
}

// ln x: `x = m 2**e` with m in [sqrt(1/2), sqrt(2)), then a polynomial in m - 1; 1e-7. Halide's own turns NaN and
// infinity into numbers.
Expr te_log(const Expr &x) {
    if (x.type() == Float(64)) return log(x);
    Expr y = cast<float>(x), bits = bits_of(y);
    Expr is_tiny = bits < Expr(bits_of(1.17549435e-38f));  // subnormal numbers are scaled; negative ones are handled below
    Expr scaled = reinterpret<int32_t>(select(is_tiny, bits_of(y * 8388608.0f), bits));
    Expr e = (scaled - 0x3f3504f3) >> 23;
    Expr m = reinterpret<float>(scaled - (e << 23)) - 1.0f;
    Expr exponent = cast<float>(select(is_tiny, e - 23, e));
    Expr p = ((((((-0.0797411054f * m + 0.1265565157f) * m - 0.1298929155f) * m + 0.1420995146f) * m - 0.1664158106f) * m + 0.2000120133f) * m - 0.2500030398f) * m + 0.3333333135f;
    Expr value = bits_of(m * m * m * p - m * m * 0.5f + m + exponent * 0.693147181f);
    value = select(bits - 1 < Expr(kInfinity - 1), value, (bits << 1) == 0, Expr(kSign | kInfinity),
                   bits == Expr(kInfinity), bits, Expr(kNaN));
    return cast(x.type(), float_of(value));
}

// a**b as in C, for f32: e**(b ln |a|), which loses as many digits as b ln |a| has before the point, and its
// exceptions.
Expr te_power(const Expr &a, const Expr &b) {
    Expr size = magnitude(a), sign = bits_of(a) & Expr(kSign), one = Expr(bits_of(1.0f));
    auto is_whole = [](const Expr &x) { return bits_of(floor(x)) == bits_of(x); };
    Expr value = bits_of(te_exp(te_log(float_of(size)) * b));
    value = select(size == one && !te_isnan(b), one, value);  // if b is infinite
    value = select(is_whole(b * 0.5f), value, is_whole(b), value | sign,  // even, odd
                   sign != 0 && size - 1 < Expr(kInfinity - 1), Expr(kNaN), value);
    return float_of(select((bits_of(b) << 1) == 0 || bits_of(a) == one, one, value));
}

Expr te_pow(const Expr &a, const Expr &b) {
    if (a.type() == Float(64)) return pow(a, b);
    if (a.type().is_float()) return cast(a.type(), te_power(cast<float>(a), cast<float>(b)));
    Expr one = cast(a.type(), 1), zero = cast(a.type(), 0);  // a negative power of anything but 1 or -1 is 0
    Expr inverse = select(a == 1, one, a == -1, select((b & one) != 0, -one, one), zero);
    return select(b < 0, inverse, wrapping("te_wrapping_pow", a, b));
}

@FUNCTIONS@
}  // namespace whole
