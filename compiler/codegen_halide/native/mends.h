// A lowering pass: rewrites code that Halide 21 miscompiles for some machines.
#pragma once
#include "Halide.h"

namespace whole {

using namespace Halide::Internal;
using Halide::Expr;
using Halide::Target;
using Halide::Type;

class Mends : public IRMutator {
public:
    explicit Mends(const Target &target)
        : rounds_in_code(!target.has_feature(Target::F16C) && !target.has_feature(Target::ARMFp16)),
          has_predicates(target.has_feature(Target::RVV)) {}

    bool needed() const { return rounds_in_code || has_predicates; }

private:
    const bool rounds_in_code;  // f32 to f16 uses integer arithmetic, which turns NaN into infinity
    // On targets with predicated vectors Halide calls llvm.vp.select with a one-element condition if all lanes are selected
    // alike, and llvm.vp.not, which does not exist. Divisions by non-constants use both. LLVM selects between vectors of
    // halves lane by lane, which it cannot do if their number is not constant.
    const bool has_predicates;

    using IRMutator::visit;
    Expr visit(const Cast *op) override {
        if (!rounds_in_code || !op->type.is_float() || op->type.bits() != 16 || op->type.is_bfloat() || !op->value.type().is_float()) {
            return IRMutator::visit(op);
        }
        const int lanes = op->type.lanes();
        const Expr value = Variable::make(op->value.type(), "rounded"), single = Halide::cast(Halide::Float(32, lanes), value);
        const Expr bits = Halide::reinterpret(Halide::UInt(32, lanes), single) & make_const(Halide::UInt(32, lanes), 0x7fffffff);
        const Expr is_nan = bits > make_const(Halide::UInt(32, lanes), 0x7f800000);
        const Expr rounded = Halide::reinterpret(Halide::UInt(16, lanes), Cast::make(op->type, value));
        const Expr chosen = Select::make(is_nan, make_const(Halide::UInt(16, lanes), 0x7e00), rounded);
        return Let::make("rounded", mutate(op->value), Halide::reinterpret(op->type, chosen));
    }
    Expr visit(const Not *op) override {
        if (!has_predicates || !op->type.is_vector()) return IRMutator::visit(op);
        const Type codes = Halide::UInt(8, op->type.lanes());
        return Cast::make(codes, mutate(op->a)) == make_const(codes, 0);
    }
    Expr visit(const Call *op) override {
        if (!has_predicates || !op->type.is_vector() || !op->is_intrinsic(Call::bitwise_not)) return IRMutator::visit(op);
        const Expr ones = op->type.is_uint() ? op->type.max() : make_const(op->type, -1);
        return Call::make(op->type, Call::bitwise_xor, {mutate(op->args[0]), ones}, Call::PureIntrinsic);
    }
    Expr visit(const Div *op) override { return divided(op, lower_euclidean_div); }
    Expr visit(const Mod *op) override { return divided(op, lower_euclidean_mod); }
    Expr visit(const Select *op) override {
        if (!has_predicates || !op->type.is_vector()) return IRMutator::visit(op);
        const Expr condition = by_lane(op->condition, op->type.lanes());
        const Expr yes = mutate(op->true_value), no = mutate(op->false_value);
        if (!op->type.is_float() || op->type.bits() != 16) return Select::make(condition, yes, no);
        const Type bits = Halide::UInt(16, op->type.lanes());
        return Halide::reinterpret(op->type, Select::make(condition, Halide::reinterpret(bits, yes), Halide::reinterpret(bits, no)));
    }

    // A condition with one element per lane: the code generator looks through a broadcast, but not through a
    // comparison.
    Expr by_lane(const Expr &condition, int lanes) {
        const Broadcast *whole = condition.as<Broadcast>();
        if (condition.type().is_vector() && !whole) return mutate(condition);
        const Expr one = Halide::cast<uint8_t>(mutate(whole ? whole->value : condition));
        return Broadcast::make(one, lanes) != make_const(Halide::UInt(8, lanes), 0);
    }

    // Lowered here, because the code generator does it too late for these fixes, and forgets which lanes are equal.
    template<typename T>
    Expr divided(const T *op, Expr (*lowered)(Expr, Expr)) {
        if (!has_predicates || !op->type.is_vector() || op->type.is_float() || is_const(op->b)) return IRMutator::visit(op);
        const Expr result = lowered(Variable::make(op->type, "dividend"), Variable::make(op->type, "divisor"));
        return Let::make("dividend", mutate(op->a), Let::make("divisor", mutate(op->b), mutate(result)));
    }
};

}  // namespace whole
