// A lowering pass for x86: products of bytes that are added to the same sums become pairs, `vpmaddwd`.
//
// The taps of a depthwise convolution are codes of the same channels at different positions, each times a weight of its
// own. LLVM widens codes to 32 bits and multiplies them by an instruction that could add two products of 16 bits. Here
// codes of two taps are interleaved and multiplied at once, and neighbours share what is interleaved: 3x3 taps of four
// neighbours are 66 instructions, 90 without.
#pragma once
#include "Halide.h"
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace whole {

using namespace Halide::Internal;
using Halide::Expr;

class TapPairs : public IRMutator {
    struct Tap {
        Expr codes, weights;  // of unsigned and of signed bytes
    };
    struct Sum {
        const Store *first;
        std::vector<Tap> taps;
    };

    struct Reads : IRVisitor {
        const std::string &name;
        bool found = false;
        explicit Reads(const std::string &name) : name(name) {}
        using IRVisitor::visit;
        void visit(const Load *op) override {
            found |= op->name == name;
            IRVisitor::visit(op);
        }
    };

    // What a statement adds to a sum, if that is one product of bytes for each lane.
    static std::optional<Tap> tap_of(const Store *op) {
        const Call *sum = op && is_const_one(op->predicate) ? Call::as_intrinsic(op->value, {Call::widen_right_add}) : nullptr;
        const Load *before = sum ? sum->args[0].as<Load>() : nullptr;
        const Call *product = before ? Call::as_intrinsic(sum->args[1], {Call::widening_mul}) : nullptr;
        if (!product || before->name != op->name || !equal(before->index, op->index)) return {};
        const Expr codes = product->args[0], weights = product->args[1];
        const auto is_byte = [&](const Expr &e, Halide::Type t) { return e.type() == t.with_lanes(op->value.type().lanes()); };
        if (!codes.type().is_vector() || !is_byte(codes, Halide::UInt(8)) || !is_byte(weights, Halide::Int(8))) return {};
        Reads reads(op->name);
        product->accept(&reads);
        return reads.found ? std::optional<Tap>() : Tap{codes, weights};
    }

    using Codes = std::set<Expr, IRDeepCompare>;
    static Expr interleaved(const Expr &a, const Expr &b) { return Shuffle::make_interleave({a, b}); }
    static bool starts_pair(size_t k, size_t apart, size_t count) { return apart && k % (2 * apart) < apart && k + apart < count; }
    static bool ends_pair(size_t k, size_t apart) { return apart && k % (2 * apart) >= apart; }

    // Instructions for sums of `rows` rows of taps, of which every other is paired with the next; of 0 rows for none.
    static size_t cost(const std::vector<Sum> &sums, size_t rows) {
        Codes pairs, single;
        size_t products = 0;
        for (const Sum &sum : sums) {
            const size_t count = sum.taps.size(), apart = rows ? count / rows : 0;
            for (size_t k = 0; k < count; k++) {
                if (ends_pair(k, apart)) continue;
                products++;
                if (starts_pair(k, apart, count)) pairs.insert(interleaved(sum.taps[k].codes, sum.taps[k + apart].codes));
                else single.insert(sum.taps[k].codes);
            }
        }
        return 2 * products + 2 * pairs.size() + single.size();
    }

    static size_t best_rows(const std::vector<Sum> &sums) {
        size_t best = 0;
        for (size_t rows = 2; rows <= sums[0].taps.size(); rows++) {
            bool fits = true;
            for (const Sum &sum : sums) fits &= sum.taps.size() % rows == 0;
            if (fits && cost(sums, rows) < cost(sums, best)) best = rows;
        }
        return best;
    }

    static Expr wide(const Expr &e) { return Halide::cast(Halide::Int(16, e.type().lanes()), e); }

    static void add(const Sum &sum, size_t rows, std::vector<Stmt> &made) {
        const Store *op = sum.first;
        const Expr before = Call::as_intrinsic(op->value, {Call::widen_right_add})->args[0];
        const size_t count = sum.taps.size(), apart = count / rows;
        for (size_t k = 0; k < count; k++) {
            if (ends_pair(k, apart)) continue;
            const Tap &tap = sum.taps[k];
            Expr value;
            if (starts_pair(k, apart, count)) {
                const Tap &other = sum.taps[k + apart];
                const Expr codes = wide(interleaved(tap.codes, other.codes)), weights = wide(interleaved(tap.weights, other.weights));
                const Expr products = Call::make(Halide::Int(32, codes.type().lanes()), Call::widening_mul, {codes, weights}, Call::PureIntrinsic);
                value = before + VectorReduce::make(VectorReduce::Add, products, before.type().lanes());
            } else {
                const Expr product = Call::make(Halide::Int(16, before.type().lanes()), Call::widening_mul, {tap.codes, tap.weights}, Call::PureIntrinsic);
                value = Call::make(before.type(), Call::widen_right_add, {before, product}, Call::PureIntrinsic);
            }
            made.push_back(Store::make(op->name, value, op->index, op->param, op->predicate, op->alignment));
        }
    }

    // Appends the statements of a run, paired if that takes fewer instructions.
    static void finish(std::vector<Stmt> &run, std::vector<Stmt> &made) {
        std::vector<Sum> sums;
        std::map<Expr, size_t, IRDeepCompare> place;
        for (const Stmt &s : run) {
            const Store *op = s.as<Store>();
            const auto [at, is_new] = place.emplace(op->index, sums.size());
            if (is_new) sums.push_back({op, {}});
            sums[at->second].taps.push_back(*tap_of(op));
        }
        const size_t rows = sums.empty() ? 0 : best_rows(sums);
        if (rows == 0) made.insert(made.end(), run.begin(), run.end());
        for (const Sum &sum : sums) {
            if (rows) add(sum, rows, made);
        }
        run.clear();
    }

    using IRMutator::visit;
    Stmt visit(const Block *op) override {
        std::vector<Stmt> run, made;
        for (Stmt rest = op; rest.defined();) {
            const Block *block = rest.as<Block>();
            const Stmt s = block ? block->first : rest;
            const Store *store = s.as<Store>();
            const bool is_tap = tap_of(store).has_value();
            if (!run.empty() && (!is_tap || run[0].as<Store>()->name != store->name)) finish(run, made);
            if (is_tap) run.push_back(s);
            else made.push_back(mutate(s));
            rest = block ? block->rest : Stmt();
        }
        finish(run, made);
        return Block::make(made);
    }
};

}  // namespace whole
