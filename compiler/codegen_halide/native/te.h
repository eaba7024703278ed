// What te expressions mean where plain Halide arithmetic means something else. Included by every generated source.
#pragma once
#include "Halide.h"
#include <limits>

namespace {

using namespace Halide;

template<typename T>
Expr te_inf() { return Halide::cast<T>(Expr(std::numeric_limits<float>::infinity())); }

template<typename T>
Expr te_nan() { return Halide::cast<T>(Expr(std::numeric_limits<float>::quiet_NaN())); }

// Whether a value is NaN, by its bits where LLVM could conclude otherwise: it takes it that f16 widened is a number.
inline Expr te_isnan(const Expr &x) {
    int bits = x.type().bits();
    if (bits < 32) return is_nan(x);
    Type whole = UInt(bits);
    Expr magnitude = reinterpret(whole, x) & (whole.max() >> 1);
    return magnitude > reinterpret(whole, cast(x.type(), Expr(std::numeric_limits<float>::infinity())));
}

// A tensor without gaps: extents from the innermost dimension on. One call, and no template, because calls and templates
// are what compiling a generator spends its time on.
inline Expr te_dimension(Internal::Dimension d, const Expr &extent, const Expr &stride) {
    d.set_bounds(0, extent).set_stride(stride);
    return stride * extent;
}
template<typename P>
void te_dense(P &p, std::initializer_list<int> extents) {
    int k = 0;
    int64_t stride = 1;
    for (int n : extents) te_dimension(p.dim(k++), n, (int)stride), stride *= n;
}
template<typename P>
void te_dense(P &p, std::initializer_list<Expr> extents) {
    int k = 0;
    Expr stride = 1;
    for (const Expr &n : extents) stride = te_dimension(p.dim(k++), n, stride);
}

// The greater and the lesser; NaN where either is NaN.
//
// A comparison that selects is one instruction on x86, which gives its second operand where either is NaN. So of the two
// orders one gives the NaN, and their bits joined are a NaN too; without one both give the same. That keeps everything in
// vector registers: comparisons into masks, one for the order and one for NaN, take five times as long on Zen 4.
inline Expr te_joined(const Expr &x, const Expr &y) {
    Type bits = UInt(x.type().bits());
    return reinterpret(x.type(), reinterpret(bits, x) | reinterpret(bits, y));
}
inline Expr te_max(const Expr &a, const Expr &b) {
    if (a.type().bits() < 32) return select(is_nan(a) || strict_float(a > b), a, b);
    return te_joined(strict_float(select(a > b, a, b)), strict_float(select(b > a, b, a)));
}
inline Expr te_min(const Expr &a, const Expr &b) {
    if (a.type().bits() < 32) return select(is_nan(a) || strict_float(a < b), a, b);
    return te_joined(strict_float(select(a < b, a, b)), strict_float(select(b < a, b, a)));
}
// The same against a constant that is not NaN: the comparison is false for NaN, which is kept.
inline Expr te_max_const(const Expr &x, const Expr &c) { return select(strict_float(x < c), c, x); }
inline Expr te_min_const(const Expr &x, const Expr &c) { return select(strict_float(x > c), c, x); }

// A divisor that the processor does not trap on: 0, which a check reports, and -1, which overflows the least integer.
inline Expr te_divisor(const Expr &b) {
    Expr one = cast(b.type(), 1);
    return b.type().is_uint() ? select(b == 0, one, b) : select(b == 0 || b == -1, one, b);
}

// Integers truncate toward zero; Halide's own `/` and `%` round down.
inline Expr te_div(const Expr &a, const Expr &b) {
    if (a.type().is_float()) return a / b;
    Expr quotient = div_round_to_zero(a, te_divisor(b));
    return a.type().is_uint() ? quotient : select(b == -1, -a, quotient);
}
inline Expr te_rem(const Expr &a, const Expr &b) {
    if (!a.type().is_float()) return mod_round_to_zero(a, te_divisor(b));
    return select(is_inf(b) && !is_inf(a), a, a - b * trunc(a / b));
}
inline Expr te_floordiv(const Expr &a, const Expr &b) { return a.type().is_float() ? floor(a / b) : a / b; }
inline Expr te_mod(const Expr &a, const Expr &b) {
    if (a.type().is_float()) {  // the remainder has the sign of b, even where it is zero
        Expr zero = cast(a.type(), 0);
        Expr r = te_rem(a, b);
        Type whole = UInt(a.type().bits());
        Expr negative_zero = reinterpret(a.type(), cast(whole, 1) << (whole.bits() - 1));
        Expr signed_zero = select(b < zero, negative_zero, zero);
        return select(r == zero, signed_zero, (r < zero) != (b < zero), r + b, r);
    }
    if (a.type().is_uint()) return a % b;
    Expr r = te_rem(a, b);
    return select(r != 0 && ((r < 0) != (b < 0)), r + b, r);
}

// The nearest integer, halves to even, of what i32 holds.
inline Expr te_nearest(const Expr &x) { return cast<int32_t>(round(x)); }

// a * b + c rounded once. LLVM fuses one product with one sum, and the strict operation behind them, which changes nothing,
// keeps it from regrouping longer sums.
inline Expr te_fma(const Expr &a, const Expr &b, const Expr &c) {
    Type t = a.type();
    return Internal::Call::make(t, Internal::Call::strict_max, {a * b + c, t.min()}, Internal::Call::PureIntrinsic);
}

// A condition that bounds inference does not look into.
inline Expr te_opaque(const Expr &cond) { return cast<uint8_t>(cond) != cast<uint8_t>(0); }

// Shifts by the width or more move every bit out.
inline Expr te_shl(const Expr &a, const Expr &b) {
    int bits = a.type().bits();
    Expr count = cast(UInt(bits), b);
    return select(count < bits, a << min(count, bits - 1), cast(a.type(), 0));
}
inline Expr te_shr(const Expr &a, const Expr &b) {
    int bits = a.type().bits();
    Expr count = cast(UInt(bits), b);
    Expr all = a.type().is_int() ? a >> (bits - 1) : cast(a.type(), 0);
    return select(count < bits, a >> min(count, bits - 1), all);
}

// Truncates, saturates; NaN gives 0.
template<typename T>
Expr te_to_int(const Expr &x) {
    Type to = type_of<T>();
    // The bounds as floats round outward, so the comparison comes first and the conversion sees only values in range.
    Expr low = cast(x.type(), Expr((double)std::numeric_limits<T>::lowest()));
    Expr high = cast(x.type(), Expr((double)std::numeric_limits<T>::max()));
    Expr inside = select(te_isnan(x) || strict_float(x <= low) || strict_float(x >= high), cast(x.type(), 0), x);
    Expr value = cast(to, trunc(inside));
    value = select(strict_float(x >= high), to.max(), value);
    return select(strict_float(x <= low), to.min(), value);
}

// Rounds to nearest even by integer arithmetic, as Halide's own cast does, which makes numbers of some NaNs.
inline Expr te_to_bf16(const Expr &x) {
    Expr value = cast<float>(x);
    Expr bits = reinterpret<uint32_t>(value);
    Expr whole = (bits + (((bits >> 16) & 1) + 0x7fff)) >> 16;
    return reinterpret<bfloat16_t>(cast<uint16_t>(select(te_isnan(value), (bits >> 16) | 0x40, whole)));
}

inline Expr te_sign(const Expr &x) {
    Expr one = cast(x.type(), 1);
    if (x.type().is_uint()) return select(x > 0, one, x);
    return select(x > 0, one, x < 0, -one, x);
}

inline Expr te_pow(const Expr &a, const Expr &b) {
    if (a.type().is_float()) return cast(a.type(), pow(a, b));
    return cast(a.type(), te_to_int<int64_t>(pow(cast<double>(a), cast<double>(b))));
}

// e**x for x <= 0: `x = n ln 2 + r` with |r| <= ln 2 / 2, a polynomial, and n added to the exponent; 1e-7 of the result
// down to -10, and 3e-7 below. Zero below the normal numbers; NaN stays, since no step compares it away.
inline Expr te_decay(const Expr &x) {
    if (x.type() != Float(32)) return exp(x);
    Expr low = -87.33f;
    Expr y = te_max_const(x, low);
    Expr n = cast<int32_t>(y * 1.44269504f - 0.5f);  // truncates, so this rounds what is not positive
    Expr r = y - cast<float>(n) * 0.693147181f;
    Expr p = ((((0.00138368358f * r + 0.00837482419f) * r + 0.0416682251f) * r + 0.166664198f) * r + 0.49999991f) * r * r + r + 1.0f;
    return select(strict_float(x < low), 0.0f, reinterpret<float>(reinterpret<int32_t>(p) + (n << 23)));
}

// A function of f64 of the C library.
inline Expr te_libm(const char *name, const Expr &x) {
    return Internal::Call::make(Float(64), name, {x}, Internal::Call::PureExtern);
}

@FUNCTIONS@
}  // namespace
