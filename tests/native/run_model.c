// Runs an artifact that was built as a folder, `mlp`: reads x.bin (3 x 8 floats), writes y.bin. Its arguments are the
// offsets of the weights, which manifest.json has.
@HEADER@
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *read_all(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) exit(2);
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    char *data = aligned_alloc(64, (size + 127) / 64 * 64);
    if (fread(data, 1, size, f) != (size_t)size) exit(3);
    fclose(f);
    return data;
}

int main(int argc, char **argv) {
    char *bytes = read_all("mlp/weights.bin");
    const void *weights[16];
    for (int k = 1; k < argc; k++) weights[k - 1] = bytes + atol(argv[k]);
    void *library = dlopen("mlp/kernels/model.so", RTLD_NOW);
    if (!library) return 4;
    int32_t (*run)(struct occ_call *) = (int32_t(*)(struct occ_call *))dlsym(library, "occ_model_run");
    if (!run) return 5;

    int64_t extents[] = {3, 8}, results[2];
    const void *inputs[] = {read_all("x.bin")};
    struct occ_call call;
    memset(&call, 0, sizeof call);
    call.abi = OCC_ABI;
    call.threads = 2;
    call.weights = weights;
    call.extents = extents;
    call.inputs = inputs;
    call.results = results;
    if (run(&call) != OCC_MEMORY) return 6;  // asks for sizes
    if (results[0] != 3 || results[1] != 4) return 7;
    void *outputs[] = {aligned_alloc(64, (results[0] * results[1] * sizeof(float) + 63) / 64 * 64)};
    call.outputs = outputs;
    call.memory = aligned_alloc(64, (call.needed + 63) / 64 * 64);
    call.capacity = call.needed;
    for (int k = 0; k < 3; k++)
        if (run(&call) != OCC_DONE) return 8;
    FILE *f = fopen("y.bin", "wb");
    fwrite(outputs[0], sizeof(float), results[0] * results[1], f);
    fclose(f);

    extents[1] = 9;  // the model takes 8
    return run(&call) == OCC_INPUTS ? 0 : 9;
}
