// What the execution providers read of onnxruntime's graphs and sessions, and EPContext nodes.
#pragma once
#include "ort_api.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace occ::ort_plugin {

class Failure {
  public:
    explicit Failure(std::string text) : text(std::move(text)) {}
    std::string text;
};

template<typename F> OrtStatus *guarded(const void *api, F body) noexcept {
    try {
        body();
        return nullptr;
    } catch (const Failure &e) {
        return ort::CreateStatus(api, ort::kFail, ("occ: " + e.text).c_str());
    } catch (const std::exception &e) {
        return ort::CreateStatus(api, ort::kFail, (std::string("occ: ") + e.what()).c_str());
    }
}

// Bytes at an aligned address.
struct Blob {
    std::shared_ptr<unsigned char> bytes;
    size_t size = 0;
};

// What an EPContext node holds: its data, or the path of a file with them, next to the model.
struct Context {
    Blob data;
    std::string path, notes;
    std::string refusal;  // why the path is not to be read
};

// The bytes of a file.
std::string content(const std::string &path);
// Throws what a call of onnxruntime returned.
void check(const void *api, OrtStatus *status);
std::vector<const OrtNode *> nodes_of(const void *api, const OrtGraph *graph);
std::vector<std::string> names(const void *api, const OrtNode *node, bool outputs);
// Where names are among others; throws Failure where one is not.
std::vector<size_t> places(const std::vector<std::string> &wanted, const std::vector<std::string> &given);
// The name of a node's first result, which identifies a fused node.
std::string key_of(const void *api, const OrtNode *node);
// A path in a model, which starts from the folder of the model and stays in it.
std::string beside(const void *api, const OrtGraph *graph, const std::string &name);
// Whether a node is an EPContext node of the provider `source`.
bool is_context(const void *api, const OrtNode *node, const char *source);
Context context_of(const void *api, const OrtGraph *graph, const OrtNode *node);
// The EPContext node that stands for a fused node; `texts` are further attributes.
OrtNode *context_node(const void *api, const OrtNode *fused, const char *source, const std::string &data,
                      const std::map<std::string, std::string> &texts);
// An entry of the configuration of a session, or nothing.
std::string entry(const void *api, const OrtSessionOptions *options, const std::string &key);
void warn(const void *api, const OrtLogger *logger, const std::string &message);

}  // namespace occ::ort_plugin
