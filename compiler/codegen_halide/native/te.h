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

// The greater and the lesser; NaN where either is NaN.
inline Expr te_max(const Expr &a, const Expr &b) { return select(is_nan(a) || strict_float(a > b), a, b); }
inline Expr te_min(const Expr &a, const Expr &b) { return select(is_nan(a) || strict_float(a < b), a, b); }
// The same against a constant that is not NaN: the comparison is false for NaN, which is kept.
inline Expr te_max_const(const Expr &x, const Expr &c) { return select(strict_float(x < c), c, x); }
inline Expr te_min_const(const Expr &x, const Expr &c) { return select(strict_float(x > c), c, x); }

// Integers truncate toward zero; Halide's own `/` and `%` round down.
inline Expr te_div(const Expr &a, const Expr &b) { return a.type().is_float() ? a / b : div_round_to_zero(a, b); }
inline Expr te_rem(const Expr &a, const Expr &b) {
    if (!a.type().is_float()) return mod_round_to_zero(a, b);
    return a - b * trunc(a / b);
}
inline Expr te_floordiv(const Expr &a, const Expr &b) { return a.type().is_float() ? floor(a / b) : a / b; }
inline Expr te_mod(const Expr &a, const Expr &b) {
    if (a.type().is_float()) return a - b * floor(a / b);
    if (a.type().is_uint()) return a % b;
    Expr r = mod_round_to_zero(a, b);
    return select(r != 0 && ((r < 0) != (b < 0)), r + b, r);
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
    Expr inside = select(is_nan(x) || strict_float(x <= low) || strict_float(x >= high), cast(x.type(), 0), x);
    Expr value = cast(to, trunc(inside));
    value = select(strict_float(x >= high), to.max(), value);
    return select(strict_float(x <= low), to.min(), value);
}

inline Expr te_sign(const Expr &x) {
    Expr one = cast(x.type(), 1);
    if (x.type().is_uint()) return select(x > 0, one, x);
    return select(x > 0, one, x < 0, -one, x);
}

inline Expr te_pow(const Expr &a, const Expr &b) {
    if (a.type().is_float()) return pow(a, b);
    return te_to_int<int64_t>(pow(cast<double>(a), cast<double>(b)));
}

@FUNCTIONS@
}  // namespace
