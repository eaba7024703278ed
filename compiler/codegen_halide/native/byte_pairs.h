// A lowering pass for x86: pairs of byte products summed in 16 bits become one instruction, `vpmaddubsw`.
//
// Halide 21 only uses it for saturating sums, since it saturates. Kernels sum bytes in 16 bits only if the sum fits, so
// the result is the same: occ.compiler.ir.ops.own.block_products.sums_fit.
#pragma once
#include "Halide.h"

namespace whole {

using namespace Halide::Internal;
using Halide::Expr;

class BytePairs : public IRMutator {
    static bool is_byte(const Expr &e, bool is_signed) {
        const Halide::Type type = e.type().element_of();
        return type == (is_signed ? Halide::Type(Halide::Int(8)) : Halide::Type(Halide::UInt(8)));
    }

    // Whether products of unsigned by signed bytes are exactly as wide as the products need.
    static bool is_product(const Expr &e) {
        if (const Call *call = Call::as_intrinsic(e, {Call::widening_mul})) {
            const Expr &a = call->args[0], &b = call->args[1];
            return (is_byte(a, false) && is_byte(b, true)) || (is_byte(a, true) && is_byte(b, false));
        }
        const Mul *mul = e.as<Mul>();
        const Cast *a = mul ? mul->a.as<Cast>() : nullptr, *b = mul ? mul->b.as<Cast>() : nullptr;
        return a && b && ((is_byte(a->value, false) && is_byte(b->value, true)) || (is_byte(a->value, true) && is_byte(b->value, false)));
    }

    using IRMutator::visit;
    Expr visit(const VectorReduce *op) override {
        const bool pairs = op->value.type().lanes() == 2 * op->type.lanes();
        if (op->op != VectorReduce::Add || op->type.element_of() != Halide::Int(16) || !pairs || !is_product(op->value)) {
            return IRMutator::visit(op);
        }
        return VectorReduce::make(VectorReduce::SaturatingAdd, mutate(op->value), op->type.lanes());
    }
};

}  // namespace whole
