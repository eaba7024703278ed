// Signed arithmetic that wraps. Halide and LLVM assume that integers of 32 bits and more do not overflow: `x - 1 < 5`
// becomes `x < 6`, which differs for the lowest x. So such an operation is an opaque call until Halide has simplified
// everything; then a lowering pass turns it into unsigned arithmetic. Unsigned casts from the start would not do: Halide
// would merge a float's cast to a signed and then to an unsigned integer into one, which is undefined for negative numbers.
#pragma once
#include "Halide.h"

namespace whole {

inline bool wraps(const Halide::Type &t) { return t.is_int() && t.bits() >= 32; }
inline Halide::Expr wrapping(const char *name, const Halide::Expr &a, const Halide::Expr &b) {
    return Halide::Internal::Call::make(a.type(), name, {a, b}, Halide::Internal::Call::PureExtern);
}

class Wraps : public Halide::Internal::IRMutator {
    using IRMutator::visit;
    using Expr = Halide::Expr;
    Expr visit(const Halide::Internal::Call *op) override {
        using namespace Halide::Internal;
        if (op->call_type != Call::PureExtern || op->name.rfind("te_wrapping_", 0) != 0) return IRMutator::visit(op);
        const Halide::Type whole = op->type.with_code(halide_type_uint);
        const Expr a = Reinterpret::make(whole, mutate(op->args[0])), b = Reinterpret::make(whole, mutate(op->args[1]));
        const std::string name = op->name.substr(12);
        return Reinterpret::make(op->type, name == "add" ? Add::make(a, b) : name == "sub" ? Sub::make(a, b) : name == "mul" ? Mul::make(a, b) : power(a, b));
    }

    // By squaring, one step per bit of the exponent: large powers wrap too.
    static Expr power(const Expr &base, const Expr &exponent) {
        using namespace Halide::Internal;
        const Halide::Type t = base.type();
        const Expr bits = Variable::make(t, "exponent");
        std::vector<std::pair<std::string, Expr>> steps{{"exponent", exponent}, {"square0", base}, {"power0", make_one(t)}};
        for (int k = 0; k < t.bits(); k++) {
            const std::string here = std::to_string(k), next = std::to_string(k + 1);
            const Expr square = Variable::make(t, "square" + here), power = Variable::make(t, "power" + here);
            const Expr bit = Call::make(t, Call::bitwise_and, {bits, make_const(t, uint64_t(1) << k)}, Call::PureIntrinsic);
            steps.emplace_back("power" + next, Select::make(NE::make(bit, make_zero(t)), Mul::make(power, square), power));
            steps.emplace_back("square" + next, Mul::make(square, square));
        }
        Expr result = Variable::make(t, "power" + std::to_string(t.bits()));
        for (auto step = steps.rbegin(); step != steps.rend(); ++step) result = Let::make(step->first, step->second, result);
        return result;
    }
};

}  // namespace whole
