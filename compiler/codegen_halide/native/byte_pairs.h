// A lowering pass for x86: pairs of byte products summed in 16 bits become one instruction, `vpmaddubsw`.
//
// The instruction saturates, so Halide 21 only uses it for saturating sums. Kernels sum bytes in 16 bits only if the sum
// fits, and then the result is the same: occ.compiler.ir.ops.own.block_products.sums_fit. Sums of fours in 32 bits are
// taken in pairs if the kernel says that each pair fits: occ.compiler.ir.ops.own.quantised_codes.pairs_fit.
#pragma once
#include "Halide.h"

namespace whole {

using namespace Halide::Internal;
using Halide::Expr;

class BytePairs : public IRMutator {
public:
    explicit BytePairs(std::set<std::string> fitting) : fitting(std::move(fitting)) {}

private:
    const std::set<std::string> fitting;  // sums in 32 bits of products of which each pair fits in 16
    bool in_fitting = false;

    static bool is_byte(const Expr &e, bool is_signed) {
        const Halide::Type type = e.type().element_of();
        return type == (is_signed ? Halide::Type(Halide::Int(8)) : Halide::Type(Halide::UInt(8)));
    }

    static Expr narrow(const Expr &e) {
        const Cast *cast = e.as<Cast>();
        if (cast && cast->type.is_int() && cast->value.type().bits() < cast->type.bits()) return narrow(cast->value);
        const Broadcast *same = e.as<Broadcast>();
        return same ? Broadcast::make(narrow(same->value), same->lanes) : e;
    }

    // Products of unsigned by signed bytes in 16 bits, the unsigned ones first; undefined for others.
    static Expr products(const Expr &e) {
        const Expr inner = narrow(e);
        const Call *call = Call::as_intrinsic(inner, {Call::widening_mul});
        const Mul *mul = inner.as<Mul>();
        if (!call && !mul) return Expr();
        const Expr a = narrow(call ? call->args[0] : mul->a), b = narrow(call ? call->args[1] : mul->b);
        const bool first = is_byte(a, false) && is_byte(b, true), second = is_byte(b, false) && is_byte(a, true);
        if (!first && !second) return Expr();
        return Call::make(Halide::Int(16, e.type().lanes()), Call::widening_mul, {first ? a : b, first ? b : a}, Call::PureIntrinsic);
    }

    using IRMutator::visit;
    Stmt visit(const Store *op) override {
        const bool outer = in_fitting;
        in_fitting = fitting.count(op->name) != 0;
        const Stmt made = IRMutator::visit(op);
        in_fitting = outer;
        return made;
    }

    Expr visit(const VectorReduce *op) override {
        const int each = op->value.type().lanes() / op->type.lanes();
        const bool pairs = op->type.element_of() == Halide::Int(16) && each == 2;
        const bool fours = op->type.element_of() == Halide::Int(32) && each == 4 && in_fitting;
        const Expr of = op->op == VectorReduce::Add && (pairs || fours) ? products(op->value) : Expr();
        if (!of.defined()) return IRMutator::visit(op);
        const Expr sums = VectorReduce::make(VectorReduce::SaturatingAdd, mutate(of), of.type().lanes() / 2);
        if (pairs) return sums;
        return VectorReduce::make(VectorReduce::Add, Cast::make(Halide::Int(32, sums.type().lanes()), sums), op->type.lanes());
    }
};

}  // namespace whole
