// Opening a model that is linked into the program.
#include "linked.h"
#include "model.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace occ::runtime;

static int map_weights(occ_model *m, const char *path) {
    if (!path) return fail(nullptr, OCC_ERROR_ARGUMENT, "the weights of `%s` are in a file: give its path", occ_name(m));
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat facts;
    if (fd < 0 || fstat(fd, &facts) || !S_ISREG(facts.st_mode)) {
        const int code = errno;
        if (fd >= 0) close(fd);
        return fail(nullptr, OCC_ERROR_FILE, "the weights `%s` cannot be read: %s", path, strerror(code));
    }
    const int code = m->weights_file.map(fd, 0, size_t(facts.st_size));
    close(fd);
    return code ? fail(nullptr, OCC_ERROR_FILE, "the weights `%s` cannot be mapped: %s", path, strerror(code)) : OCC_OK;
}

static int open_linked(occ_model *m, const occ_linked *linked, const char *path) {
    m->facts = static_cast<const Facts *>(linked->facts);
    m->entry = linked->entry;
    m->message = occ_message;
    if (int lacks = check_features(m)) return lacks;
    if (int status = prepare_model(m)) return status;
    if (!m->facts->weights.count) return OCC_OK;
    snprintf(m->weights_digest, sizeof m->weights_digest, "%s", linked->digest);
    Bytes bytes;
    bytes.data = static_cast<const unsigned char *>(linked->weights);
    bytes.size = linked->bytes;
    if (!bytes.data) {
        if (int status = map_weights(m, path)) return status;
        bytes = m->weights_file;
    }
    if (bytes.size == linked->bytes) return use_weights(m, bytes);
    return fail(nullptr, OCC_ERROR_DAMAGED, "`%s` has %zu bytes, the weights of `%s` have %zu", path, bytes.size, occ_name(m),
                linked->bytes);
}

extern "C" int occ_open_linked(const occ_linked *linked, const char *path, occ_model **model) {
    return open_model(model, [&](occ_model *m) { return open_linked(m, linked, path); });
}
