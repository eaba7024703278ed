/* Calls functions of libonnxifi-occ while the heap has nothing left, from the first allocation of each on, then from the second,
   and so on, until they succeed. The argument is a model: y = Relu(x), of four floats. */
#include <errno.h>
#include <onnxifi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void *__libc_malloc(size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static __thread long left = -1; /* allocations of this thread that succeed; all if negative */
static int lacks(void) { return left >= 0 && left-- == 0 && ++left == 0; }
void *malloc(size_t size) { return lacks() ? (errno = ENOMEM, NULL) : __libc_malloc(size); }
int posix_memalign(void **made, size_t alignment, size_t size) {
    *made = lacks() ? NULL : __libc_memalign(alignment, size);
    return *made ? 0 : ENOMEM;
}

#define STEPS(call)                                                                       \
    do {                                                                                  \
        for (long k = 0;; k++) {                                                          \
            left = k;                                                                     \
            const onnxStatus found_ = (call);                                             \
            left = -1;                                                                    \
            if (!found_) {                                                                \
                printf("%ld %s\n", k, #call);                                             \
                break;                                                                    \
            }                                                                             \
            if (found_ != ONNXIFI_STATUS_NO_SYSTEM_MEMORY || k > 5000)                     \
                return printf("%x at %ld: %s\n", (unsigned)found_, k, #call), 1;          \
        }                                                                                 \
    } while (0)

int main(int argc, char **argv) {
    static unsigned char model[1 << 16];
    FILE *f = argc > 1 ? fopen(argv[1], "rb") : NULL;
    const size_t size = f ? fread(model, 1, sizeof model, f) : 0;
    float x[4] = {-1, 2, -3, 4}, y[4] = {9, 9, 9, 9};
    const uint64_t shape[1] = {4}, quiet[] = {ONNXIFI_BACKEND_PROPERTY_OPTIMIZATION, ONNXIFI_OPTIMIZATION_LOW_DELAY,
                                              ONNXIFI_BACKEND_PROPERTY_LOG_LEVEL, ONNXIFI_LOG_LEVEL_ERROR, 0};
    const onnxTensorDescriptorV1 in = {ONNXIFI_TAG_TENSOR_DESCRIPTOR_V1, "x", ONNXIFI_DATATYPE_FLOAT32, ONNXIFI_MEMORY_TYPE_CPU, 1,
                                       shape, (onnxPointer)(uintptr_t)x};
    onnxTensorDescriptorV1 out = in;
    out.name = "y";
    out.buffer = (onnxPointer)(uintptr_t)y;
    onnxMemoryFenceV1 begin = {ONNXIFI_TAG_MEMORY_FENCE_V1, ONNXIFI_SYNCHRONIZATION_EVENT, {NULL}}, end = begin, now = begin;
    now.type = ONNXIFI_SYNCHRONIZATION_IMPLICIT;
    onnxBackendID ids[1];
    onnxBackend backend;
    onnxGraph graph;
    size_t count = 1, bytes = 0;
    alarm(120); /* a graph that waits for a run that failed is never released */
    setvbuf(stdout, NULL, _IONBF, 0);
    STEPS(onnxGetBackendIDs(ids, &count));
    STEPS(onnxGetBackendInfo(ids[0], ONNXIFI_BACKEND_OPSET_VERSION, NULL, &bytes) == ONNXIFI_STATUS_FALLBACK
              ? ONNXIFI_STATUS_SUCCESS : ONNXIFI_STATUS_NO_SYSTEM_MEMORY);
    STEPS(onnxInitBackend(ids[0], quiet, &backend));
    if (onnxInitGraph(backend, NULL, size, model, 0, NULL, &graph) || onnxReleaseGraph(graph)) return 2; /* builds it */
    STEPS(onnxGetBackendCompatibility(ids[0], size, model));
    STEPS(onnxInitGraph(backend, NULL, size, model, 0, NULL, &graph));
    STEPS(onnxSetGraphIO(graph, 1, &in, 1, &out));
    STEPS(onnxRunGraph(graph, &now, &now));
    if (y[0] || y[1] != 2 || y[2] || y[3] != 4) return 3;
    memset(y, 1, sizeof y);
    STEPS(onnxInitEvent(backend, &begin.event));
    if (onnxReleaseEvent(begin.event)) return 4;
    /* Each attempt has an event of its own, and only that of the last one is signalled: of those that failed none may wait. */
    onnxMemoryFenceV1 begins[100];
    int k = -1;
    for (onnxStatus status = ONNXIFI_STATUS_NO_SYSTEM_MEMORY; status; left = -1) {
        if (status != ONNXIFI_STATUS_NO_SYSTEM_MEMORY || ++k == 100) return 4;
        begins[k] = begin;
        if (onnxInitEvent(backend, &begins[k].event)) return 4;
        left = k;
        status = onnxRunGraph(graph, &begins[k], &end);
    }
    printf("%d onnxRunGraph(later)\n", k);
    const onnxEvent last = begins[k].event; /* the macro has a `k` of its own */
    STEPS(onnxSignalEvent(last));
    if (onnxWaitEvent(end.event) || y[0] || y[1] != 2 || y[2] || y[3] != 4) return 4;
    STEPS(onnxSetIOAndRunGraph(graph, 1, &in, 1, &out, &now));
    if (onnxReleaseEvent(end.event) || onnxReleaseGraph(graph) || onnxReleaseBackend(backend)) return 5;
    return onnxReleaseBackendID(ids[0]);
}
