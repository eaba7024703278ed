/* libocc: runs models that occ has compiled, without Python.

   Link with the flags of `occ config --cflags --libs`. docs/c.md has examples.

   Errors      Functions that can fail return an occ_status: 0, or a reason. occ_error_text has more, with the names of nodes.
               Nothing exits, aborts or throws.
   Ownership   The library owns models and all pointers returned about them, until occ_close. The caller owns tensors,
               and frees memory that the library has allocated in them with occ_free.
   Threads     All functions may be called from many threads at once, even with one model. Only occ_set_* and occ_close
               need a model that is not in use. Models share one pool of threads in a process.
   Memory      A model keeps scratch memory for as many runs as were in flight at once. A run with the sizes of an earlier
               one allocates nothing. */
#ifndef OCC_H
#define OCC_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define OCC_API __attribute__((visibility("default")))
#else
#define OCC_API
#endif
#define OCC_MAX_RANK 16

typedef enum occ_status {
    OCC_OK = 0,
    OCC_ERROR_ARGUMENT = 1,    /* a null pointer, a wrong count of tensors, a number out of range */
    OCC_ERROR_FILE = 2,        /* a file cannot be opened or read */
    OCC_ERROR_DAMAGED = 3,     /* not an artifact, or one that has been changed since it was built */
    OCC_ERROR_UNSUPPORTED = 4, /* an artifact for another target, machine or version, or with nodes that need Python */
    OCC_ERROR_INPUT = 5,       /* element type, rank or extents of an input do not fit the model */
    OCC_ERROR_CAPACITY = 6,    /* the caller's memory for an output is too small */
    OCC_ERROR_MEMORY = 7,      /* memory cannot be allocated */
    OCC_ERROR_RUN = 8          /* a node met invalid data, such as an index out of range, or its kernel failed */
} occ_status;

/* Element types. Those of less than a byte take one byte each; complex numbers are pairs. */
typedef enum occ_dtype {
    OCC_ANY = 0, OCC_F32, OCC_F64, OCC_F16, OCC_BF16, OCC_I8, OCC_I16, OCC_I32, OCC_I64, OCC_U8, OCC_U16, OCC_U32, OCC_U64,
    OCC_BOOL, OCC_C64, OCC_C128, OCC_F8E4M3FN, OCC_F8E4M3FNUZ, OCC_F8E5M2, OCC_F8E5M2FNUZ, OCC_F8E8M0, OCC_F6E2M3FN,
    OCC_F6E3M2FN, OCC_F4E2M1, OCC_I4, OCC_U4, OCC_I2, OCC_U2
} occ_dtype;

typedef struct occ_model occ_model;

/* An input or output of a model. */
typedef struct occ_port {
    const char *name;
    occ_dtype dtype;
    int32_t rank;               /* -1 for an output whose rank depends on the extents of the inputs */
    const int64_t *extents;     /* outermost first; -1 if the extent varies between runs */
    const char *const *symbols; /* for these its expression, such as "n" or "2*n + 1"; NULL for the others */
} occ_port;

/* A tensor of a run, dense and row-major. Set unused fields to 0.

   Input:  `data`, `rank` and `extents`. `dtype` is compared with the model's unless it is OCC_ANY, and `bytes` with the size
           unless it is 0.
   Output: with `data` null, the library allocates. Otherwise `bytes` is its size. A run fills in `dtype`, `rank` and
           `extents`; these are 0 after a run that failed. Memory that the library has allocated is reused by later runs, and
           grows if necessary. Memory of the caller that is not aligned to 64 bytes costs a copy. Outputs must not overlap
           inputs or each other. */
typedef struct occ_tensor {
    void *data;
    size_t bytes;
    int32_t dtype;
    int32_t rank;
    int32_t owned; /* set by the library if it has allocated `data` */
    int32_t by_data; /* set by occ_output_extents for an output with data-dependent extents */
    int64_t extents[OCC_MAX_RANK];
} occ_tensor;

/* Opens an artifact, a zip or a folder. Its library is compared with its digest; its weights are mapped, not read.
   On failure *model is NULL. */
OCC_API int occ_open(const char *path, occ_model **model);
/* Opens a zip in memory, which must stay unchanged until occ_close. Weights at addresses that are not multiples of 64 are
   copied. */
OCC_API int occ_open_memory(const void *bytes, size_t size, occ_model **model);
/* Opens a zip by file descriptor, which may be closed afterwards. */
OCC_API int occ_open_fd(int fd, occ_model **model);
/* Compares the weights with their digest. Opening does not, because that would read them all. */
OCC_API int occ_verify(const occ_model *model);
/* Frees a model; NULL is allowed. */
OCC_API void occ_close(occ_model *model);

OCC_API const char *occ_name(const occ_model *model);
OCC_API size_t occ_inputs(const occ_model *model);
OCC_API size_t occ_outputs(const occ_model *model);
/* An input or output; NULL if there is none with this index. */
OCC_API const occ_port *occ_input(const occ_model *model, size_t index);
OCC_API const occ_port *occ_output(const occ_model *model, size_t index);
/* Bytes of an element; 0 for an unknown type. */
OCC_API size_t occ_element_size(int32_t dtype);

/* Runs the model on all its inputs and outputs, in the order of occ_input and occ_output. */
OCC_API int occ_run(occ_model *model, const occ_tensor *inputs, size_t n, occ_tensor *outputs, size_t m);
/* Fills in `dtype`, `rank` and `extents` of the outputs of a run on such inputs, and `bytes` of outputs without `data`.
   The data of inputs are not read. Extents that depend on data are upper bounds, or -1 if they are unbounded. In that case
   `bytes` is 0, and a run allocates, or fails with OCC_ERROR_CAPACITY if the caller's memory is too small. */
OCC_API int occ_output_extents(occ_model *model, const occ_tensor *inputs, size_t n, occ_tensor *outputs, size_t m);
/* Frees memory that the library has allocated in a tensor, and clears it. NULL and memory of the caller are ignored. */
OCC_API void occ_free(occ_tensor *tensor);

/* Threads of one run, at least 1. The default is OCC_NUM_THREADS, or else the number of processors that the affinity and
   the control group of the process allow. */
OCC_API int occ_set_threads(occ_model *model, int threads);
/* A parallel loop of the caller, instead of the pool. It calls task(closure, k) for each k of 0 .. count - 1, on any threads,
   and returns when all are done: 0 if all tasks returned 0, otherwise the result of one that did not. A run fails if its
   loop leaves out tasks. NULL restores the pool. */
typedef int (*occ_parallel_for)(void *context, int (*task)(void *closure, int k), void *closure, int count);
OCC_API int occ_set_parallel(occ_model *model, occ_parallel_for loop, void *context);

/* Memory of the caller, which the library and the models linked into the program use instead of the heap from now on. What
   does not fit fails with OCC_ERROR_MEMORY. All runs are then on the calling thread. Call it before a model is opened: it
   fails while memory of an earlier call is in use. NULL restores the heap. Kernels of artifacts (occ_open) allocate from the
   heap regardless. */
OCC_API int occ_use_memory(void *memory, size_t bytes);
/* The peak number of bytes in use since then: how much to set aside for the same models and sizes. */
OCC_API size_t occ_memory_peak(void);

/* Text of the last error of this thread, in UTF-8; empty if there was none. With a model, only if the error was that
   model's. Valid until the next error of this thread. */
OCC_API const char *occ_error_text(const occ_model *model);

#ifdef __cplusplus
}
#endif
#endif
