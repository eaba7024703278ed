/* Twelve threads that make, use and release everything of libonnxifi-occ a hundred times, and misuse all of it. The argument
   is a model: y = Relu(x), of four floats. */
#include <onnxifi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(wanted, call)                                                                          \
    do {                                                                                             \
        const onnxStatus found_ = (call);                                                            \
        if (found_ != (wanted)) {                                                                    \
            fprintf(stderr, "line %d: %s is %x, not %x\n", __LINE__, #call, (unsigned)found_, (unsigned)(wanted)); \
            return (void *)1;                                                                        \
        }                                                                                            \
    } while (0)
#define OK ONNXIFI_STATUS_SUCCESS

static unsigned char model[1 << 16];
static size_t size;
static const uint64_t quick[] = {ONNXIFI_BACKEND_PROPERTY_OPTIMIZATION, ONNXIFI_OPTIMIZATION_LOW_DELAY,
                                 ONNXIFI_BACKEND_PROPERTY_LOG_LEVEL, ONNXIFI_LOG_LEVEL_ERROR, 0};
static const uint64_t shape[1] = {4};
static int times = 100;

static onnxTensorDescriptorV1 tensor(const char *name, float *data) {
    onnxTensorDescriptorV1 d = {ONNXIFI_TAG_TENSOR_DESCRIPTOR_V1, name, ONNXIFI_DATATYPE_FLOAT32, ONNXIFI_MEMORY_TYPE_CPU, 1,
                                shape, (onnxPointer)(uintptr_t)data};
    return d;
}

static void *signal_later(void *event) { return (void *)(uintptr_t)onnxSignalEvent(event); }

/* A graph that is released while its run waits: the release ends when another thread signals. */
static void *release_while_running(onnxBackend backend, onnxGraph graph) {
    onnxMemoryFenceV1 begin = {ONNXIFI_TAG_MEMORY_FENCE_V1, ONNXIFI_SYNCHRONIZATION_EVENT, {NULL}}, end = begin;
    pthread_t other;
    void *status;
    CHECK(OK, onnxInitEvent(backend, &begin.event));
    CHECK(OK, onnxRunGraph(graph, &begin, &end));
    pthread_create(&other, NULL, signal_later, begin.event);
    CHECK(OK, onnxReleaseGraph(graph));
    CHECK(OK, onnxWaitEvent(end.event));
    pthread_join(other, &status);
    CHECK(OK, (onnxStatus)(uintptr_t)status);
    CHECK(ONNXIFI_STATUS_INVALID_GRAPH, onnxRunGraph(graph, &begin, &end));
    CHECK(ONNXIFI_STATUS_INVALID_GRAPH, onnxReleaseGraph(graph));
    CHECK(OK, onnxReleaseEvent(begin.event));
    CHECK(OK, onnxReleaseEvent(end.event));
    return NULL;
}

/* An event that is released before anybody signals it: its run fails, and nobody waits for ever. */
static void *release_event_first(onnxBackend backend, onnxGraph graph) {
    onnxMemoryFenceV1 begin = {ONNXIFI_TAG_MEMORY_FENCE_V1, ONNXIFI_SYNCHRONIZATION_EVENT, {NULL}}, end = begin;
    CHECK(OK, onnxInitEvent(backend, &begin.event));
    CHECK(OK, onnxRunGraph(graph, &begin, &end));
    CHECK(OK, onnxReleaseEvent(begin.event));
    CHECK(ONNXIFI_STATUS_INTERNAL_ERROR, onnxWaitEvent(end.event));
    CHECK(ONNXIFI_STATUS_INVALID_EVENT, onnxSignalEvent(begin.event));
    CHECK(OK, onnxReleaseEvent(end.event));
    return NULL;
}

static void *run(onnxBackend backend, onnxGraph graph, int k) {
    float x[4] = {-1, (float)k, 2, -3}, y[4] = {9, 9, 9, 9}, z[4] = {9, 9, 9, 9};
    onnxTensorDescriptorV1 in = tensor("x", x), out = tensor("y", y), other = tensor("y", z);
    onnxMemoryFenceV1 begin = {ONNXIFI_TAG_MEMORY_FENCE_V1, ONNXIFI_SYNCHRONIZATION_EVENT, {NULL}}, end = begin, last = begin;
    onnxEventState state;
    CHECK(ONNXIFI_STATUS_UNIDENTIFIED_NAME, onnxSetGraphIO(graph, 0, NULL, 1, &out));
    CHECK(OK, onnxInitEvent(backend, &begin.event));
    CHECK(ONNXIFI_STATUS_UNIDENTIFIED_NAME, onnxRunGraph(graph, &begin, &end));
    CHECK(OK, onnxSetGraphIO(graph, 1, &in, 1, &out));
    CHECK(OK, onnxRunGraph(graph, &begin, &end));
    CHECK(OK, onnxGetEventState(end.event, &state));
    if (state != ONNXIFI_EVENT_STATE_NONSIGNALLED) return (void *)1;
    CHECK(OK, onnxSetIOAndRunGraph(graph, 1, &in, 1, &other, &last)); /* passes the run that waits */
    CHECK(OK, onnxWaitEvent(last.event));
    CHECK(OK, onnxSignalEvent(begin.event));
    CHECK(ONNXIFI_STATUS_INVALID_STATE, onnxSignalEvent(begin.event));
    CHECK(OK, onnxWaitEvent(end.event));
    const float wanted[4] = {0, (float)k, 2, 0};
    if (memcmp(y, wanted, sizeof y) || memcmp(z, wanted, sizeof z)) return (void *)2;
    for (onnxEvent *e = (onnxEvent[]){begin.event, end.event, last.event, NULL}; *e; e++) CHECK(OK, onnxReleaseEvent(*e));
    if (release_event_first(backend, graph)) return (void *)3;
    CHECK(OK, onnxSetGraphIO(graph, 1, &in, 1, &out));
    return release_while_running(backend, graph);
}

static void *work(void *unused) {
    (void)unused;
    for (int k = 0; k < times; k++) {
        onnxBackendID id = NULL;
        onnxBackend backend = NULL;
        onnxGraph graph = NULL;
        onnxEvent event = NULL;
        size_t count = 1, bytes = 0;
        CHECK(OK, onnxGetBackendIDs(&id, &count));
        CHECK(ONNXIFI_STATUS_FALLBACK, onnxGetBackendInfo(id, ONNXIFI_BACKEND_NAME, NULL, &bytes));
        CHECK(OK, onnxInitBackend(id, quick, &backend));
        CHECK(OK, onnxReleaseBackendID(id));
        CHECK(ONNXIFI_STATUS_INVALID_BACKEND, onnxInitGraph(id, NULL, size, model, 0, NULL, &graph));
        CHECK(OK, onnxInitGraph(backend, NULL, size, model, 0, NULL, &graph));
        CHECK(OK, onnxInitEvent(backend, &event)); /* stays until after its backend */
        if (run(backend, graph, k)) return (void *)1;
        CHECK(ONNXIFI_STATUS_INVALID_EVENT, onnxReleaseEvent(graph));
        CHECK(OK, onnxReleaseBackend(backend));
        CHECK(ONNXIFI_STATUS_INVALID_BACKEND, onnxReleaseBackend(backend));
        CHECK(ONNXIFI_STATUS_INVALID_BACKEND, onnxInitEvent((onnxBackend)&event, &event));
        if (event) return (void *)1;
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[12];
    onnxBackendID id;
    onnxBackend backend;
    onnxGraph graph = NULL;
    size_t count = 1;
    FILE *f = argc > 1 ? fopen(argv[1], "rb") : NULL;
    if (!f) return 2;
    size = fread(model, 1, sizeof model, f);
    fclose(f);
    if (argc > 2) times = atoi(argv[2]);
    /* Built once, before the threads: the process that compiles is the same for all. */
    if (onnxGetBackendIDs(&id, &count) || onnxInitBackend(id, quick, &backend)) return 3;
    if (onnxInitGraph(backend, NULL, size, model, 0, NULL, &graph)) return 4;
    onnxReleaseGraph(graph);
    long failed = 0;
    for (int k = 0; k < 12; k++) pthread_create(&threads[k], NULL, work, NULL);
    for (int k = 0; k < 12; k++) {
        void *result;
        pthread_join(threads[k], &result);
        failed |= (long)result;
    }
    onnxReleaseBackend(backend);
    onnxReleaseBackendID(id);
    return failed ? 5 : 0;
}
