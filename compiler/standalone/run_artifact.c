/* Opens the artifact that its argument names, reads its inputs from the standard input, runs it, and writes its outputs to the
   standard output; each tensor as element type, rank, extents and data. emulated.py reads and writes the other ends. */
#include <occ.h>
#include <stdio.h>
#include <stdlib.h>

static int failed(const occ_model *model) {
    fprintf(stderr, "%s\n", occ_error_text(model));
    return 1;
}

static int read_tensor(occ_tensor *t) {
    size_t count = 1;
    if (fread(&t->dtype, 4, 1, stdin) != 1 || fread(&t->rank, 4, 1, stdin) != 1 || t->rank > OCC_MAX_RANK) return 0;
    if (t->rank && fread(t->extents, 8, (size_t)t->rank, stdin) != (size_t)t->rank) return 0;
    for (int a = 0; a < t->rank; a++) count *= (size_t)t->extents[a];
    t->bytes = count * occ_element_size(t->dtype);
    t->data = malloc(t->bytes + 1);
    return t->data && fread(t->data, 1, t->bytes, stdin) == t->bytes;
}

static void write_tensor(const occ_tensor *t) {
    size_t count = 1;
    for (int a = 0; a < t->rank; a++) count *= (size_t)t->extents[a];
    fwrite(&t->dtype, 4, 1, stdout);
    fwrite(&t->rank, 4, 1, stdout);
    fwrite(t->extents, 8, (size_t)t->rank, stdout);
    fwrite(t->data, 1, count * occ_element_size(t->dtype), stdout);
}

int main(int argc, char **argv) {
    occ_model *model;
    if (argc < 2 || occ_open(argv[1], &model)) return failed(NULL);
    const size_t n = occ_inputs(model), m = occ_outputs(model);
    occ_tensor *in = calloc(n + 1, sizeof *in), *out = calloc(m + 1, sizeof *out);
    for (size_t k = 0; k < n; k++) {
        if (!read_tensor(&in[k])) return 2;
    }
    if (occ_run(model, in, n, out, m)) return failed(model);
    for (size_t k = 0; k < m; k++) write_tensor(&out[k]);
    return fflush(stdout) ? 3 : 0;
}
