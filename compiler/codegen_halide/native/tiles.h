// A lowering pass for x86 with AMX: sums of products of bytes by its tiles, up to two by two of them at a time.
//
// A tile holds 16 rows of 64 bytes: of codes, of weights (fours of their rows, of 16 columns), or 16 by 16 sums. One
// instruction multiplies the former two and adds to the latter. Sums take 52 cycles until more can be added to them,
// and the next instruction starts after 16, so several are needed; Halide 21 holds one tile of sums at a time (its
// MemoryType::AMXTile). 128 rows by [768, 768] on Sapphire Rapids: one 59 us, four 41 us, by VNNI 178 us.
//
// The schedule leaves such a sum as scalar loops over rows, columns, 16 fours and the bytes of a four, and any others
// around, such as the taps of a window. Loops of another form stay as they are.
#pragma once
#include "Halide.h"
#include <set>
#include <string>
#include <vector>

namespace whole {

using namespace Halide::Internal;
using Halide::Expr;

class Tiles : public IRMutator {
public:
    explicit Tiles(std::set<std::string> sums) : sums(std::move(sums)) {}

private:
    static constexpr int kRows = 16, kBytes = 64, kSums = 256, kAtOnce = 4;
    using Loops = std::vector<const For *>;

    const std::set<std::string> sums;

    // The update of a sum, and the loops around it, from the outside in.
    struct Update : IRVisitor {
        const std::string name;
        Loops around, loops;
        std::vector<std::pair<std::string, Expr>> lets;
        Expr stored, value;
        int count = 0;
        bool plain = true;  // nothing but loops and stores of the sum
        explicit Update(std::string name) : name(std::move(name)) {}

        Expr whole(Expr e) const {
            for (auto let = lets.rbegin(); let != lets.rend(); ++let) e = substitute(let->first, let->second, e);
            return substitute_in_all_lets(e);
        }

        using IRVisitor::visit;
        void visit(const For *op) override {
            plain &= op->for_type == ForType::Serial || op->for_type == ForType::Vectorized;
            around.push_back(op);
            op->body.accept(this);
            around.pop_back();
        }
        void visit(const LetStmt *op) override {
            lets.emplace_back(op->name, op->value);
            op->body.accept(this);
            lets.pop_back();
        }
        void visit(const Store *op) override {
            plain &= op->name == name && is_const_one(op->predicate);
            if (op->value.type().is_vector() || !op->value.as<Add>()) return;  // the zeros before
            count++;
            loops = around;
            stored = whole(op->index);
            value = whole(op->value);
        }
        void visit(const IfThenElse *) override { plain = false; }
        void visit(const Allocate *) override { plain = false; }
        void visit(const ProducerConsumer *) override { plain = false; }
        void visit(const Atomic *) override { plain = false; }
    };

    // How far an index moves with each step of a loop; undefined if that differs.
    static Expr step(const Expr &index, const For *loop) {
        const Expr at = Variable::make(Halide::Int(32), loop->name);
        const Expr made = simplify(substitute(loop->name, at + 1, index) - index);
        return substitute(loop->name, 0, made).same_as(made) ? made : Expr();
    }

    static const Load *byte_load(const Expr &e) {
        const Cast *cast = e.as<Cast>();
        const Load *load = cast && cast->type == Halide::Int(32) ? cast->value.as<Load>() : nullptr;
        return load && load->type.bits() == 8 && load->type.is_scalar() && is_const_one(load->predicate) ? load : nullptr;
    }

    // A product of codes by weights, and the loops over its rows, columns and terms.
    struct Product {
        const Load *codes = nullptr, *weights = nullptr;
        Expr sum;  // position of a sum
        const For *row = nullptr, *column = nullptr, *four = nullptr, *byte = nullptr;
        Loops others;

        bool find(const Update &update) {
            const Add *add = update.plain && update.count == 1 ? update.value.as<Add>() : nullptr;
            if (!add) return false;
            const Mul *mul = add->a.as<Mul>() ? add->a.as<Mul>() : add->b.as<Mul>();
            if (!mul || !byte_load(mul->a) || !byte_load(mul->b)) return false;
            sum = update.stored;
            for (const For *loop : update.loops) {
                const Expr in_sum = step(sum, loop);
                if (!in_sum.defined()) return false;
                if (is_const_one(in_sum)) column = loop;
                else if (is_const_zero(in_sum)) others.push_back(loop);
                else if (row) return false;
                else row = loop;
            }
            if (!row || !column) return false;
            codes = byte_load(mul->a), weights = byte_load(mul->b);
            if (!is(codes, column, 0)) std::swap(codes, weights);
            four = taken([&](const For *loop) { return is_const(loop->extent, kRows) && is(codes, loop, 4); });
            byte = taken([&](const For *loop) { return is_const(loop->extent, 4) && is(codes, loop, 1) && is(weights, loop, 1); });
            if (!four || !byte || !weights->type.is_int() || !is(codes, column, 0) || !is(weights, column, 4) || !is(weights, row, 0)) return false;
            return step(codes->index, row).defined() && step(weights->index, four).defined() && tiles(row) * tiles(column) <= kAtOnce && tiles(row) && tiles(column);
        }

        template<typename Test> const For *taken(Test test) {
            for (size_t k = others.size(); k-- > 0;) {
                const For *loop = others[k];
                if (!test(loop)) continue;
                others.erase(others.begin() + k);
                return loop;
            }
            return nullptr;
        }

        static bool is(const Load *load, const For *loop, int64_t bytes) {
            const Expr found = step(load->index, loop);
            return found.defined() && is_const(found, bytes);
        }

        // Tiles along a loop; 0 if there are no whole ones.
        static int tiles(const For *loop) {
            const auto extent = as_const_int(loop->extent);
            return extent && *extent % kRows == 0 && *extent <= kAtOnce * kRows ? *extent / kRows : 0;
        }

        // An index at the first row, column and term of a block.
        Expr first(Expr index) const {
            for (const For *loop : {row, column, four, byte}) index = substitute(loop->name, loop->min, index);
            return simplify(index);
        }
    };

    static Expr call(const char *name, const Halide::Type &type, const std::vector<Expr> &args) { return Call::make(type, name, args, Call::Intrinsic); }
    static Expr loaded(const Load *from, const Expr &at, const Expr &pitch) {
        const Expr memory = Variable::make(Halide::Handle(), from->name);
        return call("tile_load", from->type.with_lanes(kRows * kBytes), {kRows, kBytes, memory, at, pitch});
    }
    static Expr short_int(int n) { return Cast::make(Halide::Int(16), n); }
    static Expr every() { return Ramp::make(0, 1, kSums); }
    static Stmt store(const std::string &tile, const Expr &value) {
        return Store::make(tile, value, every(), Halide::Parameter(), const_true(kSums), ModulusRemainder());
    }

    static Stmt tiled(const std::string &name, const Product &p) {
        const int rows = p.tiles(p.row), columns = p.tiles(p.column);
        const Halide::Type type = Halide::Int(32, kSums);
        const Expr pitch = step(p.codes->index, p.row), panel = step(p.weights->index, p.four), line = step(p.sum, p.row);
        std::vector<std::string> tiles;
        std::vector<Stmt> zeros, products, stores;
        std::vector<Expr> codes, weights;
        const auto held = [&](const char *what, int k, const Load *from) {
            return Variable::make(from->type.with_lanes(kRows * kBytes), name + "." + what + std::to_string(k));
        };
        for (int k = 0; k < rows; k++) codes.push_back(held("codes", k, p.codes));
        for (int k = 0; k < columns; k++) weights.push_back(held("weights", k, p.weights));
        for (int i = 0; i < rows; i++) {
            for (int j = 0; j < columns; j++) {
                const std::string tile = name + ".tile" + std::to_string(i) + std::to_string(j);
                const Expr before = Load::make(type, tile, every(), Halide::Buffer<>(), Halide::Parameter(), const_true(kSums), ModulusRemainder());
                const Expr at = simplify((p.first(p.sum) + i * kRows * line + j * kRows) * 4);
                tiles.push_back(tile);
                zeros.push_back(store(tile, call("tile_zero", type, {short_int(kRows), short_int(kBytes)})));
                products.push_back(store(tile, call("tile_matmul", type, {short_int(kRows), short_int(kBytes), short_int(kBytes), before, codes[i], weights[j]})));
                stores.push_back(Evaluate::make(call("tile_store", Halide::Int(32), {short_int(kRows), short_int(kBytes), Variable::make(Halide::Handle(), name), at, simplify(line * 4), before})));
            }
        }
        Stmt made = Block::make(products);
        const auto with = [&](const Expr &variable, const Load *from, const Expr &offset, const Expr &each) {
            made = LetStmt::make(variable.as<Variable>()->name, loaded(from, simplify(p.first(from->index) + offset), each), made);
        };
        for (int k = 0; k < rows; k++) with(codes[k], p.codes, k * kRows * pitch, pitch);
        for (int k = 0; k < columns; k++) with(weights[k], p.weights, k * kBytes, panel);
        for (size_t k = p.others.size(); k-- > 0;) {
            const For *loop = p.others[k];
            made = For::make(loop->name, loop->min, loop->extent, ForType::Serial, loop->partition_policy, loop->device_api, made);
        }
        made = Block::make({Block::make(zeros), made, Block::make(stores)});
        for (const std::string &tile : tiles) made = Allocate::make(tile, type, Halide::MemoryType::AMXTile, {1}, const_true(), made);
        return made;
    }

    using IRMutator::visit;
    Stmt visit(const ProducerConsumer *op) override {
        if (op->is_producer && sums.count(op->name)) {
            Update update(op->name);
            op->body.accept(&update);
            Product product;
            if (product.find(update)) return ProducerConsumer::make_produce(op->name, tiled(op->name, product));
        }
        return IRMutator::visit(op);
    }
};

}  // namespace whole
