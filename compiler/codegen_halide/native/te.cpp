// te.h over Halide.
#define TE_OVER_HALIDE
#include "te.h"

// Parts of Halide.h that tell how Halide compiles are not looked at: they take a tenth of the compiler's time and memory.
#define HALIDE_ASSOCIATIVITY_H
#define HALIDE_DERIVATIVE_H
#define HALIDE_EXPR_USES_VAR_H
#define HALIDE_IR_MATCH_H
#define HALIDE_CODEGEN_LLVM_H
#define HALIDE_CODEGEN_POSIX_H
#define HALIDE_ELF_H
#include "Halide.h"
#include "fetch_ahead.h"
#include "fetch_beyond.h"
#include "mends.h"
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <unistd.h>

// What te expressions mean where plain Halide arithmetic means something else, in Halide's own types.
namespace whole {

using namespace Halide;

Expr te_inf(Type t) { return cast(t, Expr(std::numeric_limits<float>::infinity())); }
Expr te_nan(Type t) { return cast(t, Expr(std::numeric_limits<float>::quiet_NaN())); }

// Operations of IEEE 754, as they stand. Halide's own lose infinities, NaN and rounding: its simplifier makes 0 of `x - x` and
// `b == 0` of `a + b == a`, multiplies by the reciprocal of a constant divisor, and tells LLVM that no NaN comes about. Operands
// stay as they are: `strict_float` would compute them again, without fused multiply-add.
Expr strictly(Internal::Call::IntrinsicOp op, const Expr &a, const Expr &b, Type t) {
    return Internal::Call::make(t, op, {a, b}, Internal::Call::PureIntrinsic);
}
Expr strictly(Internal::Call::IntrinsicOp op, const Expr &a, const Expr &b) { return strictly(op, a, b, a.type()); }
Expr te_add(const Expr &a, const Expr &b) { return strictly(Internal::Call::strict_add, a, b); }
Expr te_sub(const Expr &a, const Expr &b) { return strictly(Internal::Call::strict_sub, a, b); }
Expr te_mul(const Expr &a, const Expr &b) { return strictly(Internal::Call::strict_mul, a, b); }
Expr te_lt(const Expr &a, const Expr &b) { return strictly(Internal::Call::strict_lt, a, b, Bool()); }
Expr te_eq(const Expr &a, const Expr &b) { return strictly(Internal::Call::strict_eq, a, b, Bool()); }
Expr te_le(const Expr &a, const Expr &b) { return te_lt(a, b) || te_eq(a, b); }  // Halide makes !(b < a) of its own, true for NaN
Expr te_ne(const Expr &a, const Expr &b) { return !te_eq(a, b); }
Expr te_neg(const Expr &x) { return te_sub(cast(x.type(), -0.0f), x); }

// Whether a value is NaN or infinite, by its bits: fast-math lets LLVM take it that nothing that was computed is.
Expr magnitude(const Expr &x) {
    Type whole = UInt(x.type().bits());
    return reinterpret(whole, x) & (whole.max() >> 1);
}
Expr infinity_of(Type t) { return reinterpret(UInt(t.bits()), te_inf(t)); }
Expr te_isnan(const Expr &x) { return magnitude(x) > infinity_of(x.type()); }
Expr te_isinf(const Expr &x) { return magnitude(x) == infinity_of(x.type()); }

// The greater and the lesser; NaN where either is NaN.
//
// A comparison that selects is one instruction on x86, which gives its second operand where either is NaN. So of the two
// orders one gives the NaN, and their bits joined are a NaN too; without one both give the same. That keeps everything in
// vector registers: comparisons into masks, one for the order and one for NaN, take five times as long on Zen 4.
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
// The same against a constant that is not NaN: the comparison is false for NaN, which is kept.
Expr te_max_const(const Expr &x, const Expr &c) { return select(te_lt(x, c), c, x); }
Expr te_min_const(const Expr &x, const Expr &c) { return select(te_lt(c, x), c, x); }

// A divisor that the processor does not trap on: 0, which a check reports, and -1, which overflows the least integer.
Expr te_divisor(const Expr &b) {
    Expr one = cast(b.type(), 1);
    return b.type().is_uint() ? select(b == 0, one, b) : select(b == 0 || b == -1, one, b);
}

// A function of the C library, of the type of its arguments.
Expr te_libm(const char *name, const std::vector<Expr> &x) {
    return Internal::Call::make(x[0].type(), name, x, Internal::Call::PureExtern);
}

// Integers truncate toward zero; Halide's own `/` and `%` round down.
Expr te_div(const Expr &a, const Expr &b) {
    if (a.type().is_float()) return strictly(Internal::Call::strict_div, a, b);
    Expr quotient = div_round_to_zero(a, te_divisor(b));
    return a.type().is_uint() ? quotient : select(b == -1, -a, quotient);
}
Expr te_rem(const Expr &a, const Expr &b) {
    if (!a.type().is_float()) return mod_round_to_zero(a, te_divisor(b));
    // A quotient that is rounded says nothing about the remainder where it is large.
    if (a.type() == Float(64)) return te_libm("fmod", {a, b});
    return cast(a.type(), te_libm("fmodf", {cast<float>(a), cast<float>(b)}));
}
Expr te_floordiv(const Expr &a, const Expr &b) { return a.type().is_float() ? floor(te_div(a, b)) : a / b; }
Expr te_mod(const Expr &a, const Expr &b) {
    if (a.type().is_float()) {  // the remainder has the sign of b, even where it is zero
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

// The nearest integer, halves to even, of what i32 holds.
Expr te_nearest(const Expr &x) { return cast<int32_t>(round(x)); }

// a * b + c rounded once. LLVM fuses one product with one sum, and the strict operation behind them, which changes nothing,
// keeps it from regrouping longer sums.
Expr te_fma(const Expr &a, const Expr &b, const Expr &c) {
    Type t = a.type();
    return Internal::Call::make(t, Internal::Call::strict_max, {a * b + c, t.min()}, Internal::Call::PureIntrinsic);
}

// A condition that bounds inference does not look into.
Expr te_opaque(const Expr &cond) { return cast<uint8_t>(cond) != cast<uint8_t>(0); }

// Shifts by the width or more move every bit out.
Expr te_shl(const Expr &a, const Expr &b) {
    int bits = a.type().bits();
    Expr count = cast(UInt(bits), b);
    return select(count < bits, a << min(count, bits - 1), cast(a.type(), 0));
}
Expr te_shr(const Expr &a, const Expr &b) {
    int bits = a.type().bits();
    Expr count = cast(UInt(bits), b);
    Expr all = a.type().is_int() ? a >> (bits - 1) : cast(a.type(), 0);
    return select(count < bits, a >> min(count, bits - 1), all);
}

// Truncates, saturates; NaN gives 0.
Expr te_to_int(Type to, const Expr &x) {
    // The bounds as floats round outward, so the comparison comes first and the conversion sees only values in range.
    const int bits = to.bits();
    Expr low = cast(x.type(), Expr(to.is_int() ? -std::ldexp(1.0, bits - 1) : 0.0));
    Expr high = cast(x.type(), Expr(std::ldexp(1.0, to.is_int() ? bits - 1 : bits) - 1));  // 2**63 in f64
    Expr under = te_lt(x, low), over = !te_lt(x, high);
    Expr value = cast(to, trunc(select(under || over, cast(x.type(), 0), x)));
    value = select(under, to.min(), over, to.max(), value);
    return select(te_isnan(x), cast(to, 0), value);
}

// Rounds to nearest even by integer arithmetic, as Halide's own cast does, which makes numbers of some NaNs.
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

// What is done where f32 is not finite goes by its bits: fast-math lets LLVM take it that there is no such value, and
// strict comparisons would compute their operand again, without fused multiply-add.
constexpr uint32_t kInfinity = 0x7f800000, kNaN = 0x7fc00000, kSign = 0x80000000;
uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
Expr bits_of(const Expr &x) { return reinterpret<uint32_t>(x); }
Expr float_of(const Expr &bits) { return reinterpret<float>(bits); }

// Whether x lies beyond a number, seen from zero; NaN does not.
Expr is_beyond(const Expr &x, float number) {
    uint32_t limit = bits_of(number), infinity = std::signbit(number) ? kSign | kInfinity : kInfinity;
    return bits_of(x) - Expr(limit + 1) < Expr(infinity - limit);
}

// 2**n of the polynomial of e**r with |r| <= ln 2 / 2: n is added to the exponent, so that NaN, whose n is anything, stays.
Expr scaled_power(const Expr &r, const Expr &n) {
    Expr p = ((((0.00138368358f * r + 0.00837482419f) * r + 0.0416682251f) * r + 0.166664198f) * r + 0.49999991f) * r * r + r + 1.0f;
    return reinterpret<float>(reinterpret<int32_t>(p) + (n << 23));
}

// e**x: `x = n ln 2 + r`; 1e-7 of the result near 0, and 3e-7 at the ends. Zero below the normal numbers. What is beyond
// the ends comes to nothing that holds, and is replaced; Halide's own makes a number of NaN, and zero of infinity.
Expr te_exp(const Expr &x) {
    if (x.type() == Float(64)) return exp(x);
    Expr y = cast<float>(x);
    Expr n = round(y * 1.44269504f);
    Expr value = bits_of(scaled_power(y - n * 0.693147181f, cast<int32_t>(n)));
    value = select(is_beyond(y, 88.7228317f), Expr(kInfinity), is_beyond(y, -87.33f), Expr(0u), value);
    return cast(x.type(), float_of(value));
}

// The same for x <= 0.
Expr te_decay(const Expr &x) {
    if (x.type() != Float(32)) return te_exp(x);
    Expr n = cast<int32_t>(x * 1.44269504f - 0.5f);  // truncates, so this rounds what is not positive
    Expr value = scaled_power(x - cast<float>(n) * 0.693147181f, n);
    return float_of(select(is_beyond(x, -87.33f), Expr(0u), bits_of(value)));
}

// ln x: `x = m 2**e` with m in [sqrt(1/2), sqrt(2)), then a polynomial in m - 1; 1e-7. Halide's own makes numbers of NaN and
// infinity.
Expr te_log(const Expr &x) {
    if (x.type() == Float(64)) return log(x);
    Expr y = cast<float>(x), bits = bits_of(y);
    Expr is_tiny = bits < Expr(bits_of(1.17549435e-38f));  // subnormal numbers are scaled; those below zero are dealt with below
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

// a**b as C has it, of f32: e**(b ln |a|), which loses as many digits as b ln |a| has before the point, and its exceptions.
Expr te_power(const Expr &a, const Expr &b) {
    Expr size = magnitude(a), sign = bits_of(a) & Expr(kSign), one = Expr(bits_of(1.0f));
    auto is_whole = [](const Expr &x) { return bits_of(floor(x)) == bits_of(x); };
    Expr value = bits_of(te_exp(te_log(float_of(size)) * b));
    value = select(size == one && !te_isnan(b), one, value);  // where b is infinite
    value = select(is_whole(b * 0.5f), value, is_whole(b), value | sign,  // even, odd
                   sign != 0 && size - 1 < Expr(kInfinity - 1), Expr(kNaN), value);
    return float_of(select((bits_of(b) << 1) == 0 || bits_of(a) == one, one, value));
}

Expr te_pow(const Expr &a, const Expr &b) {
    if (a.type() == Float(64)) return pow(a, b);
    if (a.type().is_float()) return cast(a.type(), te_power(cast<float>(a), cast<float>(b)));
    return cast(a.type(), te_to_int(Int(64), pow(cast<double>(a), cast<double>(b))));
}

@FUNCTIONS@
}  // namespace whole

namespace te {

// What an Expr points to. An element of a Func becomes an expression when it is read, since the Func of one that is written
// has no definition yet.
struct Node {
    Halide::Expr value;
    std::optional<int> number;
    std::optional<Halide::FuncRef> element;
    std::optional<Halide::VarOrRVar> variable;
};

// What a Func points to: an input if it has an image.
struct Function {
    Halide::Func func;
    std::optional<Halide::ImageParam> image;
    std::vector<Halide::Stage> special;  // definitions for where a condition holds, numbered from -2 down
};

namespace {

Halide::Expr whole_of(Expr e) { return e.node->element ? Halide::Expr(*e.node->element) : e.node->value; }
const Halide::VarOrRVar &variable_of(Expr e) { return *e.node->variable; }
Node *made(const Halide::Expr &e) { return new Node{e}; }

std::vector<Halide::Expr> all_of(std::initializer_list<Expr> list) {
    std::vector<Halide::Expr> found;
    for (Expr e : list) found.push_back(whole_of(e));
    return found;
}

std::vector<Halide::VarOrRVar> variables_of(std::initializer_list<Expr> list) {
    std::vector<Halide::VarOrRVar> found;
    for (Expr e : list) found.push_back(variable_of(e));
    return found;
}

Halide::Type type_from(Type t) {
    using namespace Halide;
    static const Halide::Type types[] = {Float(64), Float(32), Float(16), BFloat(16), Bool(), Int(64), Int(32), Int(16), Int(8), UInt(64), UInt(32), UInt(16), UInt(8)};
    return types[(int)t];
}

Halide::TailStrategy tail_from(TailStrategy t) {
    using T = Halide::TailStrategy;
    static const T tails[] = {T::RoundUp, T::GuardWithIf, T::Predicate, T::PredicateLoads, T::PredicateStores, T::ShiftInwards, T::Auto};
    return tails[(int)t];
}

// The kernel that is being made: its arguments and results in order.
std::vector<Halide::Argument> arguments;
std::vector<Halide::Func> results;
std::map<std::string, int64_t> panels;  // bytes of those that are fetched ahead, by tensor
whole::FetchBeyond::Distances distances;  // in bytes, of what is fetched beyond the rows that are read

std::map<std::string, void (*)()> &generators() {
    static std::map<std::string, void (*)()> known;
    return known;
}

// What is scheduled: a Func's own definition, an update, or a specialization.
Halide::Stage definition(const Stage &s) {
    if (s.number < -1) return s.function->special[-2 - s.number];
    return s.number < 0 ? Halide::Stage(s.function->func) : s.function->func.update(s.number);
}

}  // namespace

// Expressions

Expr::Expr(int x) : node(new Node{Halide::Expr(x), x}) {}
Expr::Expr(int64_t x) : node(made(Halide::Expr(x))) {}
Expr::Expr(uint64_t x) : node(made(Halide::Expr(x))) {}
Expr::Expr(float x) : node(made(Halide::Expr(x))) {}
Expr::Expr(double x) : node(made(Halide::Expr(x))) {}
Var::Var(const char *name) {
    Halide::Var v(name);
    node = new Node{v, {}, {}, v};
}
RVar::RVar(const char *name) { node = new Node{{}, {}, {}, Halide::RVar(name)}; }
RDom::RDom(std::initializer_list<Span> spans, const char *name) {
    Halide::Region region;
    for (const Span &s : spans) region.emplace_back(whole_of(s.min), whole_of(s.extent));
    domain = new Halide::RDom(region, name);
}
RVar RDom::operator[](int k) const {
    Halide::RVar v = (*(Halide::RDom *)domain)[k];
    return new Node{v, {}, {}, v};
}

#define UNARY(name, call) \
    Expr name(Expr x) { return made(call(whole_of(x))); }
#define BINARY(name, call) \
    Expr name(Expr a, Expr b) { return made(call(whole_of(a), whole_of(b))); }
#define OPERATOR(sign)                                                                  \
    Expr operator sign(Expr a, Expr b) {                                                \
        if (b.node->number) return made(whole_of(a) sign *b.node->number);              \
        if (a.node->number) return made(*a.node->number sign whole_of(b));              \
        return made(whole_of(a) sign whole_of(b));                                      \
    }
OPERATOR(+) OPERATOR(-) OPERATOR(*) OPERATOR(/) OPERATOR(%) OPERATOR(<) OPERATOR(<=) OPERATOR(>) OPERATOR(>=) OPERATOR(==)
OPERATOR(!=) OPERATOR(&) OPERATOR(|) OPERATOR(^)
BINARY(operator&&, Halide::operator&&) BINARY(operator||, Halide::operator||)
UNARY(operator-, Halide::operator-) UNARY(operator!, Halide::operator!) UNARY(operator~, Halide::operator~)
UNARY(strict_float, Halide::strict_float) UNARY(likely, Halide::likely) UNARY(abs, Halide::abs) UNARY(sqrt, Halide::sqrt) UNARY(te_exp, whole::te_exp)
UNARY(te_log, whole::te_log) UNARY(tan, Halide::tan) UNARY(asin, Halide::asin)
UNARY(acos, Halide::acos) UNARY(atan, Halide::atan) UNARY(sinh, Halide::sinh) UNARY(cosh, Halide::cosh)
UNARY(asinh, Halide::asinh) UNARY(acosh, Halide::acosh) UNARY(atanh, Halide::atanh) UNARY(floor, Halide::floor)
UNARY(ceil, Halide::ceil) UNARY(trunc, Halide::trunc) UNARY(round, Halide::round)
BINARY(atan2, Halide::atan2) UNARY(popcount, Halide::popcount) UNARY(te_isnan, whole::te_isnan) UNARY(te_isinf, whole::te_isinf)
BINARY(te_add, whole::te_add) BINARY(te_sub, whole::te_sub) BINARY(te_mul, whole::te_mul) UNARY(te_neg, whole::te_neg)
BINARY(te_lt, whole::te_lt) BINARY(te_le, whole::te_le) BINARY(te_eq, whole::te_eq) BINARY(te_ne, whole::te_ne)
BINARY(te_max, whole::te_max) BINARY(te_min, whole::te_min)
BINARY(te_max_const, whole::te_max_const) BINARY(te_min_const, whole::te_min_const) BINARY(te_div, whole::te_div)
BINARY(te_rem, whole::te_rem) BINARY(te_floordiv, whole::te_floordiv) BINARY(te_mod, whole::te_mod)
UNARY(te_nearest, whole::te_nearest) UNARY(te_opaque, whole::te_opaque) BINARY(te_shl, whole::te_shl)
BINARY(te_shr, whole::te_shr) UNARY(te_sign, whole::te_sign) BINARY(te_pow, whole::te_pow) UNARY(te_decay, whole::te_decay)
UNARY(te_to_bf16, whole::te_to_bf16) UNARY(te_tanh, whole::te_tanh) UNARY(te_erf, whole::te_erf)
UNARY(te_log1p, whole::te_log1p) UNARY(te_sin, whole::te_sin) UNARY(te_cos, whole::te_cos)

Expr min(Expr a, Expr b) {
    if (b.node->number) return made(Halide::min(whole_of(a), *b.node->number));
    return made(a.node->number ? Halide::min(*a.node->number, whole_of(b)) : Halide::min(whole_of(a), whole_of(b)));
}
Expr max(Expr a, Expr b) {
    if (b.node->number) return made(Halide::max(whole_of(a), *b.node->number));
    return made(a.node->number ? Halide::max(*a.node->number, whole_of(b)) : Halide::max(whole_of(a), whole_of(b)));
}
Expr clamp(Expr x, Expr low, Expr high) { return made(Halide::clamp(whole_of(x), whole_of(low), whole_of(high))); }

// Whether a test is one of sizes alone.
struct OfSizes : Halide::Internal::IRVisitor {
    bool found = true;
    using IRVisitor::visit;
    void visit(const Halide::Internal::Variable *v) override { found &= v->param.defined(); }
    void visit(const Halide::Internal::Call *) override { found = false; }
};

// A test as Halide states it to itself, until it states it no other way: for its loops of a variant Halide looks for the test of the
// variant in the choice between two stages, and what it does not prove to be the same it keeps.
Halide::Expr stated(Halide::Expr test) {
    using namespace Halide::Internal;
    for (int k = 0; k < 8; k++) {
        Halide::Expr simpler = simplify(test, true, Scope<Interval>::empty_scope(), Scope<ModulusRemainder>::empty_scope(), {});
        if (equal(simpler, test)) break;
        test = simpler;
    }
    return test;
}

Expr select(Expr c, Expr a, Expr b) {
    Halide::Expr test = whole_of(c);
    OfSizes sizes;
    test.accept(&sizes);
    return made(Halide::select(sizes.found ? stated(test) : test, whole_of(a), whole_of(b)));
}
Expr te_fma(Expr a, Expr b, Expr c) { return made(whole::te_fma(whole_of(a), whole_of(b), whole_of(c))); }
Expr cast(Type t, Expr x) { return made(Halide::cast(type_from(t), whole_of(x))); }
Expr reinterpret(Type t, Expr x) { return made(Halide::reinterpret(type_from(t), whole_of(x))); }
Expr const_true() { return made(Halide::Internal::const_true()); }
Expr const_false() { return made(Halide::Internal::const_false()); }
Expr undef(Type t) { return made(Halide::undef(type_from(t))); }
Expr te_inf(Type t) { return made(whole::te_inf(type_from(t))); }
Expr te_nan(Type t) { return made(whole::te_nan(type_from(t))); }
Expr te_to_int(Type t, Expr x) { return made(whole::te_to_int(type_from(t), whole_of(x))); }

// Functions

Func::Func(const char *name) : Stage{new Function{Halide::Func(name)}, -1} {}
Ref Func::at(std::initializer_list<Expr> position) const {
    if (function->image) return made((*function->image)(all_of(position)));
    return new Node{{}, {}, function->func(all_of(position))};
}
Expr Ref::operator[](int k) const { return made((*node->element)[k]); }
void Ref::operator=(Expr value) const { *node->element = whole_of(value); }
void Ref::operator=(Tuple value) const { *node->element = Halide::Tuple(whole_of(value.first), whole_of(value.second)); }
void Ref::operator+=(Expr value) const { *node->element += whole_of(value); }
void Ref::operator*=(Expr value) const { *node->element *= whole_of(value); }

// Schedules

Stage &Stage::split(Expr old, Expr outer, Expr inner, Expr factor, TailStrategy tail) {
    definition(*this).split(variable_of(old), variable_of(outer), variable_of(inner), whole_of(factor), tail_from(tail));
    return *this;
}
Stage &Stage::fuse(Expr inner, Expr outer, Expr fused) {
    definition(*this).fuse(variable_of(inner), variable_of(outer), variable_of(fused));
    return *this;
}
#define LOOP(call) \
    Stage &Stage::call(Expr v) { return definition(*this).call(variable_of(v)), *this; }
#define LOOP_BY(call)                                                                     \
    LOOP(call)                                                                            \
    Stage &Stage::call(Expr v, int factor, TailStrategy tail) {                           \
        return definition(*this).call(variable_of(v), factor, tail_from(tail)), *this;    \
    }
LOOP(serial) LOOP_BY(vectorize) LOOP_BY(unroll) LOOP_BY(parallel)
Stage &Stage::atomic() { return definition(*this).atomic(), *this; }
Stage &Stage::reordered(std::initializer_list<Expr> vars) { return definition(*this).reorder(variables_of(vars)), *this; }

Stage Stage::specialize(Expr condition) {
    function->special.push_back(function->func.specialize(stated(whole_of(condition))));
    return {function, -1 - (int)function->special.size()};
}

Func &Func::compute_root() { return function->func.compute_root(), *this; }
Func &Func::store_root() { return function->func.store_root(), *this; }
Func &Func::compute_at(const Func &where, Expr v) {
    return function->func.compute_at(Halide::LoopLevel(where.function->func, variable_of(v))), *this;
}
Func &Func::store_at(const Func &where, Expr v) {
    return function->func.store_at(Halide::LoopLevel(where.function->func, variable_of(v))), *this;
}
Func &Func::bound(Expr v, Expr low, Expr n) { return function->func.bound(variable_of(v).var, whole_of(low), whole_of(n)), *this; }
Func &Func::bound_extent(Expr v, Expr n) { return function->func.bound_extent(variable_of(v).var, whole_of(n)), *this; }
Func &Func::align_storage(Expr v, Expr n) { return function->func.align_storage(variable_of(v).var, whole_of(n)), *this; }
Func &Func::bound_storage(Expr v, Expr n) { return function->func.bound_storage(variable_of(v).var, whole_of(n)), *this; }
Func &Func::align_bounds(Expr v, Expr n) { return function->func.align_bounds(variable_of(v).var, whole_of(n)), *this; }
Func &Func::stored(std::initializer_list<Expr> vars) {
    std::vector<Halide::Var> order;
    for (Expr v : vars) order.push_back(variable_of(v).var);
    return function->func.reorder_storage(order), *this;
}

// Kernels

Function *input(const char *name, Type type, int rank) {
    Halide::ImageParam image(type_from(type), rank, name);
    arguments.push_back(image);
    return new Function{{}, image};
}
Function *output(const char *name) {
    Halide::Func func(name);
    results.push_back(func);
    return new Function{func};
}
Node *size(const char *name) {
    Halide::Param<int32_t> extent(name);
    arguments.push_back(extent);
    return made(extent);
}
static Halide::OutputImageParam buffer_of(const Func &tensor) {
    return tensor.function->image ? *tensor.function->image : tensor.function->func.output_buffer();
}
void te_dense(const Func &tensor, std::initializer_list<Expr> extents) {
    Halide::OutputImageParam buffer = buffer_of(tensor);
    Halide::Expr stride = 1;
    int k = 0;
    for (Expr e : extents) {
        Halide::Expr extent = whole_of(e);
        buffer.dim(k++).set_bounds(0, extent).set_stride(stride);
        stride = stride * extent;
    }
}
void te_part(const Func &tensor, std::initializer_list<Expr> extents, std::initializer_list<Expr> strides) {
    Halide::OutputImageParam buffer = buffer_of(tensor);
    for (size_t k = 0; k < extents.size(); k++) buffer.dim(k).set_bounds(0, whole_of(extents.begin()[k])).set_stride(whole_of(strides.begin()[k]));
}

void te_fetch_ahead(const Func &tensor, int64_t bytes) { panels[tensor.function->image->name()] = bytes; }
void te_fetch_beyond(const Func &stage, const Func &tensor, int64_t bytes) {
    distances[{stage.function->func.name(), tensor.function->image->name()}] = bytes;
}

Registration::Registration(const char *name, void (*generate)()) { generators()[name] = generate; }

void compile(const char *name, const char *directory, const char *target) {
    static struct : Halide::CompileTimeErrorReporter {
        void warning(const char *) override {}
        void error(const char *message) override {  // ends the process at once: this is compiled without exceptions
            fprintf(stderr, "%s\n", message);
            fflush(nullptr);
            _exit(1);
        }
    } reporter;
    Halide::set_custom_compile_time_error_reporter(&reporter);
    const std::string path = std::string(directory) + "/" + name + ".o";
    const auto known = generators().find(name);
    if (known != generators().end()) {
        known->second();
        Halide::Pipeline pipeline(results);
        if (!panels.empty()) pipeline.add_custom_lowering_pass(new whole::FetchAhead(panels));
        if (!distances.empty()) pipeline.add_custom_lowering_pass(new whole::FetchBeyond(distances));
        const whole::Mends mends{Halide::Target(target)};
        if (mends.needed()) pipeline.add_custom_lowering_pass(new whole::Mends(mends));
        pipeline.compile_to({{Halide::OutputFileType::object, path}}, arguments, name, Halide::Target(target));
        return;
    }
    Halide::Internal::ExecuteGeneratorArgs args;  // one that is written in all of Halide
    args.output_dir = directory;
    args.output_types = {Halide::OutputFileType::object};
    args.targets = {Halide::Target(target)};
    args.generator_name = args.function_name = args.file_base_name = name;
    Halide::Internal::execute_generator(args);
}

}  // namespace te
