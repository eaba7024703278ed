/* Reads the only input of a model, little-endian numbers of 32 bits, from standard input, and prints where its output is largest:
     cc classify.c $(occ config --cflags --libs) -o classify
     ./classify model.occ < picture.bin */
#include <occ.h>
#include <stdio.h>
#include <stdlib.h>

static int failed(occ_model *model) {
    fprintf(stderr, "%s\n", occ_error_text(model));
    return EXIT_FAILURE;
}

int main(int count, char **arguments) {
    static float picture[1 << 20];
    occ_model *model = NULL;
    if (count != 2) return fprintf(stderr, "usage: %s MODEL.occ < PICTURE\n", arguments[0]), 2;
    if (occ_open(arguments[1], &model)) return failed(NULL);
    const occ_port *port = occ_input(model, 0);
    occ_tensor in = {.data = picture, .dtype = OCC_F32, .rank = port->rank}, out = {0};
    size_t wanted = 1;
    for (int axis = 0; axis < port->rank; axis++) {
        in.extents[axis] = port->extents[axis] > 0 ? port->extents[axis] : 1; /* batches are of one */
        wanted *= (size_t)in.extents[axis];
    }
    in.bytes = wanted * sizeof(float);
    if (wanted > sizeof picture / sizeof *picture || fread(picture, sizeof *picture, wanted, stdin) != wanted)
        return fprintf(stderr, "%zu numbers of 32 bits are wanted\n", wanted), EXIT_FAILURE;
    if (occ_run(model, &in, 1, &out, 1)) return failed(model);
    const float *scores = out.data;
    size_t best = 0;
    for (size_t k = 0; k < out.bytes / sizeof *scores; k++) best = scores[k] > scores[best] ? k : best;
    printf("%zu\n", best);
    occ_free(&out);
    occ_close(model);
}
