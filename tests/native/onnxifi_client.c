/* A client of ONNXIFI: loads a library with the loader of onnx, or the wrapper of onnx where no path is given, and runs what
   it reads from its standard input. What came out goes to the standard output, as onnxifi_client.py reads it. */
#include <onnx/onnxifi_loader.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct onnxifi_library lib;

static void get(void *to, size_t size) {
    if (size && fread(to, 1, size, stdin) != size) exit(3);
}
static uint32_t get_u32(void) {
    uint32_t n;
    get(&n, sizeof n);
    return n;
}
static uint64_t get_u64(void) {
    uint64_t n;
    get(&n, sizeof n);
    return n;
}
static char *get_bytes(uint64_t size) {
    char *made = calloc(1, size + 1);
    get(made, size);
    return made;
}
static void put_u32(uint32_t n) { fwrite(&n, sizeof n, 1, stdout); }

static onnxTensorDescriptorV1 get_tensor(uint64_t *size) {
    onnxTensorDescriptorV1 d;
    memset(&d, 0, sizeof d);
    d.tag = ONNXIFI_TAG_TENSOR_DESCRIPTOR_V1;
    d.name = get_bytes(get_u32());
    d.dataType = get_u32();
    d.memoryType = ONNXIFI_MEMORY_TYPE_CPU;
    d.dimensions = get_u32();
    d.shape = (const uint64_t *)get_bytes(d.dimensions * sizeof(uint64_t));
    *size = get_u64();
    d.buffer = (onnxPointer)get_bytes(*size);
    return d;
}

struct tensors {
    uint32_t count;
    onnxTensorDescriptorV1 *d;
    uint64_t *sizes;
};

static struct tensors get_tensors(void) {
    struct tensors t;
    t.count = get_u32();
    t.d = calloc(t.count + 1, sizeof *t.d);
    t.sizes = calloc(t.count + 1, sizeof *t.sizes);
    for (uint32_t k = 0; k < t.count; k++) t.d[k] = get_tensor(&t.sizes[k]);
    return t;
}

static void free_tensors(struct tensors t) {
    for (uint32_t k = 0; k < t.count; k++) {
        free((void *)t.d[k].name);
        free((void *)t.d[k].shape);
        free((void *)t.d[k].buffer);
    }
    free(t.d);
    free(t.sizes);
}

/* One run by the protocol of events; statuses of SetGraphIO and of the run. */
static void run(onnxBackend backend, onnxGraph graph, struct tensors in, struct tensors out, uint32_t status[4]) {
    status[2] = lib.onnxSetGraphIO(graph, in.count, in.d, out.count, out.d);
    if (status[2]) return;
    onnxMemoryFenceV1 begin = {ONNXIFI_TAG_MEMORY_FENCE_V1, ONNXIFI_SYNCHRONIZATION_EVENT, {NULL}}, end = begin;
    status[3] = lib.onnxInitEvent(backend, &begin.event);
    if (!status[3]) status[3] = lib.onnxRunGraph(graph, &begin, &end);
    if (!status[3]) status[3] = lib.onnxSignalEvent(begin.event);
    if (!status[3]) status[3] = lib.onnxWaitEvent(end.event);
    lib.onnxReleaseEvent(begin.event);
    lib.onnxReleaseEvent(end.event);
}

static void run_case(onnxBackendID id, onnxBackend backend) {
    const uint64_t size = get_u64();
    char *model = get_bytes(size);
    struct tensors in = get_tensors(), weights = get_tensors(), out = get_tensors();
    uint32_t status[4] = {0, 0, 0, 0};
    onnxGraph graph = NULL;
    status[0] = lib.onnxGetBackendCompatibility(id, size, model);
    status[1] = lib.onnxInitGraph(backend, NULL, size, model, weights.count, weights.d, &graph);
    if (!status[1]) run(backend, graph, in, out, status);
    if (graph) lib.onnxReleaseGraph(graph);
    for (int k = 0; k < 4; k++) put_u32(status[k]);
    for (uint32_t k = 0; k < out.count; k++) fwrite((void *)out.d[k].buffer, 1, out.sizes[k], stdout);
    free(model);
    free_tensors(in);
    free_tensors(weights);
    free_tensors(out);
}

int main(int argc, char **argv) {
    onnxBackendID ids[8];
    onnxBackend backend;
    size_t count = 0;
    const uint64_t properties[] = {ONNXIFI_BACKEND_PROPERTY_OPTIMIZATION, argc > 1 ? (uint64_t)atoi(argv[1]) : 0,
                                   ONNXIFI_BACKEND_PROPERTY_LOG_LEVEL, ONNXIFI_LOG_LEVEL_ERROR, 0};
    if (!onnxifi_load(ONNXIFI_LOADER_FLAG_VERSION_1_0, argc > 2 ? argv[2] : NULL, &lib)) return 4;
    if (lib.onnxGetBackendIDs(NULL, &count) != ONNXIFI_STATUS_FALLBACK || !count || count > 8) return 5;
    if (lib.onnxGetBackendIDs(ids, &count)) return 6;
    if (lib.onnxInitBackend(ids[0], properties, &backend)) return 7;
    for (uint32_t cases = get_u32(); cases; cases--) run_case(ids[0], backend);
    lib.onnxReleaseBackend(backend);
    for (size_t k = 0; k < count; k++) lib.onnxReleaseBackendID(ids[k]);
    onnxifi_unload(&lib);
    return fflush(stdout) ? 8 : 0;
}
