/* A stand-in for libascendcl.so: the calls that the runtime makes, by their published signatures, on ordinary memory.
 *
 * It is strict where the driver is vague. Every handle is remembered for ever, so that using one after its release is
 * seen; addresses of device memory cannot be read by the host; work on streams is done when somebody waits for it, so
 * that a missing wait gives wrong results every time; and what breaks the documented order of calls is written down as
 * a violation. A model is a text header and a payload, which an executor that the test registers runs.
 */
#ifndef STANDIN_H
#define STANDIN_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int aclError;
enum { MAX_TENSORS = 64, MAX_RANK = 16, MAX_GEARS = 32, MAX_GEAR_DIMS = 64 };

typedef enum { CONTEXT, STREAM, EVENT, MEMORY, MODEL, DESC, DATASET, BUFFER, TENSOR, ATTR, PROFILE, KINDS } Kind;

typedef struct Thing {
    Kind kind;
    bool alive;
    int device; /* of the context in which it was made */
    struct Thing *next;
} Thing;

typedef struct {
    Thing thing;
    bool is_default;
} Context;

typedef struct {
    Thing thing;
    char *bytes;
    size_t size;
} Memory;

typedef struct {
    Thing thing;
    void *data; /* on the device */
    size_t size;
} Buffer;

typedef struct {
    Thing thing;
    int dtype, format, rank;
    int64_t dims[MAX_RANK];
    char dynamic_input[128];
    bool is_const;
} Tensor;

typedef struct {
    Thing thing;
    int count, queued;
    Buffer *buffers[MAX_TENSORS];
    Tensor *tensors[MAX_TENSORS];
    int gear;      /* chosen one, or -1 */
    uint64_t owns; /* which of the tensors the execution made */
} Dataset;

typedef struct {
    char name[128];
    int dtype, format, rank;
    int64_t dims[MAX_RANK];
} Port;

typedef struct Stream Stream;

/* aclmdlIODims, aclmdlBatch and aclmdlHW */
typedef struct {
    char name[128];
    size_t count;
    int64_t dims[128];
} IODims;

typedef struct {
    size_t count;
    uint64_t batch[128];
} Batches;

typedef struct {
    size_t count;
    uint64_t hw[128][2];
} ImageSizes;

typedef struct {
    Thing thing;
    uint32_t id;
    Context *context;
    char *payload;
    size_t payload_size, work, weight;
    char soc[64], gears[16];
    int inputs, outputs, gear_count, gear_dims;
    int64_t gear[MAX_GEARS][MAX_GEAR_DIMS];
    Port input[MAX_TENSORS], output[MAX_TENSORS], last[MAX_TENSORS]; /* last: outputs of the last execution */
    Stream *queued_on;
    int queued;
    bool busy;
} Model;

typedef struct {
    Thing thing;
    Stream *stream; /* recorded there */
    long mark;      /* after so many of its tasks */
    double seconds;
} Event;

typedef struct Task {
    enum { COPY, EXECUTE, RECORD, WAIT, SINGLE } kind;
    void *target;
    const void *source;
    size_t size;
    int direction;
    Model *model;
    Dataset *in, *out;
    Event *event;
    Stream *other;
    long mark;
    void *single;
    struct Task *next;
} Task;

struct Stream {
    Thing thing;
    Task *first, *last;
    long done, queued;
    aclError error;
};

/* What an executor gets of a tensor; for outputs it writes `data`, at most `size` bytes, and sets the extents. */
typedef struct {
    void *data;
    size_t size;
    int32_t dtype, rank, format, unused;
    int64_t dims[MAX_RANK];
} ExecutorTensor;
typedef int (*Executor)(const void *model, size_t size, int inputs, const ExecutorTensor *in, int outputs, ExecutorTensor *out);
typedef int (*OpExecutor)(const char *type, const char *attrs, int inputs, const ExecutorTensor *in, int outputs, ExecutorTensor *out);

typedef struct {
    bool initialised, finalised, once, profiling;
    int devices, refs[16];
    char soc[64];
    size_t memory_limit, memory_used, memory_peak;
    long copies[5];
    size_t copied[5];
    int peak_streams;
    uint32_t models;
    Executor executor;
    OpExecutor op_executor;
    Thing *things;
} State;

extern State state;
extern __thread Context *current;

/* Every call begins with one of these: it holds the lock to the end of the function, counts the call, and fails it if
 * it was told to. A release does its work all the same, and then reports the failure. */
void lock_calls(void);
void unlock_calls(const int *unused);
aclError begin(const char *call, bool needs_init);
#define LOCKED __attribute__((cleanup(unlock_calls))) const int locked_ = (lock_calls(), 0); (void)locked_
#define CALL(name) LOCKED; do { aclError e_ = begin(#name, true); if (e_) return e_; } while (0)
#define MAKES(name, nothing) LOCKED; do { if (begin(#name, true)) return nothing; } while (0)
#define RELEASES(name) LOCKED; const aclError told_ = begin(#name, true)

void *make(Kind kind, size_t size);
bool is_alive(const void *thing, Kind kind, const char *call);
aclError fail(aclError code, const char *format, ...) __attribute__((format(printf, 2, 3)));
void violation(const char *format, ...) __attribute__((format(printf, 1, 2)));
char *on_device(const void *address, size_t size, const char *call);
bool has_context(const char *call);
aclError drain(Stream *stream, long mark);
Task *enqueue(Stream *stream, Task task);
aclError run_model(Model *m, Dataset *in, Dataset *out);
aclError run_single(void *single);
void forget_operators(void);
void count_streams(void);
Model *find_model(uint32_t id, const char *call);
const Model *described(const void *desc, const char *call);
bool has_gears(const Model *m);
void geared(const Model *m, int input, int gear, int64_t *dims);
aclError give_dims(const Port *p, IODims *dims);
size_t bytes_of(int dtype, int rank, const int64_t *dims);
#endif
