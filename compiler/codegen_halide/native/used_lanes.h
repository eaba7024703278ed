// A lowering pass: loads of rows of which a shuffle takes some lanes begin and end at those.
//
// Halide 21 loads the row around all that a vector of an index might be, and shuffles it: for a border that reads 4
// elements backwards in a vector of 16, also the 12 before them, which may be before the operand.
#pragma once
#include "Halide.h"
#include <algorithm>

namespace whole {

using namespace Halide::Internal;
using Halide::Expr;

class UsedLanes : public IRMutator {
    using IRMutator::visit;
    Expr visit(const Shuffle *op) override {
        const Load *row = op->vectors.size() == 1 ? op->vectors[0].as<Load>() : nullptr;
        const Ramp *lanes = row ? row->index.as<Ramp>() : nullptr;
        if (!lanes || !is_const_one(lanes->stride) || !is_const_one(row->predicate)) return IRMutator::visit(op);
        const auto [first, last] = std::minmax_element(op->indices.begin(), op->indices.end());
        const int start = *first, count = *last - *first + 1;
        if (start < 0 || count < 2 || count == row->type.lanes()) return IRMutator::visit(op);
        std::vector<int> indices = op->indices;
        for (int &k : indices) k -= start;
        const Expr index = Ramp::make(Halide::Internal::simplify(mutate(lanes->base) + start), 1, count);
        const Type type = row->type.with_lanes(count);
        const Expr used = Load::make(type, row->name, index, row->image, row->param, const_true(count), ModulusRemainder());
        return Shuffle::make({used}, indices);
    }
};

}  // namespace whole
