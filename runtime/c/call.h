#include <stdint.h>

#define OCC_ABI 4

enum {
    OCC_DONE = 0,
    OCC_MEMORY = 1,   // `capacity` is less than `needed`; both `needed` and `results` are filled in
    OCC_INPUTS = 2,   // the extents do not fit the model; `detail` numbers the condition
    OCC_KERNEL = 3,   // the kernel of `step` failed with the code `detail`
    OCC_CHECK = 4,    // `step` met invalid data, such as an index out of range; `detail` counts from 1
    OCC_MISFIT = 5,   // a control-flow function returned other sizes than the plan expects
    OCC_VERSION = 6,  // `abi` differs from the one that the library was built for
    OCC_HOST = 7,     // the host did not run `step`, or there is no host; `detail` is the request
    OCC_NO_MEMORY = 8 // the heap lacks the memory for a size computed during the run
};

struct occ_call {
    int32_t abi;                  // OCC_ABI
    int32_t threads;              // that kernels may use
    const void *const *weights;   // each constant, in the order of the manifest
    const int64_t *extents;       // extents of all inputs in a row, outermost first
    const void *const *inputs;    // each input, dense and row-major
    void *const *outputs;         // memory for each output, aligned to 64 bytes
    int64_t *results;             // out: the extents of all outputs in a row
    void *memory;                 // scratch, aligned to 64 bytes
    int64_t capacity;             // bytes of `memory`
    int64_t needed;               // out: the bytes of scratch that these extents need
    int32_t plan, step, detail;   // out: the step that failed; the plan is 0 for the main one, else 1 + the function's index by name
    int32_t tasks;                // for `parallel`: the number of tasks of `kernel` on `arguments`
    void *kernel, *arguments;
    int32_t (*parallel)(struct occ_call *call);  // returns 1 + the first error code that is not 0; 0 if the loop did not run
    void *context;                // of the caller
    int32_t (*host)(struct occ_call *call);  // serves `request` and returns 1; only some models need it
    void *const *values;          // of a request: the operands, or the results, or both
    const int64_t *sizes;         // their extents, and strides in elements if they are not dense
    int64_t *found;               // out: the sizes that a step computes
    const int64_t *symbols;       // the values of all symbols, for a step that runs functions
    int32_t request;
    int32_t observed;             // if not 0, `host` is called before and after each kernel
    int64_t got, wanted;          // of OCC_MISFIT: two sizes that should be equal (`detail` 0), or an extent and its bound (1); of a kernel: its operations, and the bytes of its tensors
    const int64_t *room;          // bytes at `outputs` for each output with unbounded extents; null for none
};

#ifdef __cplusplus
extern "C"
#endif
int32_t occ_model_run(struct occ_call *call);
