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

    int output_extents(const std::vector<occ_tensor> &in, std::vector<occ_tensor> &out, std::string &text) override {
        return asked("extents", in, out, File(), text);
    }

    int run(const std::vector<occ_tensor> &in, std::vector<occ_tensor> &out, std::string &text) override {
        size_t size = 0;
        for (const auto *list : {&in, static_cast<const std::vector<occ_tensor> *>(&out)}) {
            for (const occ_tensor &t : *list) size += rounded(t.bytes);
        }
        const File shared = memory_file("");
        if (ftruncate(shared.get(), off_t(size ? size : 1))) return text = "there is no memory for a run", OCC_ERROR_MEMORY;
        void *base = mmap(nullptr, size ? size : 1, PROT_READ | PROT_WRITE, MAP_SHARED, shared.get(), 0);
        if (base == MAP_FAILED) return text = "there is no memory for a run", OCC_ERROR_MEMORY;
        char *at = static_cast<char *>(base);
        for (const occ_tensor &t : in) at = static_cast<char *>(memcpy(at, t.data, t.bytes)) + rounded(t.bytes);
        const int status = asked("run", in, out, shared, text);
        for (const occ_tensor &t : out) {
            if (!status) memcpy(t.data, at, t.bytes);
            at += rounded(t.bytes);
        }
        munmap(base, size ? size : 1);
        return status;
    }

private:
    // The extents of the inputs go there, those of the outputs come back.
    int asked(const char *verb, const std::vector<occ_tensor> &in, std::vector<occ_tensor> &out, const File &shared,
              std::string &text) {
        std::string request = std::string(verb) + " " + id_;
        for (const occ_tensor &t : in) {
            request += " ";
            for (int a = 0; a < t.rank; a++) request += std::to_string(t.extents[a]) + ",";
            if (!t.rank) request += "-";
        }
        try {
            std::istringstream lines(compiler_.ask(request, shared).text);
            for (occ_tensor &t : out) {
                std::string line;
                std::getline(lines, line);
                const std::vector<int64_t> extents = line == "-" ? std::vector<int64_t>() : numbers(line);
                t.rank = int32_t(extents.size());
                for (size_t a = 0; a < extents.size() && a < OCC_MAX_RANK; a++) t.extents[a] = extents[a];
            }
            return OCC_OK;
        } catch (const Failure &f) {
            text = f.text;
            return f.status == ONNXIFI_STATUS_UNSUPPORTED_SHAPE ? OCC_ERROR_INPUT : OCC_ERROR_RUN;
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
        log(ONNXIFI_LOG_LEVEL_WARNING, ONNXIFI_LOG_LEVEL_WARNING, "Ascend devices cannot be used: " + f.text);
    }
    return found;
}

std::unique_ptr<Program> remote_program(Compiler &compiler, const std::string &told) {
    return std::make_unique<Remote>(compiler, told);
}

}  // namespace occ::onnxifi
