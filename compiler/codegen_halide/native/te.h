// The part of Halide that generators of te functions use, under Halide's names, and the functions that te adds.
//
// Parsing Halide.h takes longer than compiling all kernels of a model; this header costs nothing. The text of a
// generator is the same for both. Definitions are in te.cpp, over Halide itself: a value is a pointer to its node,
// which is never freed, because a process makes one kernel.
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace te {

enum class Type { f64, f32, f16, bf16, boolean, i64, i32, i16, i8, u64, u32, u16, u8 };
enum class TailStrategy { RoundUp, GuardWithIf, Predicate, PredicateLoads, PredicateStores, ShiftInwards, Auto };
struct float16_t;
struct bfloat16_t;
template<typename T> extern const Type type_of;  // each is inline, since clang would define it in all objects otherwise
template<> inline constexpr Type type_of<double> = Type::f64;
template<> inline constexpr Type type_of<float> = Type::f32;
template<> inline constexpr Type type_of<float16_t> = Type::f16;
template<> inline constexpr Type type_of<bfloat16_t> = Type::bf16;
template<> inline constexpr Type type_of<bool> = Type::boolean;
template<> inline constexpr Type type_of<int64_t> = Type::i64;
template<> inline constexpr Type type_of<int32_t> = Type::i32;
template<> inline constexpr Type type_of<int16_t> = Type::i16;
template<> inline constexpr Type type_of<int8_t> = Type::i8;
template<> inline constexpr Type type_of<uint64_t> = Type::u64;
template<> inline constexpr Type type_of<uint32_t> = Type::u32;
template<> inline constexpr Type type_of<uint16_t> = Type::u16;
template<> inline constexpr Type type_of<uint8_t> = Type::u8;

// Expressions. A C++ int takes the type of the other operand, as in Halide.

struct Node;
struct Expr {
    Node *node = nullptr;
    Expr() = default;
    Expr(Node *made) : node(made) {}
    Expr(int), Expr(int64_t), Expr(uint64_t), Expr(float), Expr(double);
};
struct Var : Expr {
    Var(const char *name);
};
struct RVar : Expr {
    RVar(const char *name);
    RVar(Node *made) : Expr(made) {}
};
struct Span {
    Expr min, extent;
};
// Values in braces, or in an array.
template<typename T> struct List {
    const T *first;
    size_t count;
    List(std::initializer_list<T> values) : first(values.begin()), count(values.size()) {}
    List(const T *first, size_t count) : first(first), count(count) {}
    const T *begin() const { return first; }
    const T *end() const { return first + count; }
};
struct RDom {
    void *domain;
    RDom(void *made) : domain(made) {}
    RDom(List<Span> spans, const char *name);
    RVar operator[](int k) const;
    void where(Expr condition);
};

Expr operator+(Expr, Expr), operator-(Expr, Expr), operator*(Expr, Expr), operator/(Expr, Expr), operator%(Expr, Expr);
Expr operator<(Expr, Expr), operator<=(Expr, Expr), operator>(Expr, Expr), operator>=(Expr, Expr), operator==(Expr, Expr);
Expr operator!=(Expr, Expr), operator&&(Expr, Expr), operator||(Expr, Expr), operator&(Expr, Expr), operator|(Expr, Expr);
Expr operator^(Expr, Expr), operator-(Expr), operator!(Expr), operator~(Expr);
Expr select(Expr, Expr, Expr), clamp(Expr, Expr, Expr), min(Expr, Expr), max(Expr, Expr), strict_float(Expr), likely(Expr);
Expr abs(Expr), sqrt(Expr), te_exp(Expr), te_log(Expr), te_cos(Expr), tan(Expr), te_asin(Expr), te_acos(Expr), te_atan(Expr);
Expr sinh(Expr), cosh(Expr), asinh(Expr), acosh(Expr), atanh(Expr), floor(Expr), ceil(Expr), trunc(Expr), round(Expr);
Expr te_isinf(Expr), atan2(Expr, Expr), popcount(Expr);
Expr cast(Type, Expr), reinterpret(Type, Expr), const_true(), const_false();
template<typename T> Expr cast(Expr x) { return cast(type_of<T>, x); }
template<typename T> Expr reinterpret(Expr x) { return reinterpret(type_of<T>, x); }

// te expressions whose meaning differs from plain Halide arithmetic; te.cpp documents the difference.

Expr undef(Type), te_inf(Type), te_nan(Type), te_to_int(Type, Expr), te_isnan(Expr), te_max(Expr, Expr), te_min(Expr, Expr);
Expr te_saturated(Type, Expr, Expr zero);
Expr te_max_const(Expr, Expr), te_min_const(Expr, Expr), te_div(Expr, Expr), te_rem(Expr, Expr), te_floordiv(Expr, Expr);
Expr te_mod(Expr, Expr), te_nearest(Expr), te_nearest_small(Expr), te_fma(Expr, Expr, Expr), te_opaque(Expr), te_shl(Expr, Expr);
Expr te_shr(Expr, Expr), te_sign(Expr), te_pow(Expr, Expr), te_decay(Expr), te_tanh(Expr), te_erf(Expr), te_log1p(Expr), te_sin(Expr);
Expr te_to_bf16(Expr), te_add(Expr, Expr), te_sub(Expr, Expr), te_mul(Expr, Expr), te_neg(Expr), te_abs(Expr), te_lt(Expr, Expr);
Expr te_le(Expr, Expr), te_eq(Expr, Expr), te_ne(Expr, Expr), te_nearest_quotient(Expr, float, float, float);
template<typename T> Expr undef() { return undef(type_of<T>); }
template<typename T> Expr te_inf() { return te_inf(type_of<T>); }
template<typename T> Expr te_nan() { return te_nan(type_of<T>); }
template<typename T> Expr te_to_int(Expr x) { return te_to_int(type_of<T>, x); }
template<typename T> Expr te_saturated(Expr x, Expr zero) { return te_saturated(type_of<T>, x, zero); }

// Functions and their schedules.

struct Tuple {
    Expr first, second;
    Tuple(Expr a, Expr b) : first(a), second(b) {}
};
struct Ref : Expr {
    Ref(Node *made) : Expr(made) {}
    Expr operator[](int k) const;
    void operator=(Expr) const;
    void operator=(const Ref &value) const { *this = Expr(value.node); }
    void operator=(Tuple) const;
    void operator+=(Expr) const;
    void operator*=(Expr) const;
};
struct Function;
struct Stage {
    Function *function;
    int number;  // of the update; -1 for the pure definition, less for specializations
    Stage &split(Expr old, Expr outer, Expr inner, Expr factor, TailStrategy tail = TailStrategy::Auto);
    Stage &fuse(Expr inner, Expr outer, Expr fused);
    Stage &vectorize(Expr v), &unroll(Expr v), &parallel(Expr v), &serial(Expr v), &atomic();
    Stage &vectorize(Expr v, int factor, TailStrategy tail = TailStrategy::Auto);
    Stage &unroll(Expr v, int factor, TailStrategy tail = TailStrategy::Auto);
    Stage &parallel(Expr v, int factor, TailStrategy tail = TailStrategy::Auto);
    Stage &reordered(List<Expr> vars);
    template<typename... V> Stage &reorder(V... vars) { return reordered({vars...}); }
    Stage specialize(Expr condition);
};
struct Func : Stage {
    Func(Function *made) : Stage{made, -1} {}
    Func(const char *name);
    Ref at(List<Expr> position) const;
    Ref operator()() const { return at({}); }
    Ref operator()(Expr a) const { return at({a}); }
    Ref operator()(Expr a, Expr b) const { return at({a, b}); }
    Ref operator()(Expr a, Expr b, Expr c) const { return at({a, b, c}); }
    Ref operator()(Expr a, Expr b, Expr c, Expr d) const { return at({a, b, c, d}); }
    Ref operator()(Expr a, Expr b, Expr c, Expr d, Expr e) const { return at({a, b, c, d, e}); }
    template<typename... E> Ref operator()(Expr a, Expr b, Expr c, Expr d, Expr e, E... more) const {
        return at({a, b, c, d, e, more...});
    }
    Stage update(int k = 0) const { return {function, k}; }
    Func &compute_root(), &compute_at(const Func &where, Expr v), &store_root(), &store_at(const Func &where, Expr v);
    Func &bound(Expr v, Expr min, Expr extent), &bound_extent(Expr v, Expr extent), &align_storage(Expr v, Expr n), &align_bounds(Expr v, Expr n),
        &bound_storage(Expr v, Expr n);
    Func &stored(List<Expr> vars);
    template<typename... V> Func &reorder_storage(V... vars) { return stored({vars...}); }
};

// The inputs and outputs of a kernel, in the order of its arguments.

template<typename T, int rank> struct Buffer;
Function *input(const char *name, Type type, int rank);
Function *output(const char *name);
Node *size(const char *name);
template<typename T> struct Input;
template<typename T> struct Output;
template<typename T, int rank> struct Input<Buffer<T, rank>> : Func {
    Input(const char *name) : Func(input(name, type_of<T>, rank)) {}
};
template<> struct Input<int32_t> : Expr {
    Input(const char *name) : Expr(size(name)) {}
};
template<typename T, int rank> struct Output<Buffer<T, rank>> : Func {
    Output(const char *name) : Func(output(name)) {}
};
// A contiguous tensor: extents from the innermost dimension outward.
void te_dense(const Func &tensor, List<Expr> extents);
// A part of a tensor, with its strides.
void te_part(const Func &tensor, List<Expr> extents, List<Expr> strides);

// Prefetches the next panel of a tensor while the tiles that share the current one are computed. Both sizes are in
// bytes; `distance` is from the start of one panel to the next, by default the size of a panel.
void te_fetch_ahead(const Func &tensor, Expr bytes), te_fetch_ahead(const Func &tensor, Expr bytes, Expr distance);
// Prefetches beyond the rows of a tensor that a stage reads: `near` bytes ahead into L1, and `far` bytes ahead into L2.
void te_fetch_beyond(const Func &stage, const Func &tensor, int64_t near, int64_t far = 0);
// Ends a fold after the first step that changes nothing.
void te_settle(const Func &fold, Expr steps);
// Each two products of bytes of a sum in 32 bits fit in 16.
void te_pairs_fit(const Func &sum);
// A sum of products of bytes whose loops are computed by the tiles of AMX.
void te_in_tiles(const Func &sum);

// Generators, by name.

template<typename T> struct Generator {};
struct Registration {
    Registration(const char *name, void (*generate)(const char *name));
};
void compile(const char *name, const char *directory, const char *target);  // to DIRECTORY/NAME.o; errors end the process

}  // namespace te

#ifndef TE_OVER_HALIDE
using namespace te;
#endif
#define HALIDE_REGISTER_GENERATOR(kind, name) static const te::Registration registered_##kind(#name, [](const char *) { kind().generate(); });
