// Opening a model that is linked into the program.
#include "linked.h"
#include "model.h"

#include <cstdio>
#include <cstring>

using namespace occ::runtime;

static int map_weights(occ_model *m, const char *path) {
    if (!path) return fail(nullptr, OCC_ERROR_ARGUMENT, "the weights of `%s` are in a file: pass its path", occ_name(m));
    const int code = m->weights_file.open(path);
    return code ? fail(nullptr, OCC_ERROR_FILE, "the weights `%s` cannot be read: %s", path, strerror(code)) : OCC_OK;
}

static int prepare_linked(occ_model *m, const occ_linked *linked) {
    m->facts = static_cast<const Facts *>(linked->facts);
    m->entry = linked->entry;
    m->message = occ_message;
    if (int lacks = check_features(m)) return lacks;
    snprintf(m->weights_digest, sizeof m->weights_digest, "%s", linked->digest);
    return prepare_model(m);
}

static int use_given(occ_model *m, const occ_linked *linked, Bytes bytes, const char *label) {
    if (bytes.size == linked->bytes) return use_weights(m, bytes);
    return fail(nullptr, OCC_ERROR_DAMAGED, "%s has %zu bytes, the weights of `%s` have %zu", label, bytes.size, occ_name(m),
                linked->bytes);
}

static int open_linked(occ_model *m, const occ_linked *linked, const char *path) {
    if (int status = prepare_linked(m, linked)) return status;
    if (!m->facts->weights.count) return OCC_OK;
    Bytes bytes;
    bytes.data = static_cast<const unsigned char *>(linked->weights);
    bytes.size = linked->bytes;
    if (bytes.data) return use_weights(m, bytes);
    if (int status = map_weights(m, path)) return status;
    char label[300];
    snprintf(label, sizeof label, "`%s`", path);
    return use_given(m, linked, m->weights_file, label);
}

static int open_linked_memory(occ_model *m, const occ_linked *linked, Bytes bytes) {
    if (int status = prepare_linked(m, linked)) return status;
    if (!m->facts->weights.count) return OCC_OK;
    if (!bytes.data) return fail(nullptr, OCC_ERROR_ARGUMENT, "the weights of `%s` are null", occ_name(m));
    return use_given(m, linked, bytes, "the memory");
}

extern "C" int occ_open_linked(const occ_linked *linked, const char *path, occ_model **model) {
    return open_model(model, [&](occ_model *m) { return open_linked(m, linked, path); });
}

extern "C" int occ_open_linked_memory(const occ_linked *linked, const void *weights, size_t size, occ_model **model) {
    Bytes bytes;
    bytes.data = static_cast<const unsigned char *>(weights);
    bytes.size = size;
    return open_model(model, [&](occ_model *m) { return open_linked_memory(m, linked, bytes); });
}
