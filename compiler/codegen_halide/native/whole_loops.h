// Loops around a long sum or a transform of tiles, which Halide is not to partition.
//
// If a condition holds in all but a few iterations, Halide partitions the loop and copies its body for each part.
// Compared with a sum of many terms the condition costs nothing, so that copies only add code: a convolution of
// ResNet-50 by Winograd's algorithm has 18 KB instead of 30, and takes 480 ms instead of 680 (Zen 4). Transforms of
// tiles are unrolled, so that a copy is long: without copies those of SqueezeNet compile in 1.6 s instead of 2.1, and
// are as fast (Sapphire Rapids). Loops over vectors are partitioned all the same where a partial vector is stored
// element by element. AVX-512 has masks: without copies 4.2 KB instead of 6.2, and runs take 0.98 to 0.99 (Zen 4).
#pragma once
#include "Halide.h"
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace whole {

using namespace Halide::Internal;

inline bool stores_masked = false;  // whether a part of a vector is stored by one instruction, as AVX-512 does

inline bool is_loop(const Dim &d) { return d.for_type == ForType::Serial || d.for_type == ForType::Parallel; }

// Whether a function sums in a loop, not only over a few unrolled terms.
inline bool is_long_sum(const Function &f) {
    for (const Definition &update : f.updates()) {
        for (const Dim &d : update.schedule().dims()) {
            if (d.is_rvar() && is_loop(d)) return true;
        }
    }
    return false;
}

// Whether a function without updates is unrolled along two axes, as a transform of a tile is.
inline bool is_unrolled_tile(const Function &f) {
    int unrolled = 0;
    for (const Dim &d : f.definition().schedule().dims()) unrolled += d.for_type == ForType::Unrolled;
    return f.updates().empty() && unrolled > 1;
}

// For each axis that is split into vectors, the innermost loop over those vectors.
inline std::set<std::string> loops_of_vectors(const StageSchedule &schedule) {
    using Names = std::vector<std::string>;
    std::map<std::string, Names> made;  // the loops that an axis is split into
    const auto loops_of = [&](const std::string &axis) { return made.count(axis) ? made[axis] : Names{axis}; };
    const auto has = [](const Names &names, const Dim &d) { return std::count(names.begin(), names.end(), d.var) > 0; };
    std::set<std::string> found;
    const auto &splits = schedule.splits();
    for (auto s = splits.rbegin(); s != splits.rend(); ++s) {
        if (s->split_type == Split::FuseVars) {
            made[s->outer] = made[s->inner] = loops_of(s->old_var);
            continue;
        }
        Names outer = loops_of(s->outer);
        if (s->split_type == Split::SplitVar) {
            const Names inner = loops_of(s->inner);
            bool in_vectors = false, in_steps = false;
            for (const Dim &d : schedule.dims()) {
                in_vectors |= has(inner, d) && d.for_type == ForType::Vectorized;
                in_steps |= has(inner, d) && is_loop(d);
            }
            for (const Dim &d : schedule.dims()) {
                if (!in_vectors || in_steps || !has(outer, d) || !is_loop(d)) continue;
                found.insert(d.var);
                break;
            }
            outer.insert(outer.end(), inner.begin(), inner.end());
        }
        made[s->old_var] = outer;
    }
    return found;
}

// Forbid partitioning the loops of a definition around a long sum, which is computed in `loop`, and all but the
// innermost loop that uses the sum.
inline void keep_whole(Definition definition, const std::string &loop) {
    const std::set<std::string> cut = loops_of_vectors(definition.schedule());
    bool is_around = false;
    for (Dim &d : definition.schedule().dims()) {
        is_around |= d.var == loop || ends_with(d.var, "." + loop);
        if (is_around && (stores_masked || !cut.count(d.var))) d.partition_policy = Halide::Partition::Never;
        is_around |= is_loop(d);
    }
    for (Specialization &s : definition.specializations()) keep_whole(s.definition, loop);
}

inline void keep_whole(Function f, const std::string &loop) {
    keep_whole(f.definition(), loop);
    for (size_t k = 0; k < f.updates().size(); k++) keep_whole(f.update(k), loop);
}

}  // namespace whole
