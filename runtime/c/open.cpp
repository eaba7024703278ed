// Opening artifacts: finding the members, checking their digests, loading the code.
#ifdef __linux__
#include "machine.h"
#include "members.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace occ::runtime;

namespace {

constexpr size_t kMachineLength = 200;
constexpr char kManifest[] = "manifest.json", kLibrary[] = "kernels/model.so", kWeights[] = "weights.bin";

// A member that the caller releases; `label` names its file.
int find(const Members &members, const char *label, const char *name, Mapping &member) {
    switch (members.find(name, member)) {
        case Found::yes: return OCC_OK;
        case Found::missing: return fail(nullptr, OCC_ERROR_DAMAGED, "`%s` is not an artifact: `%s` is missing", label, name);
        case Found::damaged: return fail(nullptr, OCC_ERROR_DAMAGED, "`%s` is not an artifact, or damaged: build it again", label);
        default: return fail(nullptr, OCC_ERROR_FILE, "`%s` in `%s` cannot be read: %s", name, label, strerror(errno));
    }
}

bool write_all(int fd, Bytes code) {
    while (code.size) {
        const ssize_t n = write(fd, code.data, code.size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        code.data += n;
        code.size -= size_t(n);
    }
    return true;
}

void unload(occ_model *m) {
    if (m->library) dlclose(m->library);
    if (m->library_file >= 0) close(m->library_file);
}

// Whether everything that the loader maps is there: it would not notice, and the process would end with SIGBUS.
bool is_whole_library(Bytes code) {
    ElfW(Ehdr) head;
    if (code.size < sizeof head) return false;
    memcpy(&head, code.data, sizeof head);
    if (memcmp(head.e_ident, ELFMAG, SELFMAG) || (head.e_ident[EI_CLASS] != ELFCLASS64 && head.e_ident[EI_CLASS] != ELFCLASS32)) return false;
    if (head.e_ident[EI_CLASS] != (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32)) return true;  // of another machine, which is rejected
    if (head.e_phentsize != sizeof(ElfW(Phdr)) || head.e_phoff > code.size) return false;
    if (head.e_phnum > (code.size - head.e_phoff) / sizeof(ElfW(Phdr))) return false;
    for (int k = 0; k < head.e_phnum; k++) {
        ElfW(Phdr) part;
        memcpy(&part, code.data + head.e_phoff + size_t(k) * sizeof part, sizeof part);
        if (part.p_offset > code.size || part.p_filesz > code.size - part.p_offset) return false;
    }
    return true;
}

// Whether an existing file cannot be opened because too many are open: the loader does not say so.
bool too_many_files(const char *path) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) close(fd);
    return fd < 0 && (errno == EMFILE || errno == ENFILE);
}

// Load code from memory: through an anonymous file, or a temporary one if /proc does not show it. The file stays open
// with the library: the loader takes two files with the same name for one library, and a descriptor in use is not
// reused.
int load_code(occ_model *m, Bytes code, const char *label) {
    char path[512];
    m->unload = unload;
    m->library_file = memfd_create("occ-model", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", m->library_file);
    const bool temporary = m->library_file < 0 || access(path, R_OK);
    if (temporary) {
        if (m->library_file >= 0) close(m->library_file);
        const char *folder = getenv("TMPDIR");
        snprintf(path, sizeof path, "%.400s/occ-model-XXXXXX", folder && *folder ? folder : "/tmp");
        m->library_file = mkostemp(path, O_CLOEXEC);
        if (m->library_file < 0) return fail(nullptr, OCC_ERROR_FILE, "`%s` cannot be made: %s", path, strerror(errno));
    }
    const bool written = write_all(m->library_file, code);
    if (written) m->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const int code_of_error = errno;
    const bool too_many = written && !m->library && too_many_files(path);
    if (temporary) unlink(path);
    if (!written) return fail(nullptr, OCC_ERROR_FILE, "the code of `%s` cannot be copied: %s", label, strerror(code_of_error));
    if (m->library) return OCC_OK;
    if (too_many) return fail(nullptr, OCC_ERROR_FILE, "the code of `%s` cannot be read: %s", label, strerror(EMFILE));
    return fail(nullptr, OCC_ERROR_UNSUPPORTED, "the code of `%s` does not load on this machine: %s", label, dlerror());
}

// `e_machine` of ELF files for this machine and for the machines that artifacts can be built for.
#if defined(__x86_64__)
constexpr int kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr int kMachine = EM_AARCH64;
#elif defined(__arm__)
constexpr int kMachine = EM_ARM;
#elif defined(__riscv)
constexpr int kMachine = EM_RISCV;
#elif defined(__powerpc64__)
constexpr int kMachine = EM_PPC64;
#else
constexpr int kMachine = EM_NONE;
#endif

const char *machine_name(int number) {
    switch (number) {
        case EM_X86_64: return "x86-64";
        case EM_AARCH64: return "aarch64";
        case EM_ARM: return "arm";
        case EM_RISCV: return "riscv64";
        case EM_PPC64: return "ppc64le";
        default: return "another kind of machine";
    }
}

int check_machine(Bytes code, const char *label) {
    const int made = code.size < 20 ? 0 : code.data[18] | code.data[19] << 8;
    if (!kMachine || made == kMachine) return OCC_OK;
    return fail(nullptr, OCC_ERROR_UNSUPPORTED, "`%s` was built for %s, this machine is %s: build it for this one", label,
                machine_name(made), machine_name(kMachine));
}

template<typename F> F symbol(const occ_model *m, const char *name) { return reinterpret_cast<F>(dlsym(m->library, name)); }

int load_library(occ_model *m, const Members &members, Bytes manifest, const char *label) {
    if (!contains(manifest, kLibrary)) {
        return fail(nullptr, OCC_ERROR_UNSUPPORTED, "`%s` has no native code: build it for `cpu` or `cpu-jit`", label);
    }
    Mapping code;
    if (int status = find(members, label, kLibrary, code)) return status;
    char found[65], given[65];
    sha256_hex(code.data, code.size, found);
    int status = OCC_OK;
    if (!digest_in(manifest, kLibrary, given) || strcmp(found, given) != 0) {
        status = fail(nullptr, OCC_ERROR_DAMAGED, "`%s` of `%s` does not match its digest: build it again", kLibrary, label);
    } else if (!is_whole_library(code)) {
        status = fail(nullptr, OCC_ERROR_DAMAGED, "`%s` of `%s` is cut off, or not a library: build it again", kLibrary, label);
    } else {
        status = check_machine(code, label);
        if (!status) status = load_code(m, code, label);
    }
    code.release();
    if (status) return status;
    m->facts = symbol<const Facts *>(m, "occ_model_facts");
    m->entry = symbol<EntryFunction>(m, "occ_model_run");
    if (!m->facts || (!m->entry && !m->facts->refusal)) {
        return fail(nullptr, OCC_ERROR_UNSUPPORTED, "`%s` was built by an older occ, without what libocc reads: build it again", label);
    }
    if (int lacks = check_features(m)) return lacks;
    m->message = symbol<const char *(*)()>(m, "occ_message");
    if (auto share = symbol<void (*)(occ_par_for_t)>(m, "occ_share_pool")) share(occ_pool());
    return prepare_model(m);
}

// The length of the readable part of a machine's name; the rest says how kernels are called.
int shown(const char *machine) {
    const char *end = strstr(machine, "-no_runtime");
    return int(end ? size_t(end - machine) : strlen(machine));
}

// Selects, of the machines that there is code for, the one that requires most features of this one; sets `prefix` to
// its members. No code is loaded before.
int choose_machine(Bytes manifest, const char *label, char *prefix, size_t size) {
    char first[kMachineLength], other[kMachineLength], listed[512];
    machine_in(manifest, first, sizeof first);
    int best = runs_here(first) ? features_of(first) : -1;
    int length = snprintf(listed, sizeof listed, "%.*s", shown(first), first);
    const int alone = length;
    const char *lacks = missing_feature(first);
    for (size_t at = 0; next_machine(manifest, at, other, sizeof other);) {
        if (length < int(sizeof listed)) {
            length += snprintf(listed + length, sizeof listed - size_t(length), ", %.*s", shown(other), other);
        }
        if (!lacks) lacks = missing_feature(other);
        if (!runs_here(other) || features_of(other) <= best) continue;
        best = features_of(other);
        snprintf(prefix, size, "machines/%s/", other);
    }
    if (best >= 0) return OCC_OK;
    if (length > alone) {
        return fail(nullptr, OCC_ERROR_UNSUPPORTED, "`%s` has code for %s; this machine %s%s: build it for this one too", label, listed,
                    lacks ? "lacks " : "is of another kind", lacks ? lacks : "");
    }
    if (!lacks) return OCC_OK;  // of another kind, as the code says
    return fail(nullptr, OCC_ERROR_UNSUPPORTED, "`%s` was built for a processor with %s, which this one lacks", label, lacks);
}

// Continues with the members of the selected machine.
int enter_machine(Members &members, Mapping &manifest, const char *label) {
    char prefix[sizeof members.prefix] = "", name[sizeof prefix + sizeof kManifest], found[65], given[65];
    if (!is_whole(manifest)) {
        return fail(nullptr, OCC_ERROR_DAMAGED, "`%s` of `%s` is damaged: build it again", kManifest, label);
    }
    if (int status = choose_machine(manifest, label, prefix, sizeof prefix)) return status;
    if (!*prefix) return OCC_OK;
    snprintf(name, sizeof name, "%s%s", prefix, kManifest);
    const bool known = digest_in(manifest, name, given);
    manifest.release();
    strcpy(members.prefix, prefix);
    if (int status = find(members, label, kManifest, manifest)) return status;
    sha256_hex(manifest.data, manifest.size, found);
    if (known && !strcmp(found, given)) return OCC_OK;
    return fail(nullptr, OCC_ERROR_DAMAGED, "`%s` of `%s` does not match its digest: build it again", name, label);
}

// The weights of the machine, or those it shares with the first.
int find_weights(Members &members, const char *label, Mapping &weights) {
    if (*members.prefix && members.find(kWeights, weights) == Found::missing) *members.prefix = 0;
    return weights.data ? OCC_OK : find(members, label, kWeights, weights);
}

int open_members(occ_model *m, Members members, const char *label) {
    Mapping manifest;
    if (int status = find(members, label, kManifest, manifest)) return status;
    int status = enter_machine(members, manifest, label);
    if (!status) status = load_library(m, members, manifest, label);
    if (!status && m->facts->weights.count) {
        status = find_weights(members, label, m->weights_file);
        if (!status && !digest_in(manifest, kWeights, m->weights_digest)) {
            status = fail(nullptr, OCC_ERROR_DAMAGED, "the manifest of `%s` has no digest for the weights", label);
        }
        if (!status) status = use_weights(m, m->weights_file);
    }
    manifest.release();
    return status;
}

int map_file(occ_model *m, int fd, const char *label) {
    struct stat facts;
    if (fstat(fd, &facts)) return fail(nullptr, OCC_ERROR_FILE, "`%s` cannot be read: %s", label, strerror(errno));
    if (!S_ISREG(facts.st_mode)) return fail(nullptr, OCC_ERROR_FILE, "`%s` is not a file", label);
    if (int code = m->file.map(fd, 0, size_t(facts.st_size))) {
        return fail(nullptr, OCC_ERROR_FILE, "`%s` cannot be mapped: %s", label, strerror(code));
    }
    return OCC_OK;
}

int open_fd(occ_model *m, int fd, const char *label) {
    if (int status = map_file(m, fd, label)) return status;
    Members members;
    members.zip = m->file;
    return open_members(m, members, label);
}

int open_path(occ_model *m, const char *path) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail(nullptr, OCC_ERROR_FILE, "`%s` cannot be opened: %s", path, strerror(errno));
    struct stat facts;
    int status;
    if (!fstat(fd, &facts) && S_ISDIR(facts.st_mode)) {
        Members members;
        members.folder = path;
        status = open_members(m, members, path);
    } else {
        status = open_fd(m, fd, path);
    }
    close(fd);
    return status;
}

}  // namespace

extern "C" int occ_open(const char *path, occ_model **model) {
    return open_model(model, [&](occ_model *m) {
        return path ? open_path(m, path) : fail(nullptr, OCC_ERROR_ARGUMENT, "the path is null");
    });
}

extern "C" int occ_open_memory(const void *bytes, size_t size, occ_model **model) {
    return open_model(model, [&](occ_model *m) {
        if (!bytes) return fail(nullptr, OCC_ERROR_ARGUMENT, "the bytes are null");
        Members members;
        members.zip.data = static_cast<const unsigned char *>(bytes);
        members.zip.size = size;
        return open_members(m, members, "memory");
    });
}

extern "C" int occ_open_fd(int fd, occ_model **model) {
    return open_model(model, [&](occ_model *m) { return open_fd(m, fd, "the file"); });
}
#endif
