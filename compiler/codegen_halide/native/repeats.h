// Replaces `common_subexpression_elimination` of the library.
//
// Halide calls it three times for every expression of a kernel, and it rebuilds the expression from numbered parts. Nearly
// all expressions have no part that repeats and stay as they are, which a walk over the expression finds in a tenth of
// the time. Others are left to the library, so that objects are the same, byte for byte.
#pragma once
#include "Halide.h"
#include <cstring>
#include <dlfcn.h>
#include <string>
#include <vector>

#pragma GCC push_options
#pragma GCC optimize("O2")

namespace whole {

using namespace Halide::Internal;
using Halide::Expr;

// Whether a part that Halide would compute once occurs twice in an expression, or might: parts with equal hashes count as equal.
class Repeats {
public:
    explicit Repeats(bool lift_all) : lift_all(lift_all), seen(64) {}
    bool in(const Expr &e) { return visit(e), found; }

private:
    const bool lift_all;
    bool found = false;
    std::vector<uint64_t> seen;  // hashes, with open addressing; 0 is free
    size_t count = 0;            // at most half of them

    uint64_t *place(uint64_t hash) {
        size_t k = (hash >> 20) & (seen.size() - 1);
        while (seen[k] && seen[k] != hash) k = (k + 1) & (seen.size() - 1);
        return &seen[k];
    }
    void see(uint64_t hash) {
        if (2 * ++count > seen.size()) {
            const std::vector<uint64_t> before = std::move(seen);
            seen.assign(2 * before.size(), 0);
            for (uint64_t h : before) {
                if (h) *place(h) = h;
            }
        }
        uint64_t *at = place(hash);
        found |= *at == hash;
        *at = hash;
    }

    static uint64_t mixed(uint64_t hash, uint64_t value) {
        hash = (hash ^ value) * 0x9e3779b97f4a7c15;
        return hash ^ (hash >> 32);
    }
    static uint64_t mixed(uint64_t hash, const std::string &name) {
        uint64_t letters = name.size();
        for (char c : name) letters = letters * 31 + (unsigned char)c;
        return mixed(hash, letters);
    }
    // A part is not visited after a repetition was found: in a graph of shared parts that would have no end.
    uint64_t mixed(uint64_t hash, const Expr &part) { return found ? hash : mixed(hash, visit(part)); }
    uint64_t mixed(uint64_t hash, const std::vector<Expr> &parts) {
        for (const Expr &part : parts) hash = mixed(hash, part);
        return hash;
    }

    // The library's rule; for rare kinds of expressions it may extract less.
    bool is_extracted(const Expr &e) const {
        const BaseExprNode *node = e.get();
        if (node->node_type == IRNodeType::Variable || is_const(e)) return false;
        if (lift_all) return true;
        switch (node->node_type) {
        case IRNodeType::Broadcast: return is_extracted(((const Broadcast *)node)->value);
        case IRNodeType::Cast: return is_extracted(((const Cast *)node)->value);
        case IRNodeType::Add: return !is_const(((const Add *)node)->a) && !is_const(((const Add *)node)->b);
        case IRNodeType::Sub: return !is_const(((const Sub *)node)->a) && !is_const(((const Sub *)node)->b);
        case IRNodeType::Mul: return !is_const(((const Mul *)node)->a) && !is_const(((const Mul *)node)->b);
        case IRNodeType::Div: return !is_const(((const Div *)node)->a) && !is_const(((const Div *)node)->b);
        case IRNodeType::Ramp: return !is_const(((const Ramp *)node)->stride);
        default: return true;
        }
    }

    uint64_t visit(const Expr &e) {
        const uint64_t hash = hashed(e) | 1;
        if (!found && is_extracted(e)) see(hash);
        return hash;
    }
    uint64_t hashed(const Expr &e) {
        const BaseExprNode *node = e.get();
        const Halide::Type type = node->type;
        const uint64_t start = mixed(uint64_t(node->node_type), uint64_t(type.lanes() << 16 | type.bits() << 4 | type.code()));
        switch (node->node_type) {
        case IRNodeType::IntImm: return mixed(start, uint64_t(((const IntImm *)node)->value));
        case IRNodeType::UIntImm: return mixed(start, ((const UIntImm *)node)->value);
        case IRNodeType::FloatImm: {
            uint64_t bits;
            memcpy(&bits, &((const FloatImm *)node)->value, sizeof bits);
            return mixed(start, bits);
        }
        case IRNodeType::StringImm: return mixed(start, ((const StringImm *)node)->value);
        case IRNodeType::Variable: return mixed(start, ((const Variable *)node)->name);
        case IRNodeType::Broadcast: return mixed(start, ((const Broadcast *)node)->value);
        case IRNodeType::Cast: return mixed(start, ((const Cast *)node)->value);
        case IRNodeType::Reinterpret: return mixed(start, ((const Reinterpret *)node)->value);
        case IRNodeType::Not: return mixed(start, ((const Not *)node)->a);
#define PAIR(kind) \
    case IRNodeType::kind: return mixed(mixed(start, ((const kind *)node)->a), ((const kind *)node)->b);
        PAIR(Add) PAIR(Sub) PAIR(Mod) PAIR(Mul) PAIR(Div) PAIR(Min) PAIR(Max)
        PAIR(EQ) PAIR(NE) PAIR(LT) PAIR(LE) PAIR(GT) PAIR(GE) PAIR(And) PAIR(Or)
#undef PAIR
        case IRNodeType::Select: {
            const Select *op = (const Select *)node;
            return mixed(mixed(mixed(start, op->condition), op->true_value), op->false_value);
        }
        case IRNodeType::Load: {
            const Load *op = (const Load *)node;
            return mixed(mixed(mixed(start, op->name), op->index), op->predicate);
        }
        case IRNodeType::Ramp: return mixed(mixed(start, ((const Ramp *)node)->base), ((const Ramp *)node)->stride);
        case IRNodeType::Call: return mixed(mixed(start, ((const Call *)node)->name), ((const Call *)node)->args);
        case IRNodeType::Shuffle: return mixed(start, ((const Shuffle *)node)->vectors);
        case IRNodeType::VectorReduce: return mixed(start, ((const VectorReduce *)node)->value);
        default: found = true; return start;  // a Let, which may hide that parts are the same
        }
    }
};

}  // namespace whole

namespace Halide::Internal {

Expr common_subexpression_elimination(const Expr &e, bool lift_all) {
    using Eliminate = Expr (*)(const Expr &, bool);
    static const auto library = (Eliminate)dlsym(RTLD_NEXT, "_ZN6Halide8Internal32common_subexpression_eliminationERKNS_4ExprEb");
    return whole::Repeats(lift_all).in(e) ? library(e, lift_all) : e;
}

}  // namespace Halide::Internal

#pragma GCC pop_options
