// A lowering pass: prefetches memory a fixed number of bytes beyond the rows of a tensor that a stage reads.
//
// A token-major decoder cache holds the rows of all heads of a key together, and attention loops over the keys of one
// head: hardware prefetchers cannot follow rows kilobytes apart. Halide's own prefetch uses prefetchnta, whose lines
// bypass L2, which gains nothing so far ahead. This one prefetches into L2 (prefetcht1) far ahead, since few lines can
// be in flight to L1 at a time (24 on Zen 4), and into all levels (prefetcht0) from nearer.
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
        Expr start;  // the first element, in terms of what is known around the loop; followed by this many more:
        int64_t more;
        Distance distance;
    };

    using Lets = std::vector<std::pair<std::string, Expr>>;

    // Adds the lines that a store reads to those already read before it, each once.
    struct Lines : IRVisitor {
        const Distances &distances;
        Lets lets;
        std::vector<Line> &found;
        std::string stage;
        Lines(const Distances &distances, const Lets &around, std::vector<Line> &before) : distances(distances), lets(around), found(before) {}
        using IRVisitor::visit;
        void visit(const Let *op) override {
            op->value.accept(this);
            lets.emplace_back(op->name, op->value);
            op->body.accept(this);
            lets.pop_back();
        }
        void visit(const Store *op) override {
            stage = op->name;
            IRVisitor::visit(op);
        }
        void visit(const Load *op) override {
            IRVisitor::visit(op);
            const auto wanted = distances.find({stage, op->name});
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

    // Prefetches in a loop body, those of each line before the first store that reads it: all at once they fill the
    // memory queue, and the body's own reads wait for them (16,384 keys of a growing cache in f32: 0.72 of a plain
    // read, 0.75 this way, one thread of Zen 4).
    struct Spread : IRMutator {
        const Distances &distances;
        Lets lets;
        std::vector<Line> fetched;
        explicit Spread(const Distances &distances) : distances(distances) {}
        using IRMutator::visit;
        Stmt visit(const LetStmt *op) override {
            lets.emplace_back(op->name, op->value);
            const Stmt body = mutate(op->body);
            lets.pop_back();
            return body.same_as(op->body) ? Stmt(op) : LetStmt::make(op->name, op->value, body);
        }
        // What one branch of a condition prefetches, the other does not, nor can later code rely on it.
        Stmt visit(const IfThenElse *op) override {
            const size_t before = fetched.size();
            const Stmt yes = mutate(op->then_case);
            fetched.resize(before);
            const Stmt no = op->else_case.defined() ? mutate(op->else_case) : Stmt();
            fetched.resize(before);
            return IfThenElse::make(op->condition, yes, no);
        }
        Stmt visit(const Store *op) override {
            const size_t before = fetched.size();
            Lines lines(distances, lets, fetched);
            op->accept(&lines);
            Stmt made = op;
            constexpr int second = 2, first = 3;  // LLVM's numbering
            for (size_t k = fetched.size(); k-- > before;) {
                if (fetched[k].distance.near) made = Block::make(fetch(fetched[k], fetched[k].distance.near, first), made);
                if (fetched[k].distance.far) made = Block::make(fetch(fetched[k], fetched[k].distance.far, second), made);
            }
            return made;
        }
    };

    using IRMutator::visit;
    Stmt visit(const For *op) override {
        innermost = true;
        Stmt body = mutate(op->body);
        if (innermost) body = Spread(distances).mutate(body);
        innermost = false;
        if (body.same_as(op->body)) return op;
        return For::make(op->name, op->min, op->extent, op->for_type, op->partition_policy, op->device_api, body);
    }
};

}  // namespace whole
