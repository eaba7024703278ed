// A lowering pass: loads of lanes that are neighbours in memory become loads of a row.
//
// Where two loads share an index, as both halves of a weight of crossed products do, Halide computes the index once,
// as a vector of lanes, and then no longer sees that they are a row: it would load bytes one by one.
#pragma once
#include "Halide.h"

namespace whole {

using namespace Halide::Internal;
using Halide::Expr;

class DenseRows : public IRMutator {
    Scope<Expr> values;  // of the variables around that indices are sums of: vectors, and sums and products

    struct Inlined : IRMutator {
        const Scope<Expr> &values;
        explicit Inlined(const Scope<Expr> &values) : values(values) {}
        using IRMutator::visit;
        Expr visit(const Variable *v) override { return values.contains(v->name) ? mutate(values.get(v->name)) : Expr(v); }
    };

    template<typename L>
    auto with_value(const L *op) {
        const Expr &value = op->value;
        const bool is_affine = value.as<Add>() || value.as<Sub>() || value.as<Mul>() || value.type().is_vector();
        ScopedBinding<Expr> bind(is_affine && value.type().element_of() == Halide::Int(32), values, op->name, value);
        return IRMutator::visit(op);
    }

    // The first index of lanes in order, undefined for others.
    Expr first_of(const Expr &lanes) {
        const Expr index = substitute_in_all_lets(Inlined(values).mutate(lanes));
        const Expr first = Halide::Internal::simplify(lower_intrinsics(extract_lane(index, 0)));
        for (int k = 1; k < index.type().lanes(); k++) {
            if (!is_const(Halide::Internal::simplify(lower_intrinsics(extract_lane(index, k)) - first), k)) return Expr();
        }
        return first;
    }

    using IRMutator::visit;
    Expr visit(const Let *op) override { return with_value(op); }
    Stmt visit(const LetStmt *op) override { return with_value(op); }

    Expr visit(const Load *op) override {
        const bool is_bytes = op->type.is_vector() && op->type.bits() <= 16 && is_const_one(op->predicate);
        const Expr first = is_bytes && !op->index.as<Ramp>() ? first_of(op->index) : Expr();
        if (!first.defined()) return IRMutator::visit(op);
        const int lanes = op->type.lanes();
        return Load::make(op->type, op->name, Ramp::make(first, 1, lanes), op->image, op->param, op->predicate, ModulusRemainder());
    }
};

}  // namespace whole
