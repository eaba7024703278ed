// A lowering pass: stores a vector under a mask only where it is neither whole nor a half or a quarter of one.
//
// Without AVX-512, AMD's processors take 12 cycles for a store under a mask, whatever the mask (Zen 4: 3.4 ns, 0.5
// without). Of the last panel of a product with 68 columns, in vectors of 8, two are whole and one is a half: a
// ShuffleNet takes 0.95 of the time. Kernels with such panels take 1.1 to 1.2 times as long to compile.
#pragma once
#include "Halide.h"
#include <algorithm>

namespace whole {

using namespace Halide::Internal;
using Halide::Expr;

class WholeVectors : public IRMutator {
    Scope<Expr> masks;  // the values of variables around that are masks

    using IRMutator::visit;
    Stmt visit(const LetStmt *op) override {
        ScopedBinding<Expr> bind(op->value.type().is_bool() && op->value.type().is_vector(), masks, op->name, op->value);
        return IRMutator::visit(op);
    }
    Stmt visit(const Store *op) override {
        const Variable *v = op->predicate.as<Variable>();
        const Expr mask = v && masks.contains(v->name) ? masks.get(v->name) : op->predicate;
        const LE *test = mask.as<LE>();
        const Ramp *lanes = test ? test->a.as<Ramp>() : nullptr, *index = op->index.as<Ramp>();
        const Broadcast *last = test ? test->b.as<Broadcast>() : nullptr;
        const bool is_row = index && is_const_one(index->stride) && lanes && is_const_one(lanes->stride);
        return is_row && last && last->value.type().is_scalar() ? stored(op, *index, lanes->base, last->value) : op;
    }

    // The store of lanes numbered from `first`, of which those up to `last` are stored.
    static Stmt stored(const Store *op, const Ramp &index, const Expr &first, const Expr &last) {
        const std::string name = unique_name("stored");
        const Expr value = Variable::make(op->value.type(), name);
        const auto lowest = [&](int n) {
            const Expr part = n == index.lanes ? value : Shuffle::make_slice(value, 0, 1, n);
            return Store::make(op->name, part, Ramp::make(index.base, 1, n), op->param, const_true(n), op->alignment);
        };
        Stmt made = Store::make(op->name, value, op->index, op->param, op->predicate, op->alignment);
        made = IfThenElse::make(first <= last, made);
        for (int n = std::max(index.lanes / 4, 2); n < index.lanes; n *= 2) {
            made = IfThenElse::make(first + (n - 1) == last, lowest(n), made);
        }
        made = IfThenElse::make(first + (index.lanes - 1) <= last, lowest(index.lanes), made);
        return LetStmt::make(name, op->value, made);
    }
};

}  // namespace whole
