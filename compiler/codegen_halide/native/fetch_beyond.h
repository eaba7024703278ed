// A lowering pass: a fixed number of bytes beyond the rows of a tensor that a stage reads, memory is fetched into the caches.
//
// A cache of a decoder holds the rows of all heads of a key together, and the loops of attention go over the keys of one
// head: processors do not foresee rows that lie kilobytes apart. Halide's own prefetch asks for lines that leave the first
// level for nowhere (prefetchnta), which gains nothing so far ahead. This one asks for the second level (prefetcht1) far
// ahead, since few lines can be on their way to the first one at a time (24 on Zen 4), and for all levels (prefetcht0) from nearer.
#pragma once
#include "Halide.h"

namespace whole {

using namespace Halide::Internal;
using Halide::Expr;

class FetchBeyond : public IRMutator {
public:
    struct Distance {
        int64_t near, far;  // bytes to what is fetched into the first level, and into the second; 0 for nothing
    };
    using Distances = std::map<std::pair<std::string, std::string>, Distance>;  // by names of stage and tensor
    explicit FetchBeyond(Distances distances) : distances(std::move(distances)) {}

private:
    static constexpr int kLine = 64;  // bytes of a line
    const Distances distances;
    bool innermost = false;

    struct Line {
        const Load *load;
        Expr start;  // the element that it begins with, in terms of what is known around the loop; so many more:
        int64_t more;
        Distance distance;
    };

    // The lines that the stages in a loop read, each once.
    struct Lines : IRVisitor {
        const Distances &distances;
        std::vector<std::pair<std::string, Expr>> lets;
        std::vector<std::string> stages;
        std::vector<Line> found;
        explicit Lines(const Distances &distances) : distances(distances) {}
        using IRVisitor::visit;
        void visit(const Let *op) override { within(op); }
        void visit(const LetStmt *op) override { within(op); }
        void visit(const Store *op) override {
            stages.push_back(op->name);
            IRVisitor::visit(op);
            stages.pop_back();
        }
        void visit(const Load *op) override {
            IRVisitor::visit(op);
            const auto wanted = stages.empty() ? distances.end() : distances.find({stages.back(), op->name});
            const Ramp *ramp = op->index.as<Ramp>();
            if (wanted == distances.end() || !ramp || !is_const_one(ramp->stride) || ramp->base.type().lanes() != 1) return;
            Expr start = ramp->base;
            for (auto let = lets.rbegin(); let != lets.rend(); let++) start = substitute(let->first, let->second, start);
            const int line = kLine / op->type.element_of().bytes();
            int64_t more = 0;
            while (const Add *sum = start.as<Add>()) {
                const auto constant = as_const_int(sum->b);
                if (!constant) break;
                more += *constant;
                start = sum->a;
            }
            for (int k = 0; k < op->type.lanes(); k += line) add({op, start, more + k, wanted->second}, line);
        }
        template<typename T> void within(const T *op) {
            op->value.accept(this);
            lets.emplace_back(op->name, op->value);
            op->body.accept(this);
            lets.pop_back();
        }
        void add(const Line &made, int line) {
            for (const Line &other : found) {
                const bool near = std::abs(made.more - other.more) < line;
                if (near && other.load->name == made.load->name && equal(other.start, made.start)) return;
            }
            found.push_back(made);
        }
    };

    static Stmt fetch(const Line &line, int64_t distance, int level) {
        const Expr base = Variable::make(Halide::Handle(), line.load->name);
        const int bytes = line.load->type.element_of().bytes();
        const Expr offset = Halide::cast<int64_t>(line.start) * bytes + make_const(Halide::Int(64), line.more * bytes + distance);
        const Expr place = Halide::reinterpret(Halide::Handle(), Halide::reinterpret(Halide::Int(64), base) + offset);
        const Expr read = 0, data = 1;
        return Evaluate::make(Call::make(Halide::Int(32), "llvm.prefetch.p0", {place, read, level, data}, Call::Extern));
    }

    using IRMutator::visit;
    Stmt visit(const For *op) override {
        innermost = true;
        Stmt body = mutate(op->body);
        if (innermost) {
            Lines lines(distances);
            body.accept(&lines);
            constexpr int second = 2, first = 3;  // as LLVM counts
            for (auto line = lines.found.rbegin(); line != lines.found.rend(); line++) {
                if (line->distance.near) body = Block::make(fetch(*line, line->distance.near, first), body);
                if (line->distance.far) body = Block::make(fetch(*line, line->distance.far, second), body);
            }
        }
        innermost = false;
        if (body.same_as(op->body)) return op;
        return For::make(op->name, op->min, op->extent, op->for_type, op->partition_policy, op->device_api, body);
    }
};

}  // namespace whole
