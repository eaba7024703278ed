// The model's metadata in its library: `occ_model_facts`, written by compiler/native_entry next to the native entry.
// Positions are bytes from the start of the facts; texts end with 0. It is part of the code, so it is trusted like
// code.
#pragma once
#include <cstdint>

namespace occ::runtime {

constexpr uint32_t kFactsMagic = 0x4643434f;  // "OCCF"
constexpr uint32_t kFactsVersion = 2;
constexpr uint32_t kRankOfARun = 1u << 31;  // of an output whose rank depends on sizes; its results are its rank and OCC_MAX_RANK extents
constexpr uint32_t kExtentsOfARun = 1u << 30;  // of an output with data-dependent extents: before a run, their upper bounds

struct Rows {
    uint32_t at, count;
};

struct ExtentFacts {
    int64_t value;    // -1 if `symbol` is a text
    uint32_t symbol;  // 0 for none
    uint32_t reserved;
};

struct PortFacts {
    uint32_t name, dtype;  // an occ_dtype, kRankOfARun, kExtentsOfARun
    Rows extents;          // of ExtentFacts
};

struct WeightFacts {
    uint64_t offset, bytes;
};

// A condition on the extents, by the number that the entry reports.
struct ConditionFacts {
    int32_t input, axis;  // of an extent; -1 if it is about several
    uint32_t text;
};

struct StepFacts {
    uint32_t nodes;  // text
    Rows checks;     // of texts
};

struct Facts {
    uint32_t magic, version, bytes;
    uint32_t name, machine;
    uint32_t refusal;  // why there is no native entry; 0 if there is one
    uint32_t ranged;   // whether kernels leave their parallel loop to their caller
    uint32_t made_for; // text: digest of the manifest's contents, for the Python runtime
    Rows inputs, outputs, weights, conditions, plans;  // a plan is Rows of StepFacts

    const char *text(uint32_t at) const { return reinterpret_cast<const char *>(this) + at; }
    template<typename T> const T *rows(Rows r) const {
        return reinterpret_cast<const T *>(reinterpret_cast<const char *>(this) + r.at);
    }
};

}  // namespace occ::runtime
