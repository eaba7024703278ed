// A model that is linked into a program; NAME.cpp of `occ build --emit static` includes this.
#pragma once
#include "occ.h"

struct occ_call;

struct occ_linked {
    const void *facts;
    int32_t (*entry)(struct occ_call *);
    const void *weights;  // null if they are in a file
    size_t bytes;         // of all weights
    const char *digest;   // of the weights, SHA-256 in hexadecimal digits
};

// Opens it; `path` is the file with the weights if they are not linked in.
extern "C" OCC_API int occ_open_linked(const struct occ_linked *linked, const char *path, occ_model **model);
// The same with the weights in memory.
extern "C" OCC_API int occ_open_linked_memory(const struct occ_linked *linked, const void *weights, size_t bytes, occ_model **model);

// Sizes, as in runtime/dims.py.
static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t quotient(int64_t a, int64_t b) { return b == 0 ? a : a / b - (a % b != 0 && (a < 0) != (b < 0)); }

template<typename... E> occ_tensor described(const void *data, size_t bytes, int32_t dtype, E... extents) {
    occ_tensor t = {};
    t.data = const_cast<void *>(data);
    t.bytes = bytes;
    t.dtype = dtype;
    ((t.extents[t.rank++] = extents), ...);
    return t;
}
