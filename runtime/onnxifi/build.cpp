#include "build.h"

#include "descriptors.h"
#include "remote.h"
#include "model.h"

#include <cstdlib>
#include <sys/mman.h>
#include <sys/stat.h>
#include <utime.h>

namespace occ::onnxifi {

namespace {

// Fields of a protobuf message.
void put_number(std::string &out, uint64_t value) {
    for (; value >= 0x80; value >>= 7) out += char(value | 0x80);
    out += char(value);
}
void put_field(std::string &out, int field, uint64_t value) {
    put_number(out, uint64_t(field) << 3);
    put_number(out, value);
}
void put_head(std::string &out, int field, size_t size) {
    put_number(out, uint64_t(field) << 3 | 2);
    put_number(out, size);
}

// Weights as ModelProto.graph.initializer. A message that follows another one is merged with it, so these bytes after those
// of the model are the model with its weights, and nothing here has to read the model.
std::string initializers(const onnxTensorDescriptorV1 *weights, uint32_t count) {
    enum { kGraph = 7, kInitializer = 5, kDims = 1, kType = 2, kName = 8, kRaw = 9 };
    std::string all;
    for (uint32_t k = 0; k < count; k++) {
        const onnxTensorDescriptorV1 &w = weights[k];
        std::string head;
        size_t bytes = occ_element_size(dtype_of(w.dataType));
        for (uint32_t a = 0; a < w.dimensions; a++) {
            put_field(head, kDims, w.shape[a]);
            if (__builtin_mul_overflow(bytes, w.shape[a], &bytes) || bytes > INT32_MAX) {
                throw Failure{ONNXIFI_STATUS_UNSUPPORTED_SHAPE, std::string("the weight `") + w.name + "` is larger than 2 GiB"};
            }
        }
        put_field(head, kType, w.dataType);
        put_head(head, kName, std::char_traits<char>::length(w.name));
        head += w.name;
        put_head(head, kRaw, bytes);
        put_head(all, kInitializer, head.size() + bytes);
        all += head;
        all.append(reinterpret_cast<const char *>(w.buffer), bytes);
    }
    std::string model;
    put_head(model, kGraph, all.size());
    return count ? model + all : "";
}

// The artifact that the compiler has just made: where its file cannot be read, no more of them may be open.
std::unique_ptr<Program> opened(int fd) {
    occ_model *m = nullptr;
    switch (occ_open_fd(fd, &m)) {
        case OCC_OK: return local_program(m);
        case OCC_ERROR_MEMORY: throw Failure{ONNXIFI_STATUS_NO_SYSTEM_MEMORY, occ_error_text(nullptr)};
        case OCC_ERROR_FILE: throw Failure{ONNXIFI_STATUS_NO_SYSTEM_RESOURCES, occ_error_text(nullptr)};
        default: throw Failure{ONNXIFI_STATUS_INTERNAL_ERROR, occ_error_text(nullptr)};
    }
}

// A program that was built before: its artifact, unless it is gone, damaged, or of another machine.
std::unique_ptr<Program> kept(const std::string &path) {
    occ_model *m = nullptr;
    if (path.empty() || occ_open((path + ".occ").c_str(), &m)) return nullptr;
    utime((path + ".json").c_str(), nullptr);  // what was used last is thrown away last
    return local_program(m);
}

}  // namespace

std::string sha256(const std::string &bytes) {
    char hex[65];
    occ::runtime::sha256_hex(reinterpret_cast<const unsigned char *>(bytes.data()), bytes.size(), hex);
    return hex;
}

std::string cache_folder() {
    const char *given = getenv("OCC_CACHE_DIR"), *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (given && *given) return given;
    if (base && *base == '/') return std::string(base) + "/occ";
    return home && *home ? std::string(home) + "/.cache/occ" : "";
}

std::unique_ptr<Program> build(const Backend &backend, const void *model, size_t size, const onnxTensorDescriptorV1 *weights,
                               uint32_t count) {
    const std::string more = initializers(weights, count);
    std::string whole(static_cast<const char *>(model), size);
    whole += more;
    const std::string target = backend.target();
    const std::string key =
        sha256("onnxifi 1\n" + Compiler::identity() + "\n" + target + "\n" + std::to_string(size) + "\n" + sha256(whole)).substr(0, 32);
    const std::string folder = cache_folder();
    if (backend.device.local) {
        const std::string path = folder.empty() ? "" : folder + "/artifact/" + key.substr(0, 2) + "/" + key;
        if (auto program = kept(path)) return program;
    }
    const File payload = memory_file(whole);
    const std::string request = (backend.device.local ? "build " : "open ") + target + " " + key + " " +
                                std::to_string(size) + " " + std::to_string(backend.device.number);
    Answer answer = backend.compiler.ask(request, payload);
    if (!backend.device.local) return remote_program(backend.compiler, answer.text);
    return opened(answer.file.get());
}

void check_model(const Device &device, Compiler &compiler, const void *model, size_t size) {
    const File payload = memory_file(model, size, "");
    compiler.ask("check " + device.target + " - " + std::to_string(size) + " " + std::to_string(device.number), payload);
}

}  // namespace occ::onnxifi
