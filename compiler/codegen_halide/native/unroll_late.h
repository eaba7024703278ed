// A lowering pass: unrolls loops of a kernel after Halide has lowered it.
//
// Halide unrolls before most of its passes. The innermost loop of a product has 128 terms then, and each of some thirty
// passes visits each of them, while for all but the last ones a term in loops says as much. Loops that are unrolled here
// make the same instructions, and a kernel with a product takes 0.75 to 0.9 of the time to compile (Zen 4). Other stages of
// such a kernel are unrolled by Halide, which keeps what a Winograd transform reads in registers: unrolled here, it goes
// through the stack (planes of any size: detector of characters 17.1 --> 18.0 ms, ESPCN 7.9 --> 8.8 ms).
#pragma once
#include "Halide.h"
#include <set>
#include <string>

namespace Halide::Internal {
Stmt unroll_loops(const Stmt &);  // libHalide has it, Halide.h does not
}

namespace whole {

using namespace Halide::Internal;

class UnrollLate : public IRMutator {
public:
    using Loops = std::set<std::string>;
    explicit UnrollLate(Loops loops) : loops(std::move(loops)) {}

    // The whole kernel: Halide calls this once, and the loops in it are visited by `Marked`.
    using IRMutator::mutate;
    Stmt mutate(const Stmt &kernel) override {
        const Stmt unrolled = simplify(unroll_loops(Marked(loops).mutate(kernel)));
        return hoist_loop_invariant_if_statements(hoist_loop_invariant_values(unrolled));
    }

private:
    const Loops loops;

    struct Marked : IRMutator {
        const Loops &loops;
        explicit Marked(const Loops &loops) : loops(loops) {}
        using IRMutator::visit;
        Stmt visit(const For *op) override {
            Stmt body = mutate(op->body);
            ForType type = op->for_type;
            if (type == ForType::Serial && loops.count(scheduled(op->name)) && is_const(simplify(op->extent))) {
                type = ForType::Unrolled;
                body = substitute_in_all_lets(body);  // what Halide hoisted, it hoisted out of loops that end here
            }
            return For::make(op->name, op->min, op->extent, type, op->partition_policy, op->device_api, body);
        }

        // The name of a loop in the schedule. Passes add suffixes: `.rebased`, and `$1` to the second of a name.
        std::string scheduled(std::string name) const {
            const std::string rebased = ".rebased";
            if (ends_with(name, rebased)) name.resize(name.size() - rebased.size());
            const size_t number = name.rfind('$');
            const bool again = !loops.count(name) && number != std::string::npos && number + 1 < name.size() &&
                               name.find_first_not_of("0123456789", number + 1) == std::string::npos;
            return again ? name.substr(0, number) : name;
        }
    };
};

// Whether lanes hold several terms of a sum each, as products of bytes do. Halide makes lists of lanes of their indices, in
// which nothing finds the row of a panel any more if a loop around them is still there: lanes would be loaded one by one.
inline bool sums_in_lanes(const Definition &definition) {
    for (const Dim &d : definition.schedule().dims()) {
        if (d.is_rvar() && d.for_type == ForType::Vectorized) return true;
    }
    return false;
}

// Makes the unrolled loops of a definition serial, and adds their names to `loops`.
inline void keep_rolled(Definition definition, const std::string &stage, UnrollLate::Loops &loops) {
    if (sums_in_lanes(definition)) return;
    for (Dim &d : definition.schedule().dims()) {
        if (d.for_type != ForType::Unrolled) continue;
        d.for_type = ForType::Serial;
        d.partition_policy = Halide::Partition::Never;
        loops.insert(stage + "." + d.var);
    }
    for (Specialization &s : definition.specializations()) keep_rolled(s.definition, stage, loops);
}

inline void keep_rolled(Function f, UnrollLate::Loops &loops) {
    keep_rolled(f.definition(), f.name() + ".s0", loops);
    for (size_t k = 0; k < f.updates().size(); k++) {
        keep_rolled(f.update(k), f.name() + ".s" + std::to_string(k + 1), loops);
    }
}

}  // namespace whole
