// An open model. Nothing here throws, and nothing needs the C++ library.
#pragma once
#include "call.h"
#include "facts.h"
#include "occ.h"

namespace occ::runtime {

// Bytes of a file, mapped, or of the caller.
struct Bytes {
    const unsigned char *data = nullptr;
    size_t size = 0;
};

struct Mapping : Bytes {
    void *base = nullptr;  // for munmap, or null
    size_t length = 0;

    int map(int fd, size_t offset, size_t count);  // 0, or an errno
    int open(const char *path);                    // all of a file; the same
    void release();
};

// A run's arguments and scratch memory, kept for the next one.
struct Block {
    Block *next;
    occ_call call;
    int64_t *extents, *results;
    int64_t *room;       // bytes of outputs with unbounded extents; -1 for the others
    const void **inputs;
    void **outputs;
    bool known;          // `results` and `call.needed` are valid for `extents`
    void *scratch;       // holds `call.memory`, then staging buffers of misaligned outputs
    size_t capacity;     // of scratch
};

using EntryFunction = int32_t (*)(occ_call *);

}  // namespace occ::runtime

struct occ_model {
    const occ::runtime::Facts *facts;
    occ::runtime::EntryFunction entry;
    const char *(*message)();  // of the last kernel that failed, or null
    int threads;
    occ_parallel_for parallel;
    void *context;

    occ_port *ports;  // inputs, then outputs
    const void **weights;
    size_t input_extents, output_extents;
    size_t output_results;  // numbers that the entry reports about the extents of outputs
    bool data_dependent_extents;  // of some outputs: known after a run only

    occ::runtime::Block *idle;  // see run.cpp for its lock

    void *library;  // of dlopen, or null
    int library_file;
    void (*unload)(occ_model *);  // closes both, or null
    occ::runtime::Mapping file, weights_file;  // the artifact; and its weights, if they are in a separate file
    occ::runtime::Bytes weights_bytes;
    void *weights_copy;
    char weights_digest[65];
};

namespace occ::runtime {

constexpr size_t kAlignment = 64;

// Records an error of this thread and returns its status.
__attribute__((format(printf, 3, 4))) int fail(const occ_model *model, int status, const char *format, ...);

// Memory aligned to kAlignment; null if there is none. `free_memory` frees it; null is allowed.
void *aligned_memory(size_t size);
void *zeroed_memory(size_t size);
void free_memory(void *memory);
// Whether the program has set memory aside (occ_use_memory).
bool has_reserve();
int default_threads();
// Guard some loads and stores of the idle blocks of all models.
void lock_idle();
void unlock_idle();
void sha256_hex(const unsigned char *data, size_t size, char hex[65]);

// Builds the model from its library's facts; takes over nothing on failure.
int prepare_model(occ_model *model);
// Whether this processor has the features that the model's code requires.
int check_features(const occ_model *model);
occ_model *empty_model();
int use_weights(occ_model *model, Bytes bytes);

// Common part of all functions that open a model, which `fill` builds.
template<typename F> int open_model(occ_model **model, F fill) {
    if (!model) return fail(nullptr, OCC_ERROR_ARGUMENT, "the pointer to the model is null");
    *model = nullptr;
    occ_model *m = empty_model();
    if (!m) return fail(nullptr, OCC_ERROR_MEMORY, "there is no memory for a model");
    const int status = fill(m);
    if (status) {
        occ_close(m);
    } else {
        *model = m;
    }
    return status;
}

}  // namespace occ::runtime

// pool.cpp or portable.cpp

extern "C" {
typedef int (*halide_task_t)(void *user_context, int task, uint8_t *closure);
typedef int (*occ_par_for_t)(halide_task_t, int min, int size, uint8_t *closure, int threads);

occ_par_for_t occ_pool();
int occ_enter(int threads);
void occ_leave(int before);
const char *occ_message();
struct occ_lent {
    occ_parallel_for loop;
    void *context;
    int failed;
};
occ_lent occ_lend(occ_lent loop);
int32_t occ_pool_tasks(void *kernel, void *args, int32_t tasks);
}
