#include <stdint.h>

#define OCC_ABI 4

enum {
    OCC_DONE = 0,
    OCC_MEMORY = 1,   // `capacity` is less than `needed`; both `needed` and `results` are filled in
    OCC_INPUTS = 2,   // the extents do not fit the model; `detail` numbers the condition
    OCC_KERNEL = 3,   // the kernel of `step` failed with the code `detail`
    OCC_CHECK = 4,    // `step` met data that it cannot work on, such as an index out of range; `detail` counts from 1
    OCC_MISFIT = 5,   // a function of control flow gave other sizes than the plan has room for
    OCC_VERSION = 6,  // `abi` is not the one that the library was built for
    OCC_HOST = 7,     // the host did not run `step`, or there is none; `detail` is what it was asked
    OCC_NO_MEMORY = 8 // the heap has not the memory for a size that the run has found
};

struct occ_call {
    int32_t abi;                  // OCC_ABI
    int32_t threads;              // that kernels may use
    const void *const *weights;   // each constant, in the order of the manifest
    const int64_t *extents;       // extents of all inputs in a row, outermost first
    const void *const *inputs;    // each input, dense and row-major
    void *const *outputs;         // room for each output, aligned to 64 bytes
    int64_t *results;             // is given the extents of all outputs in a row
    void *memory;                 // scratch, aligned to 64 bytes
    int64_t capacity;             // bytes of it
    int64_t needed;               // is given the bytes of scratch that these extents need
    int32_t plan, step, detail;   // is given what failed: 0 for the main plan, else 1 + the function among the sorted names
    int32_t tasks;                // what `parallel` is to run: `kernel` on `arguments`, the tasks 0 .. tasks
    void *kernel, *arguments;
    int32_t (*parallel)(struct occ_call *call);  // 1 + the first error code that is not 0; 0 says that the loop did not run
    void *context;                // yours
    int32_t (*host)(struct occ_call *call);  // does what `request` asks for; returns 1. Models that need it say so, see below
    void *const *values;          // of a request: the operands, or the results, or both
    const int64_t *sizes;         // their extents, and strides in elements where they do not lie dense
    int64_t *found;               // is given the sizes that a step finds
    const int64_t *symbols;       // the values of all symbols, for a step that runs functions
    int32_t request;
    int32_t observed;             // not 0: `host` is told of each kernel, when it begins and when it has ended
    int64_t got, wanted;          // of OCC_MISFIT: two sizes that are not equal; of a kernel: its operations, and bytes of its tensors
    const int64_t *room;          // bytes that `outputs` has for each output whose extents nothing bounds; null for none
};

#ifdef __cplusplus
extern "C"
#endif
int32_t occ_model_run(struct occ_call *call);
