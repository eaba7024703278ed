// An execution provider of onnxruntime that runs groups of nodes as artifacts of occ, through libocc.
#pragma once
#include "graph.h"
#include "occ.h"

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

namespace occ::ort_plugin {

// The host's callback, which selects nodes of a graph: it calls `occ_ep_claim` with `claims` for each group.
using Ask = void (*)(const void *api, const OrtGraph *graph, void *claims);

struct Settings {
    bool own_pool = false;     // occ's thread pool instead of onnxruntime's
    int threads = 0;           // of occ's pool; 0 is its default
    bool makes_context = false;  // the session writes a model with EPContext nodes
    bool embeds = true;
};

// A group of nodes: an artifact in a file or in memory.
struct Group {
    Blob data;
    std::string path;     // where there are no data
    std::string refusal;  // why it cannot be opened
    std::string model;    // the same nodes as an ONNX file, where the artifact takes fewer sizes than they; or nothing
    std::string digest;   // SHA-256 of that file, where others may have changed it; or nothing
};

// A group as a session of onnxruntime, opened when it is first needed.
class Fallback {
  public:
    Fallback(const void *api, std::string path, std::string digest) : api_(api), path_(std::move(path)), digest_(std::move(digest)) {}
    ~Fallback();
    // Runs on the inputs of a node, by their places in it, and fills in its outputs.
    void run(OrtKernelContext *context, const std::vector<std::string> &reads, const std::vector<size_t> &inputs,
             const std::vector<std::string> &gives, const std::vector<size_t> &outputs);

  private:
    void open();
    void copy(OrtKernelContext *context, OrtValue *from, size_t output) const;
    const void *api_;
    std::string path_, digest_;
    std::mutex lock_;
    OrtEnv *env_ = nullptr;
    OrtSession *session_ = nullptr;
};

// Runs one artifact as a node; many threads may run it at once.
class Computed : public OrtNodeComputeInfo {
  public:
    Computed(const void *api, const Group &group, const Settings &settings, const std::vector<std::string> &inputs,
             const std::vector<std::string> &outputs);
    ~Computed() { occ_close(model_); }
    OrtStatus *run(OrtKernelContext *context);

  private:
    std::string run_artifact(OrtKernelContext *context);
    void *memory_of(OrtKernelContext *context, size_t k, const occ_tensor &t);
    const void *api_;
    Group group_;
    occ_model *model_ = nullptr;
    std::vector<std::string> reads_, gives_;  // the ports of the model
    std::vector<size_t> inputs_, outputs_;    // of the node, for each of them
    std::unique_ptr<Fallback> fallback_;
};

}  // namespace occ::ort_plugin
