#include "remote.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <sys/mman.h>
#include <unistd.h>

namespace occ::onnxifi {

namespace {

constexpr size_t kAlignment = 64;

size_t rounded(size_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

std::vector<int64_t> numbers(const std::string &text) {
    std::vector<int64_t> made;
    std::istringstream in(text);
    for (std::string word; std::getline(in, word, ',');) made.push_back(atoll(word.c_str()));
    return made;
}

// "in 1 -1,8 x": direction, occ_dtype, extents or a dash, name.
bool read_port(const std::string &line, std::string &direction, Port &p) {
    std::istringstream in(line);
    std::string extents;
    if (!(in >> direction >> p.dtype >> extents)) return false;
    in.get();
    std::getline(in, p.name);
    if (extents != "-") p.extents = numbers(extents);
    p.symbols.resize(p.extents.size());
    return true;
}

// Memory that is shared with the compiler.
struct Mapped {
    Mapped(const File &file, size_t bytes) : size(bytes) {
        void *made = ftruncate(file.get(), off_t(size)) ? MAP_FAILED : mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
        if (made == MAP_FAILED) throw Failure{ONNXIFI_STATUS_NO_SYSTEM_MEMORY, "there is no memory for a run"};
        base = static_cast<char *>(made);
    }
    Mapped(const Mapped &) = delete;
    ~Mapped() { munmap(base, size); }

    const size_t size;
    char *base;
};

class Remote : public Program {
public:
    Remote(Compiler &compiler, const std::string &told) : compiler_(compiler) {
        std::istringstream in(told);
        std::getline(in, id_);
        for (std::string line, direction; std::getline(in, line);) {
            Port p;
            if (read_port(line, direction, p)) (direction == "in" ? inputs : outputs).push_back(std::move(p));
        }
    }

    ~Remote() override {
        try {
            compiler_.ask("close " + id_);
        } catch (...) {  // it is gone with its process
        }
    }

    void output_extents(const std::vector<occ_tensor> &in, std::vector<occ_tensor> &out) override {
        ask("extents", in, out, File());
    }

    void run(const std::vector<occ_tensor> &in, std::vector<occ_tensor> &out) override {
        size_t size = 0;
        for (const auto *list : {&in, static_cast<const std::vector<occ_tensor> *>(&out)}) {
            for (const occ_tensor &t : *list) size += rounded(t.bytes);
        }
        const File shared = memory_file("");
        const Mapped memory(shared, size ? size : 1);
        char *at = memory.base;
        for (const occ_tensor &t : in) at = static_cast<char *>(memcpy(at, t.data, t.bytes)) + rounded(t.bytes);
        ask("run", in, out, shared);
        for (const occ_tensor &t : out) {
            memcpy(t.data, at, t.bytes);
            at += rounded(t.bytes);
        }
    }

private:
    // The extents of the inputs go there, those of the outputs come back.
    void ask(const char *verb, const std::vector<occ_tensor> &in, std::vector<occ_tensor> &out, const File &shared) {
        std::string request = std::string(verb) + " " + id_;
        for (const occ_tensor &t : in) {
            request += " ";
            for (int a = 0; a < t.rank; a++) request += std::to_string(t.extents[a]) + ",";
            if (!t.rank) request += "-";
        }
        std::istringstream lines(compiler_.ask(request, shared).text);
        for (occ_tensor &t : out) {
            std::string line;
            std::getline(lines, line);
            const std::vector<int64_t> extents = line == "-" ? std::vector<int64_t>() : numbers(line);
            t.rank = int32_t(extents.size());
            for (size_t a = 0; a < extents.size() && a < OCC_MAX_RANK; a++) t.extents[a] = extents[a];
        }
    }

    Compiler &compiler_;
    std::string id_;
};

// Where CANN puts its library; runtime/acl/library.py looks there too.
bool has_cann() {
    if (const char *given = getenv("OCC_ASCENDCL")) return !access(given, R_OK);
    std::vector<std::string> roots = {"/usr/local/Ascend/ascend-toolkit/latest", "/usr/local/Ascend/nnrt/latest",
                                      "/usr/local/Ascend/latest", "/usr/local/Ascend/cann"};
    for (const char *name : {"ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"}) {
        if (const char *root = getenv(name)) roots.emplace_back(root);
    }
    for (const std::string &root : roots) {
        for (const char *folder : {"/lib64/", "/runtime/lib64/"}) {
            if (!access((root + folder + "libascendcl.so").c_str(), R_OK)) return true;
        }
    }
    return false;
}

}  // namespace

std::vector<Device> remote_devices(Compiler &compiler) {
    std::vector<Device> found;
    if (!has_cann()) return found;
    try {
        // A line for each: target, bytes of memory, name.
        std::istringstream lines(compiler.ask("devices").text);
        for (std::string line; std::getline(lines, line);) {
            std::istringstream in(line);
            Device d{"", "Ascend", "", ONNXIFI_DEVICE_TYPE_NPU, 0, false, int(found.size())};
            if (in >> d.target >> d.memory && in.get()) {
                std::getline(in, d.device);
                found.push_back(std::move(d));
            }
        }
    } catch (const Failure &f) {
        log(ONNXIFI_LOG_LEVEL_WARNING, ONNXIFI_LOG_LEVEL_WARNING, "Ascend devices cannot be used", f.text);
    }
    return found;
}

std::unique_ptr<Program> remote_program(Compiler &compiler, const std::string &told) {
    return std::make_unique<Remote>(compiler, told);
}

}  // namespace occ::onnxifi
