// Runs generators from their text, so that building a model needs no C++ compiler: C++ as emit.py writes it, over te.h.
// A generator's objects are the same, byte for byte, as those of its text compiled (tests/native/test_reader.py).
#pragma once
#include "te.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <unistd.h>
#include <vector>

namespace te {

// Literals are ints and floats until they meet an expression, since C++ computes with two of a kind itself.
struct Value;
using Values = std::vector<Value>;
struct Value {
    enum Kind { integer, real, expr, element, func, stage, domain, tail, pair, list } kind;
    int number = 0;
    float single = 0;
    Node *node = nullptr, *second = nullptr;
    Stage scheduled{};
    void *spans = nullptr;
    TailStrategy strategy = TailStrategy::Auto;
    Values values{};
    Value(int n = 0) : kind(integer), number(n) {}
    Value(float x) : kind(real), single(x) {}
    Value(Expr e) : kind(expr), node(e.node) {}
    Value(Ref r) : kind(element), node(r.node) {}
    Value(Func f) : kind(func), scheduled(f) {}
    Value(Stage s) : kind(stage), scheduled(s) {}
    Value(RDom d) : kind(domain), spans(d.domain) {}
    Value(TailStrategy t) : kind(tail), strategy(t) {}
    Value(Tuple t) : kind(pair), node(t.first.node), second(t.second.node) {}
    Value(Values v) : kind(list), values(v) {}
};

template<typename T> struct Named {
    const char *name;
    T value;
};
template<typename T, size_t count> const T *find(const Named<T> (&table)[count], const std::string &name) {
    for (const Named<T> &n : table) {
        if (name == n.name) return &n.value;
    }
    return nullptr;
}

class Reader {
    const std::string name;
    const char *at;     // the next character
    std::string token;  // the current one: a name, a number, a string with its quotes, or an operator
    std::map<std::string, Value> known;

    [[noreturn]] void fail(const std::string &what) const {
        fprintf(stderr, "%s: %s at `%s%.*s`\n", name.c_str(), what.c_str(), token.c_str(), (int)strcspn(at, "\n"), at);
        fflush(nullptr);
        _exit(1);
    }

    // Tokens

    static bool in_word(char c) { return isalnum((unsigned char)c) || c == '_'; }
    void next() {
        while (isspace((unsigned char)*at) || (at[0] == '/' && at[1] == '/')) at = *at == '/' ? at + strcspn(at, "\n") : at + 1;
        const char *from = at;
        if (isdigit((unsigned char)*at)) {
            while (in_word(*at) || *at == '.' || ((*at == '+' || *at == '-') && at[-1] == 'e')) at++;
        } else if (in_word(*at)) {
            while (in_word(*at)) at++;
        } else if (*at == '"') {
            at += strcspn(at + 1, "\"") + 2;
        } else if (*at) {
            static const char *const pairs[] = {"&&", "||", "<=", ">=", "==", "!=", "+=", "*=", "::"};
            at++;
            for (const char *p : pairs) at += from[0] == p[0] && from[1] == p[1];
        }
        token.assign(from, at);
    }
    bool take(const char *expected) { return token == expected && (next(), true); }
    void expect(const char *expected) {
        if (!take(expected)) fail(std::string("expected `") + expected + "`");
    }
    std::string word() {
        const std::string found = token;
        if (found.empty() || !in_word(found[0])) fail("expected a name");
        return next(), found;
    }
    std::string text() {
        const std::string found = token;
        if (found.size() < 2 || found[0] != '"') fail("expected a string");
        return next(), found.substr(1, found.size() - 2);
    }

    // Values

    const Value &as(Value::Kind kind, const Value &v) const { return v.kind == kind ? v : (fail("a value of another kind"), v); }
    int integer(const Value &v) const { return as(Value::integer, v).number; }
    float real(const Value &v) const { return as(Value::real, v).single; }
    Expr expr(const Value &v) const {
        if (v.kind == Value::integer) return v.number;
        if (v.kind == Value::real) return v.single;
        return v.kind == Value::element ? v.node : as(Value::expr, v).node;
    }
    Ref element(const Value &v) const { return as(Value::element, v).node; }
    Func func(const Value &v) const { return as(Value::func, v).scheduled.function; }
    RDom domain(const Value &v) const { return as(Value::domain, v).spans; }
    std::vector<Expr> exprs(const Values &values, size_t from = 0) const {
        std::vector<Expr> made;
        for (size_t k = from; k < values.size(); k++) made.push_back(expr(values[k]));
        return made;
    }
    Stage stage(const Value &v) const {
        return v.kind == Value::func ? v.scheduled : as(Value::stage, v).scheduled;
    }
    TailStrategy tail(const Values &a, size_t k) const { return k < a.size() ? as(Value::tail, a[k]).strategy : TailStrategy::Auto; }
    Type type() {
        static const Named<Type> types[]{
            {"double", Type::f64}, {"float", Type::f32}, {"float16_t", Type::f16}, {"bfloat16_t", Type::bf16}, {"bool", Type::boolean},
            {"int64_t", Type::i64}, {"int32_t", Type::i32}, {"int", Type::i32}, {"int16_t", Type::i16}, {"int8_t", Type::i8},
            {"uint64_t", Type::u64}, {"uint32_t", Type::u32}, {"uint16_t", Type::u16}, {"uint8_t", Type::u8}};
        const Type *found = find(types, token);
        if (!found) fail("expected a type");
        return next(), *found;
    }

    // Expressions

    Value number(const std::string &sign) {
        const std::string digits = sign + token;
        next();
        if (digits.find_first_of(".e") != std::string::npos || digits.back() == 'f') {
            return digits.back() == 'f' ? Value(strtof(digits.c_str(), nullptr)) : Value(Expr(strtod(digits.c_str(), nullptr)));
        }
        const int64_t n = strtoll(digits.c_str(), nullptr, 10);
        return n == (int)n && digits.back() != 'L' ? Value((int)n) : Value(Expr(n));
    }
    // int64_t(N) and uint64_t(N)
    Value wide_number(bool has_sign) {
        expect("(");
        if (take("INT64_MIN")) return expect(")"), Expr(INT64_MIN);
        const std::string sign = take("-") ? "-" : "", digits = sign + word();
        expect(")");
        return has_sign ? Expr((int64_t)strtoll(digits.c_str(), nullptr, 10)) : Expr((uint64_t)strtoull(digits.c_str(), nullptr, 10));
    }
    Values list(const char *closing) {
        Values found;
        while (!take(closing)) {
            if (!found.empty()) expect(",");
            found.push_back(take("{") ? Value(list("}")) : binary(0));
        }
        return found;
    }

    template<typename T> static bool compute(const std::string &sign, T a, T b, Value &result) {
        if (sign == "+") return result = a + b, true;
        if (sign == "-") return result = a - b, true;
        if (sign == "*") return result = a * b, true;
        return false;
    }
    struct Operator {
        int rank;
        Expr (*apply)(Expr, Expr);
    };
    Value binary(int rank) {
#define OPERATOR(rank, sign) {#sign, {rank, [](Expr a, Expr b) { return a sign b; }}}
        static const Named<Operator> operators[]{
            OPERATOR(1, ||), OPERATOR(2, &&), OPERATOR(3, |), OPERATOR(4, ^), OPERATOR(5, &), OPERATOR(6, ==), OPERATOR(6, !=), OPERATOR(7, <),
            OPERATOR(7, <=), OPERATOR(7, >), OPERATOR(7, >=), OPERATOR(8, +), OPERATOR(8, -), OPERATOR(9, *), OPERATOR(9, /), OPERATOR(9, %)};
        Value left = unary();
        for (;;) {
            const Operator *found = find(operators, token);
            if (!found || found->rank <= rank) return left;
            const std::string sign = token;
            next();
            const Value right = binary(found->rank);
            const bool ints = left.kind == Value::integer && right.kind == Value::integer;
            const bool floats = left.kind == Value::real && right.kind == Value::real;
            if (ints && compute(sign, left.number, right.number, left)) continue;
            if (floats && compute(sign, left.single, right.single, left)) continue;
            left = found->apply(expr(left), expr(right));
        }
    }
    Value unary() {
        if (take("-")) return isdigit((unsigned char)token[0]) ? number("-") : Value(-expr(unary()));
        if (take("!")) return !expr(unary());
        if (take("~")) return ~expr(unary());
        Value found = primary();
        for (;;) {
            if (take("[")) {
                const int k = integer(binary(0));
                expect("]");
                found = found.kind == Value::domain ? Value(Expr(domain(found)[k])) : Value(element(found)[k]);
            } else if (take(".")) {
                const std::string method = word();
                expect("(");
                found = call(found, method, list(")"));
            } else {
                return found;
            }
        }
    }
    Value primary() {
        if (take("(")) {
            Value found = binary(0);
            return expect(")"), found;
        }
        if (isdigit((unsigned char)token[0])) return number("");
        const std::string called = word();
        if (const auto found = known.find(called); found != known.end()) {
            if (found->second.kind != Value::func || !take("(")) return found->second;
            const std::vector<Expr> position = exprs(list(")"));
            return func(found->second).at({position.data(), position.size()});
        }
        if (called == "TailStrategy") return expect("::"), tail_named(word());
        if (called == "int64_t" || called == "uint64_t") return wide_number(called[0] == 'i');
        if (take("<")) {
            const Type kind = type();
            expect(">"), expect("(");
            return typed(called, kind, list(")"));
        }
        expect("(");
        return function(called, list(")"));
    }
    TailStrategy tail_named(const std::string &called) const {
        using T = TailStrategy;
        static const Named<T> tails[]{{"RoundUp", T::RoundUp}, {"GuardWithIf", T::GuardWithIf}, {"Predicate", T::Predicate},
            {"PredicateLoads", T::PredicateLoads}, {"PredicateStores", T::PredicateStores}, {"ShiftInwards", T::ShiftInwards}, {"Auto", T::Auto}};
        if (const T *found = find(tails, called)) return *found;
        fail("no such tail");
    }
    Value typed(const std::string &called, Type kind, const Values &a) const {
        if (called == "undef") return undef(kind);
        if (called == "te_inf") return te_inf(kind);
        if (called == "te_nan") return te_nan(kind);
        if (called == "te_saturated" && a.size() == 2) return te_saturated(kind, expr(a[0]), expr(a[1]));
        if (a.size() != 1) fail("expected one operand");
        if (called == "cast") return cast(kind, expr(a[0]));
        if (called == "reinterpret") return reinterpret(kind, expr(a[0]));
        if (called == "te_to_int") return te_to_int(kind, expr(a[0]));
        fail("no function `" + called + "`");
    }
    Value function(const std::string &called, const Values &a) const {
        static const Named<Expr (*)(Expr)> unaries[]{
#define NAMED(f) {#f, f}
            NAMED(strict_float), NAMED(likely), NAMED(abs), NAMED(sqrt), NAMED(tan), NAMED(sinh), NAMED(cosh), NAMED(asinh), NAMED(acosh),
            NAMED(atanh), NAMED(floor), NAMED(ceil), NAMED(trunc), NAMED(round), NAMED(popcount), NAMED(te_exp), NAMED(te_log), NAMED(te_cos),
            NAMED(te_asin), NAMED(te_acos), NAMED(te_atan), NAMED(te_isinf), NAMED(te_isnan), NAMED(te_nearest), NAMED(te_nearest_small),
            NAMED(te_opaque), NAMED(te_sign), NAMED(te_decay), NAMED(te_tanh), NAMED(te_erf), NAMED(te_log1p), NAMED(te_sin), NAMED(te_to_bf16),
            NAMED(te_neg), NAMED(te_abs), {"Expr", [](Expr e) { return e; }}};
        static const Named<Expr (*)(Expr, Expr)> binaries[]{
            NAMED(min), NAMED(max), NAMED(atan2), NAMED(te_max), NAMED(te_min), NAMED(te_max_const), NAMED(te_min_const), NAMED(te_div),
            NAMED(te_rem), NAMED(te_floordiv), NAMED(te_mod), NAMED(te_shl), NAMED(te_shr), NAMED(te_pow), NAMED(te_add), NAMED(te_sub),
            NAMED(te_mul), NAMED(te_lt), NAMED(te_le), NAMED(te_eq), NAMED(te_ne)};
        static const Named<Expr (*)(Expr, Expr, Expr)> ternaries[]{NAMED(select), NAMED(clamp), NAMED(te_fma)};
        static const Named<Expr (*)()> constants[]{NAMED(const_true), NAMED(const_false)};
        if (auto f = find(constants, called); f && a.size() == 0) return (*f)();
        if (auto f = find(unaries, called); f && a.size() == 1) return (*f)(expr(a[0]));
        if (auto f = find(binaries, called); f && a.size() == 2) return (*f)(expr(a[0]), expr(a[1]));
        if (auto f = find(ternaries, called); f && a.size() == 3) return (*f)(expr(a[0]), expr(a[1]), expr(a[2]));
        if (a.size() == 2 && called == "Tuple") return Tuple(expr(a[0]), expr(a[1]));
        if (a.size() == 4 && called == "te_nearest_quotient") return te_nearest_quotient(expr(a[0]), real(a[1]), real(a[2]), real(a[3]));
        if (a.empty() || a[0].kind != Value::func) fail("no function `" + called + "` of such operands");
        return directive(called, func(a[0]), a);
    }

    // Schedules

    Value directive(const std::string &called, const Func &f, const Values &a) const {
        auto all = [&](size_t k) { return exprs(as(Value::list, a.at(k)).values); };
        auto list_of = [](const std::vector<Expr> &v) { return List<Expr>(v.data(), v.size()); };
        if (called == "te_dense" && a.size() == 2) te_dense(f, list_of(all(1)));
        else if (called == "te_part" && a.size() == 3) te_part(f, list_of(all(1)), list_of(all(2)));
        else if (called == "te_fetch_ahead" && a.size() == 2) te_fetch_ahead(f, expr(a[1]));
        else if (called == "te_fetch_ahead" && a.size() == 3) te_fetch_ahead(f, expr(a[1]), expr(a[2]));
        else if (called == "te_fetch_beyond" && a.size() == 3) te_fetch_beyond(f, func(a[1]), integer(a[2]));
        else if (called == "te_fetch_beyond" && a.size() == 4) te_fetch_beyond(f, func(a[1]), integer(a[2]), integer(a[3]));
        else if (called == "te_settle" && a.size() == 2) te_settle(f, expr(a[1]));
        else if (called == "te_pairs_fit") te_pairs_fit(f);
        else if (called == "te_in_tiles") te_in_tiles(f);
        else fail("no function `" + called + "` of such operands");
        return 0;
    }
    Value call(const Value &object, const std::string &method, const Values &a) const {
        const std::vector<Expr> vars = object.kind == Value::func && method.find("_at") != std::string::npos ? exprs(a, 1) : loops(a);
        auto is = [&](const char *called, size_t count) { return method == called && a.size() == count; };
        if (object.kind == Value::domain) {
            if (!is("where", 1)) fail("no method `" + method + "`");
            return domain(object).where(vars[0]), 0;
        }
        Stage s = stage(object);
        if (is("update", 1)) return func(object).update(integer(a[0]));
        if (is("specialize", 1)) return s.specialize(vars[0]);
        if (is("split", 4) || is("split", 5)) s.split(vars[0], vars[1], vars[2], vars[3], tail(a, 4));
        else if (is("fuse", 3)) s.fuse(vars[0], vars[1], vars[2]);
        else if (is("vectorize", 1)) s.vectorize(vars[0]);
        else if (is("unroll", 1)) s.unroll(vars[0]);
        else if (is("parallel", 1)) s.parallel(vars[0]);
        else if (is("serial", 1)) s.serial(vars[0]);
        else if (is("atomic", 0)) s.atomic();
        else if (method == "vectorize") s.vectorize(vars[0], integer(a[1]), tail(a, 2));
        else if (method == "unroll") s.unroll(vars[0], integer(a[1]), tail(a, 2));
        else if (method == "parallel") s.parallel(vars[0], integer(a[1]), tail(a, 2));
        else if (method == "reorder") s.reordered({vars.data(), vars.size()});
        else place(func(object), method, a, vars);
        return s;
    }
    void place(Func f, const std::string &method, const Values &a, const std::vector<Expr> &vars) const {
        auto is = [&](const char *called, size_t count) { return method == called && a.size() == count; };
        if (is("compute_root", 0)) f.compute_root();
        else if (is("store_root", 0)) f.store_root();
        else if (is("compute_at", 2)) f.compute_at(func(a[0]), vars[0]);
        else if (is("store_at", 2)) f.store_at(func(a[0]), vars[0]);
        else if (is("bound", 3)) f.bound(vars[0], vars[1], vars[2]);
        else if (is("bound_extent", 2)) f.bound_extent(vars[0], vars[1]);
        else if (is("align_storage", 2)) f.align_storage(vars[0], vars[1]);
        else if (is("bound_storage", 2)) f.bound_storage(vars[0], vars[1]);
        else if (is("align_bounds", 2)) f.align_bounds(vars[0], vars[1]);
        else if (method == "reorder_storage") f.stored({vars.data(), vars.size()});
        else fail("no method `" + method + "` of such operands");
    }
    // Operands of a directive, up to its tail.
    std::vector<Expr> loops(const Values &a) const {
        const bool has_tail = !a.empty() && a.back().kind == Value::tail;
        return exprs(has_tail ? Values(a.begin(), a.end() - 1) : a);
    }

    // Statements

    // `Input<Buffer<float, 3>> p0{"p0"};` or `Input<int32_t> N{"N"};` or `Output<...`
    void member(bool is_input) {
        expect("<");
        const bool is_buffer = take("Buffer");
        if (is_buffer) expect("<");
        const Type kind = type();
        const int rank = is_buffer && take(",") ? integer(number("")) : 0;
        if (is_buffer) expect(">");
        expect(">");
        const std::string called = word();
        known[called] = !is_input ? Value(Func(output(called.c_str()))) : is_buffer ? Value(Func(input(called.c_str(), kind, rank))) : Value(Expr(size(called.c_str())));
        while (!take(";")) next();
    }
    // `Var i0("i0"), i1("i1")`, or the like
    template<typename Make> void declare(Make make) {
        do {
            const std::string called = word();
            make(called);
        } while (take(","));
    }
    bool declaration() {
        auto named = [&] { return expect("("), text(); };
        if (take("Var")) return declare([&](auto &v) { known[v] = Value(Expr(Var(named().c_str()))), expect(")"); }), true;
        if (take("Func")) return declare([&](auto &f) { known[f] = Func(named().c_str()), expect(")"); }), true;
        if (take("RVar")) return declare([&](auto &v) {
            if (take("=")) known[v] = binary(0);
            else known[v] = Value(Expr(RVar(named().c_str()))), expect(")");
        }), true;
        if (take("Expr")) return declare([&](auto &e) { expect("="), known[e] = Value(expr(binary(0))); }), true;
        if (take("Stage")) return declare([&](auto &s) { expect("="), known[s] = binary(0); }), true;
        if (take("RDom")) return declare([&](auto &d) {
            expect("("), expect("{");
            std::vector<Span> spans;
            for (const Value &s : list("}")) spans.push_back({expr(as(Value::list, s).values.at(0)), expr(as(Value::list, s).values.at(1))});
            expect(",");
            known[d] = RDom({spans.data(), spans.size()}, text().c_str());
            expect(")");
        }), true;
        return false;
    }
    void statement() {
        if (!declaration()) {
            const Value left = unary();
            if (take("=")) {
                const Value right = binary(0);
                if (right.kind == Value::pair) element(left) = Tuple(right.node, right.second);
                else element(left) = expr(right);
            } else if (take("+=")) element(left) += expr(binary(0));
            else if (take("*=")) element(left) *= expr(binary(0));
        }
        expect(";");
    }

public:
    // `text` is that of a generator, from its name in `class NAME : public Generator<NAME> {` on.
    Reader(const char *text, const std::string &name) : name(name), at(text) { next(); }
    void generate() {
        while (!take("{")) next();
        expect("public"), expect(":");
        for (;;) {
            if (take("Input")) member(true);
            else if (take("Output")) member(false);
            else break;
        }
        expect("void"), expect("generate"), expect("("), expect(")"), expect("{");
        while (!take("}")) statement();
    }

    // Generators of texts, by name.
    static std::map<std::string, const char *> &texts() {
        static std::map<std::string, const char *> found;
        return found;
    }
    // Registers the generators of a file; whether there is such a file.
    static bool load(const char *path) {
        FILE *file = fopen(path, "r");
        if (!file) return false;
        std::string read;
        for (int c; (c = getc(file)) != EOF;) read += (char)c;
        fclose(file);
        const char *at = strdup(read.c_str());  // kept until the process ends
        while ((at = strstr(at, "\nclass "))) {
            const char *from = at += 7;
            while (in_word(*at)) at++;
            const std::string name(from, at);
            texts()[name] = at;
            Registration(strdup(name.c_str()), [](const char *called) { Reader(texts().at(called), called).generate(); });
        }
        return true;
    }
};

}  // namespace te
