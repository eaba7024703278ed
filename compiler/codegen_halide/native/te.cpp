// Implements te.h over Halide.
#define TE_OVER_HALIDE
#include "te.h"

// Skips parts of Halide.h about how Halide compiles, which take a tenth of the C++ compiler's time and memory.
#define HALIDE_ASSOCIATIVITY_H
#define HALIDE_DERIVATIVE_H
#define HALIDE_EXPR_USES_VAR_H
#define HALIDE_IR_MATCH_H
#define HALIDE_CODEGEN_LLVM_H
#define HALIDE_CODEGEN_POSIX_H
#define HALIDE_ELF_H
#include "Halide.h"
#include "arithmetic.h"
#include "border_loads.h"
#include "fetch_ahead.h"
#include "fetch_beyond.h"
#include "byte_pairs.h"
#include "dense_rows.h"
#include "lane_sums.h"
#include "mends.h"
#include "packed_codes.h"
#include "repeats.h"
#include "settle.h"
#include "tap_pairs.h"
#include "tiles.h"
#include "unroll_late.h"
#include "used_lanes.h"
#include "whole_loops.h"
#include "whole_vectors.h"
#include <map>
#include <optional>
#include <set>
#include <unistd.h>

namespace te {

// What an Expr points to. An element of a Func becomes an expression when it is read: a Func that is being written has
// no definition yet.
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
    std::vector<Halide::Stage> special;  // specializations, numbered from -2 down
    const Function *host = nullptr;      // the Func and the loop that it is computed in
    std::string loop = "";
};

namespace {

Halide::Expr whole_of(Expr e) { return e.node->element ? Halide::Expr(*e.node->element) : e.node->value; }
const Halide::VarOrRVar &variable_of(Expr e) { return *e.node->variable; }
Node *made(const Halide::Expr &e) { return new Node{e}; }

std::vector<Halide::Expr> all_of(List<Expr> list) {
    std::vector<Halide::Expr> found;
    for (Expr e : list) found.push_back(whole_of(e));
    return found;
}

std::vector<Halide::VarOrRVar> variables_of(List<Expr> list) {
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

// The kernel being built: its arguments and results in order.
std::vector<Halide::Argument> arguments;
std::vector<Halide::Func> results;
std::vector<const Function *> functions;  // all computed ones
bool pitch_of_run = false;  // whether the row pitch of an operand is only known at run time
std::map<std::string, whole::Panel> panels;  // prefetched panels, by tensor
whole::FetchBeyond::Distances distances;  // prefetch distances beyond the rows that are read, in bytes
whole::Settle::Loops settling;
std::set<std::string> fitting_pairs, in_tiles;

std::map<std::string, void (*)(const char *)> &generators() {
    static std::map<std::string, void (*)(const char *)> known;
    return known;
}

// The definition that is scheduled: a Func's pure one, an update, or a specialization.
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
RDom::RDom(List<Span> spans, const char *name) {
    Halide::Region region;
    for (const Span &s : spans) region.emplace_back(whole_of(s.min), whole_of(s.extent));
    domain = new Halide::RDom(region, name);
}
void RDom::where(Expr condition) { ((Halide::RDom *)domain)->where(whole_of(condition)); }
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
UNARY(te_log, whole::te_log) UNARY(tan, Halide::tan)
UNARY(sinh, Halide::sinh) UNARY(cosh, Halide::cosh)
UNARY(asinh, Halide::asinh) UNARY(acosh, Halide::acosh) UNARY(atanh, Halide::atanh) UNARY(floor, Halide::floor)
UNARY(ceil, Halide::ceil) UNARY(trunc, Halide::trunc) UNARY(round, Halide::round)
BINARY(atan2, Halide::atan2) UNARY(popcount, Halide::popcount) UNARY(te_isnan, whole::te_isnan) UNARY(te_isinf, whole::te_isinf)
BINARY(te_add, whole::te_add) BINARY(te_sub, whole::te_sub) BINARY(te_mul, whole::te_mul) UNARY(te_neg, whole::te_neg) UNARY(te_abs, whole::te_abs)
BINARY(te_lt, whole::te_lt) BINARY(te_le, whole::te_le) BINARY(te_eq, whole::te_eq) BINARY(te_ne, whole::te_ne)
BINARY(te_max, whole::te_max) BINARY(te_min, whole::te_min)
BINARY(te_max_const, whole::te_max_const) BINARY(te_min_const, whole::te_min_const) BINARY(te_div, whole::te_div)
BINARY(te_rem, whole::te_rem) BINARY(te_floordiv, whole::te_floordiv) BINARY(te_mod, whole::te_mod)
UNARY(te_nearest, whole::te_nearest) UNARY(te_nearest_small, whole::te_nearest_small)
UNARY(te_opaque, whole::te_opaque) BINARY(te_shl, whole::te_shl)
BINARY(te_shr, whole::te_shr) UNARY(te_sign, whole::te_sign) BINARY(te_pow, whole::te_pow) UNARY(te_decay, whole::te_decay)
UNARY(te_to_bf16, whole::te_to_bf16) UNARY(te_tanh, whole::te_tanh) UNARY(te_erf, whole::te_erf)
UNARY(te_log1p, whole::te_log1p) UNARY(te_sin, whole::te_sin) UNARY(te_cos, whole::te_cos)
Expr te_nearest_quotient(Expr x, float divisor, float low, float high) {
    return made(whole::te_nearest_quotient(whole_of(x), divisor, low, high));
}
UNARY(te_asin, whole::te_asin) UNARY(te_acos, whole::te_acos) UNARY(te_atan, whole::te_atan)

Expr min(Expr a, Expr b) {
    if (b.node->number) return made(Halide::min(whole_of(a), *b.node->number));
    return made(a.node->number ? Halide::min(*a.node->number, whole_of(b)) : Halide::min(whole_of(a), whole_of(b)));
}
Expr max(Expr a, Expr b) {
    if (b.node->number) return made(Halide::max(whole_of(a), *b.node->number));
    return made(a.node->number ? Halide::max(*a.node->number, whole_of(b)) : Halide::max(whole_of(a), whole_of(b)));
}
Expr clamp(Expr x, Expr low, Expr high) { return made(Halide::clamp(whole_of(x), whole_of(low), whole_of(high))); }

// Whether a condition depends on sizes only.
struct OfSizes : Halide::Internal::IRVisitor {
    bool found = true;
    using IRVisitor::visit;
    void visit(const Halide::Internal::Variable *v) override { found &= v->param.defined(); }
    void visit(const Halide::Internal::Call *) override { found = false; }
};

// A condition in the form that Halide's simplifier keeps. In the loops of a variant Halide looks for the variant's
// condition in the choice between two stages, and keeps a condition that it does not recognise.
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
Expr te_saturated(Type t, Expr x, Expr zero) { return made(whole::te_saturated(type_from(t), whole_of(x), *zero.node->number)); }

// Functions

Func::Func(const char *name) : Stage{new Function{Halide::Func(name)}, -1} { functions.push_back(function); }
Ref Func::at(List<Expr> position) const {
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
Stage &Stage::reordered(List<Expr> vars) { return definition(*this).reorder(variables_of(vars)), *this; }

Stage Stage::specialize(Expr condition) {
    function->special.push_back(function->func.specialize(stated(whole_of(condition))));
    return {function, -1 - (int)function->special.size()};
}

Func &Func::compute_root() { return function->func.compute_root(), *this; }
Func &Func::store_root() { return function->func.store_root(), *this; }
Func &Func::compute_at(const Func &where, Expr v) {
    function->host = where.function;
    function->loop = variable_of(v).name();
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
Func &Func::stored(List<Expr> vars) {
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
// Whether the row pitch of an operand is only known at run time.
static void note_pitch(const Func &tensor, const Halide::Expr &stride) {
    if (tensor.function->image && !Halide::Internal::as_const_int(Halide::Internal::simplify(stride))) pitch_of_run = true;
}
void te_dense(const Func &tensor, List<Expr> extents) {
    Halide::OutputImageParam buffer = buffer_of(tensor);
    Halide::Expr stride = 1;
    int k = 0;
    for (Expr e : extents) {
        Halide::Expr extent = whole_of(e);
        buffer.dim(k++).set_bounds(0, extent).set_stride(stride);
        note_pitch(tensor, stride);
        stride = stride * extent;
    }
}
void te_part(const Func &tensor, List<Expr> extents, List<Expr> strides) {
    Halide::OutputImageParam buffer = buffer_of(tensor);
    for (size_t k = 0; k < extents.count; k++) {
        buffer.dim(k).set_bounds(0, whole_of(extents.first[k])).set_stride(whole_of(strides.first[k]));
        note_pitch(tensor, whole_of(strides.first[k]));
    }
}

void te_fetch_ahead(const Func &tensor, Expr bytes, Expr distance) {
    panels[tensor.function->image->name()] = {whole_of(bytes), whole_of(distance)};
}
void te_fetch_ahead(const Func &tensor, Expr bytes) { te_fetch_ahead(tensor, bytes, bytes); }
void te_fetch_beyond(const Func &stage, const Func &tensor, int64_t near, int64_t far) {
    distances[{stage.function->func.name(), tensor.function->image->name()}] = {near, far};
}

void te_pairs_fit(const Func &sum) { fitting_pairs.insert(sum.function->func.name()); }
void te_in_tiles(const Func &sum) { in_tiles.insert(sum.function->func.name()); }

void te_settle(const Func &fold, Expr steps) {
    const std::string name = fold.function->func.name();
    settling[name + ".s1." + variable_of(steps).name()] = name;
}

Registration::Registration(const char *name, void (*generate)(const char *)) { generators()[name] = generate; }

// LLVM's machine scheduler loads all unrolled terms of a row as soon as the row's address is computed, to free the
// address register. With prefetches too, registers run out, and nearly all of eight terms of eight rows are spilled. In
// program order none is: 784 rows by [512, 256] on Sapphire Rapids 1.35 --> 1.16 ms, 1.13 with constant sizes and row
// addresses. Without prefetches the scheduler is faster by up to a tenth.
//
// Program order loads the weights of two terms at once. Where 12 of 16 registers are sums, one is spilled in each step,
// and the scheduler is better, but not for transforms of tiles: ShuffleNet, x86-64-v3 on Zen 4, 5.13 --> 4.62 ms.
static void keep_order_of_instructions() {
    const char *given = getenv("HL_LLVM_ARGS");
    setenv("HL_LLVM_ARGS", (std::string("-enable-misched=0") + (given ? std::string(" ") + given : "")).c_str(), 1);
}

void compile(const char *name, const char *directory, const char *target) {
    static struct : Halide::CompileTimeErrorReporter {
        void warning(const char *) override {}
        void error(const char *message) override {  // ends the process at once, since this is compiled without exceptions
            fprintf(stderr, "%s\n", message);
            fflush(nullptr);
            _exit(1);
        }
    } reporter;
    Halide::set_custom_compile_time_error_reporter(&reporter);
    const std::string path = std::string(directory) + "/" + name + ".o";
    const auto known = generators().find(name);
    if (known != generators().end()) {
        whole::fuses_multiply_adds = whole::fuses(Halide::Target(target));
        whole::packs_codes = whole::packs(Halide::Target(target));
        whole::stores_masked = Halide::Target(target).has_feature(Halide::Target::AVX512);
        known->second(name);
        bool has_sum = false, has_transform = false;
        for (const Function *f : functions) {
            has_sum |= whole::is_long_sum(f->func.function());
            has_transform |= f->host && whole::is_unrolled_tile(f->func.function());
        }
        for (const Function *made : functions) {
            const auto &function = made->func.function();
            if (!whole::is_long_sum(function) && !(has_sum && whole::is_unrolled_tile(function))) continue;
            for (const Function *f = made; f->host; f = f->host) whole::keep_whole(f->host->func.function(), f->loop);
        }
        whole::UnrollLate::Loops rolled;
        for (const Function *f : functions) {
            if (f->host && whole::is_long_sum(f->func.function())) whole::keep_rolled(f->func.function(), rolled);
        }
        Halide::Pipeline pipeline(results);
        if (!rolled.empty()) pipeline.add_custom_lowering_pass(new whole::UnrollLate(rolled));
        pipeline.add_custom_lowering_pass(new whole::UsedLanes());
        pipeline.add_custom_lowering_pass(new whole::Wraps());
        if (Halide::Target(target).arch == Halide::Target::X86) {
            const bool has_avx512 = Halide::Target(target).has_feature(Halide::Target::AVX512);
            if (pitch_of_run && !panels.empty() && (has_avx512 || has_transform)) keep_order_of_instructions();
            pipeline.add_custom_lowering_pass(new whole::DenseRows());
            pipeline.add_custom_lowering_pass(new whole::BorderLoads(Halide::Target(target)));
            pipeline.add_custom_lowering_pass(new whole::BytePairs(fitting_pairs));
            pipeline.add_custom_lowering_pass(new whole::LaneSums());
            if (!has_avx512) pipeline.add_custom_lowering_pass(new whole::WholeVectors());
            if (!has_avx512) pipeline.add_custom_lowering_pass(new whole::TapPairs());
            if (whole::packs_codes) pipeline.add_custom_lowering_pass(new whole::PackedCodes());
        }
        if (!panels.empty()) pipeline.add_custom_lowering_pass(new whole::FetchAhead(panels, Halide::Target(target)));
        if (!distances.empty()) pipeline.add_custom_lowering_pass(new whole::FetchBeyond(distances));
        if (!in_tiles.empty()) pipeline.add_custom_lowering_pass(new whole::Tiles(in_tiles));
        if (!settling.empty()) pipeline.add_custom_lowering_pass(new whole::Settle(settling));
        const whole::Mends mends{Halide::Target(target)};
        if (mends.needed()) pipeline.add_custom_lowering_pass(new whole::Mends(mends));
        const auto linkage = Halide::LinkageType::ExternalPlusArgv;  // nobody asks a kernel for its metadata
        pipeline.compile_to_module(arguments, name, Halide::Target(target), linkage).compile({{Halide::OutputFileType::object, path}});
        return;
    }
    Halide::Internal::ExecuteGeneratorArgs args;  // one that uses all of Halide
    args.output_dir = directory;
    args.output_types = {Halide::OutputFileType::object};
    args.targets = {Halide::Target(target)};
    args.generator_name = args.function_name = args.file_base_name = name;
    Halide::Internal::execute_generator(args);
}

}  // namespace te
