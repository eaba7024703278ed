// A lowering pass for x86: codes of two vectors are packed into bytes together.
//
// `vpackssdw` and `vpackuswb` take two vectors each. With one vector, its halves are the two, and then half of what is
// packed is unused; with two, of a row or of neighbouring rows, four instructions make 16 codes.
#pragma once
#include "Halide.h"
#include <vector>

namespace whole {

using namespace Halide::Internal;
using Halide::Expr;

class PackedCodes : public IRMutator {
    using Lets = std::vector<const LetStmt *>;

    // A statement that stores integers saturated in 8 bits: the values that it names, those integers, and what is added
    // to them in 16 bits.
    struct Codes {
        Lets lets;
        const Store *store = nullptr;
        Expr whole, zero;
    };

    static Codes codes_of(const Stmt &s) {
        Codes found;
        const Stmt *rest = &s;
        for (const LetStmt *let; (let = rest->as<LetStmt>()); rest = &let->body) found.lets.push_back(let);
        const Store *op = rest->as<Store>();
        if (!op || !op->value.type().is_vector() || op->value.type().bits() != 8 || !is_const_one(op->predicate)) return {};
        const Call *code = Call::as_intrinsic(op->value, {Call::saturating_cast});
        const Call *sum = code ? Call::as_intrinsic(code->args[0], {Call::saturating_add}) : nullptr;
        const Call *half = code ? Call::as_intrinsic(sum ? sum->args[0] : code->args[0], {Call::saturating_cast}) : nullptr;
        if (!half || half->args[0].type().bits() != 32 || (sum && !sum->args[1].as<Broadcast>())) return {};
        found.store = op;
        if (sum) found.zero = sum->args[1].as<Broadcast>()->value;
        found.whole = half->args[0];
        return found;
    }

    static Stmt stored(const Store *op, const Expr &codes, int first) {
        const Expr value = Shuffle::make_slice(codes, first, 1, op->value.type().lanes());
        return Store::make(op->name, value, op->index, op->param, op->predicate, op->alignment);
    }

    static Stmt together(const Codes &a, const Codes &b) {
        const int lanes = a.whole.type().lanes();
        Expr half = Halide::saturating_cast(Halide::Int(16, 2 * lanes), Shuffle::make_concat({a.whole, b.whole}));
        if (a.zero.defined()) half = Halide::saturating_add(half, Broadcast::make(a.zero, 2 * lanes));
        const Expr packed = Halide::saturating_cast(a.store->value.type().with_lanes(2 * lanes), half);
        const std::string name = unique_name("packed");
        const Expr codes = Variable::make(packed.type(), name);
        Stmt made = LetStmt::make(name, packed, Block::make(stored(a.store, codes, 0), stored(b.store, codes, lanes)));
        for (const Lets &lets : {b.lets, a.lets}) {
            for (auto let = lets.rbegin(); let != lets.rend(); let++) made = LetStmt::make((*let)->name, (*let)->value, made);
        }
        return made;
    }

    // The second statement's values are computed before the first one stores: they read nothing of what that writes.
    static bool fit(const Codes &a, const Codes &b) {
        if (!a.store || !b.store || a.whole.type() != b.whole.type() || a.store->name != b.store->name) return false;
        const Ramp *first = a.store->index.as<Ramp>(), *second = b.store->index.as<Ramp>();
        if (!first || !second || !as_const_int(simplify(second->base - first->base))) return false;
        for (const LetStmt *x : a.lets) {  // copies of an unrolled loop may use a name for different values
            for (const LetStmt *y : b.lets) {
                if (x->name == y->name) return false;
            }
        }
        return a.zero.defined() ? b.zero.defined() && equal(a.zero, b.zero) : !b.zero.defined();
    }

    using IRMutator::visit;
    Stmt visit(const Block *op) override {
        std::vector<Stmt> all, made;
        for (Stmt rest = op; rest.defined();) {
            const Block *block = rest.as<Block>();
            all.push_back(block ? block->first : rest);
            rest = block ? block->rest : Stmt();
        }
        for (size_t k = 0; k < all.size(); k++) {
            const Codes here = codes_of(all[k]), next = k + 1 < all.size() ? codes_of(all[k + 1]) : Codes();
            if (fit(here, next)) k++, made.push_back(together(here, next));
            else made.push_back(mutate(all[k]));
        }
        return Block::make(made);
    }
};

}  // namespace whole
