// A lowering pass: prefetches the next panel of a tensor while the tiles that share the current one are computed.
//
// Constants of a product come from memory once, panel after panel, and each panel is used for all tiles of rows. The
// first tile would wait for it, since hardware prefetching stops at a page boundary and starts with the first tile.
// Prefetched line by line during all tiles of the previous panel, it arrives in time: 241 -> 260 GFLOP/s for 128 rows
// by [768, 768], Zen 5.
#pragma once
#include "Halide.h"

namespace whole {

using namespace Halide::Internal;
using Halide::Expr;

// The bytes of a panel, and the distance to its successor: more than a panel if several are used in turn. A panel used
// more than once is prefetched as often: prefetching it once gains nothing.
struct Panel {
    Expr bytes, distance;
};

class FetchAhead : public IRMutator {
public:
    // By the name of the tensor.
    FetchAhead(std::map<std::string, Panel> panels, const Halide::Target &target)
        : panels(std::move(panels)), locality(locality_of(target)) {}

private:
    using Lets = std::vector<std::pair<std::string, Expr>>;
    struct Loop {
        std::string name;
        Expr min, extent;
    };

    static constexpr int kLine = 64, kMost = 8;  // bytes of a line, and lines that one iteration may fetch
    const std::map<std::string, Panel> panels;
    const int locality;  // as in LLVM: 0 is prefetchnta, 2 prefetcht1
    std::vector<Loop> loops;  // around the current statement, outermost first
    std::vector<Lets> before;  // values that are computed before each of them
    Lets lets;
    bool innermost = false;

    // The cache level to prefetch into. AMD processors keep lines of prefetchnta until they are used. Intel's keep them
    // only in L1, which a panel fills: most are evicted before they are read, and fetched again. A f32 ResNet-50 on
    // Sapphire Rapids, one thread: 74.8 ms with prefetchnta, 51.4 without, 47.4, 46.0, 46.1 with prefetcht0, t1, t2.
    static int locality_of(const Halide::Target &t) {
        const bool amd = t.processor_tune != Halide::Target::ProcessorGeneric || t.has_feature(Halide::Target::AVX512_Zen4);
        return t.arch == Halide::Target::X86 && !amd ? 2 : 0;
    }

    // The first load of each tensor in a loop, with the values that its index is made of.
    struct Loads : IRVisitor {
        const std::map<std::string, Panel> &panels;
        Lets lets;
        std::map<std::string, const Load *> found;
        Loads(const std::map<std::string, Panel> &panels, Lets lets) : panels(panels), lets(std::move(lets)) {}
        using IRVisitor::visit;
        void visit(const Load *op) override {
            if (panels.count(op->name)) found.emplace(op->name, op);
            IRVisitor::visit(op);
        }
        void visit(const Let *op) override {
            lets.emplace_back(op->name, op->value);
            IRVisitor::visit(op);
        }
        void visit(const LetStmt *op) override {
            lets.emplace_back(op->name, op->value);
            IRVisitor::visit(op);
        }
    };

    using IRMutator::visit;
    Stmt visit(const LetStmt *op) override {
        lets.emplace_back(op->name, op->value);
        Stmt body = mutate(op->body);
        lets.pop_back();
        return body.same_as(op->body) ? Stmt(op) : LetStmt::make(op->name, op->value, body);
    }
    Stmt visit(const For *op) override {
        loops.push_back({op->name, op->min, op->extent});
        before.emplace_back();
        innermost = true;
        Stmt body = mutate(op->body);
        if (innermost) {
            Loads loads(panels, lets);
            body.accept(&loads);
            for (const auto &[name, load] : loads.found) body = fetched(body, load, loads.lets);
        }
        innermost = false;
        loops.pop_back();
        const Lets named = std::move(before.back());
        before.pop_back();
        if (body.same_as(op->body)) return op;
        Stmt made = For::make(op->name, op->min, op->extent, op->for_type, op->partition_policy, op->device_api, body);
        for (auto let = named.rbegin(); let != named.rend(); let++) made = LetStmt::make(let->first, let->second, made);
        return made;
    }

    static bool uses(const Expr &e, const std::string &name) {
        return !substitute(name, Variable::make(Halide::Int(32), "another"), e).same_as(e);
    }

    // A typical run-time size: a panel and the steps through it grow alike, so the exact value does not matter. A loop
    // over a large part of one, such as blocks of 128, may have no steps then.
    struct Typical : IRMutator {
        using IRMutator::visit;
        Expr visit(const Variable *op) override { return make_const(op->type, 64); }
    };
    static std::optional<int64_t> typical(const Expr &e) {
        const auto found = as_const_int(simplify(Typical().mutate(e)));
        return found ? std::optional<int64_t>(*found) : std::nullopt;
    }

    // The body of the innermost loop with the prefetches due in an iteration. The loops are, from the inside: those
    // over a panel, which the index uses; those over tiles, which it does not; the loop over panels.
    //
    // Products of codes wait for the instructions of a step, so that it only adds its position to an address: that of
    // the next panel is computed once for all tiles, and the line where a tile begins once for its loops; tiles that are
    // left when all lines are fetched stay at the last one. Floats, whose steps are longer, gained nothing by it.
    Stmt fetched(const Stmt &body, const Load *load, const Lets &known) {
        const Ramp *ramp = load->index.as<Ramp>();
        Expr start = ramp ? ramp->base : load->index;
        if (start.type().lanes() != 1) return body;
        const auto in_terms_of_loops = [&known](Expr e) {
            for (auto let = known.rbegin(); let != known.rend(); let++) e = substitute(let->first, let->second, e);
            return e;
        };
        start = in_terms_of_loops(start);
        size_t k = loops.size();
        Expr position = 0;
        Expr steps = 1;
        int64_t tiles = 1;
        while (k > 0 && uses(start, loops[k - 1].name)) {
            const Loop &loop = loops[--k];
            position = position + (Variable::make(Halide::Int(32), loop.name) - loop.min) * steps;
            start = in_terms_of_loops(substitute(loop.name, loop.min, start));
            steps = simplify(steps * in_terms_of_loops(loop.extent));
        }
        const size_t in_panel = k;
        Expr tile = 0;
        Expr count = 1;
        while (k > 0 && !uses(start, loops[k - 1].name)) {
            const Loop &loop = loops[--k];
            const auto extent = as_const_int(loop.extent);
            tile = tile + (Variable::make(Halide::Int(32), loop.name) - loop.min) * count;
            count = count * loop.extent;
            tiles *= extent ? *extent : 8;  // as many rows as models with symbolic sizes often have
        }
        const auto [bytes, distance] = panels.at(load->name);
        const auto typical_bytes = typical(bytes), typical_steps = typical(steps);
        if (in_panel == loops.size() || k == 0 || tiles <= 1 || !typical_bytes || typical_steps.value_or(0) <= 0) return body;
        const int64_t each = (*typical_bytes / kLine + *typical_steps * tiles - 1) / (*typical_steps * tiles);
        if (each > kMost) return body;
        const Expr base = Halide::reinterpret(Halide::Int(64), Variable::make(Halide::Handle(), load->name));
        const int size = load->type.element_of().bytes(), wide = kLine / size;
        const Expr next = start + simplify(distance / kLine * wide), last = simplify(bytes / kLine - (int)each);
        const Expr line = (tile * steps + (load->type.is_float() ? position : 0)) * (int)each;
        Stmt made = body;
        if (load->type.is_float()) {
            for (int64_t n = each; n-- > 0;) {
                made = Block::make(fetch(base + Halide::cast<int64_t>(next + (min(line, last) + (int)n) * wide) * size), made);
            }
            return made;
        }
        const Expr panel = named(k, base + Halide::cast<int64_t>(next) * size);
        const Expr first = named(in_panel, panel + Halide::cast<int64_t>(min(line, last)) * kLine);
        const Expr step = named(in_panel, Halide::cast<int64_t>(Halide::select(line > last, 0, (int)each * kLine)));
        for (int64_t n = each; n-- > 0;) {
            made = Block::make(made, fetch(first + Halide::cast<int64_t>(position) * step + (int)(n * kLine)));
        }
        return made;
    }

    // A value that is computed before a loop.
    Expr named(size_t loop, const Expr &value) {
        const std::string name = unique_name("fetched");
        before[loop].emplace_back(name, value);
        return Variable::make(value.type(), name);
    }

    Stmt fetch(const Expr &address) const {
        const Expr place = Halide::reinterpret(Halide::Handle(), address);
        const Expr read = 0, data = 1;
        return Evaluate::make(Call::make(Halide::Int(32), "llvm.prefetch.p0", {place, read, locality, data}, Call::Extern));
    }
};

}  // namespace whole
