// Runs: inputs and outputs of onnxruntime are those of the model, nothing is copied where outputs are aligned.
#include "plugin.h"

#include <algorithm>
#include <cstring>

namespace occ::ort_plugin {

namespace {

// The run that a thread is in, for loops that onnxruntime's threads share.
struct Running {
    const void *api;
    const OrtKernelContext *context;
};
thread_local Running running = {nullptr, nullptr};

struct Loop {
    int (*task)(void *, int);
    void *closure;
    std::atomic<int> result;
};

int parallel(void *, int (*task)(void *, int), void *closure, int count) {
    if (!running.context || count < 2) {
        int result = 0;
        for (int k = 0; k < count; k++) {
            if (int code = task(closure, k)) result = code;
        }
        return result;
    }
    Loop loop = {task, closure, {0}};
    const auto one = [](void *given, size_t k) {
        Loop *l = static_cast<Loop *>(given);
        if (int code = l->task(l->closure, int(k))) l->result = code;
    };
    const Running here = running;
    running = {nullptr, nullptr};  // a loop in a task stays on its thread
    OrtStatus *status = ort::KernelContext_ParallelFor(here.api, here.context, one, size_t(count), 0, &loop);
    running = here;
    if (!status) return loop.result;
    ort::ReleaseStatus(here.api, status);
    return -1;
}

void read(const void *api, const OrtKernelContext *context, size_t k, occ_tensor &t) {
    const OrtValue *value = nullptr;
    check(api, ort::KernelContext_GetInput(api, context, k, &value));
    OrtTensorTypeAndShapeInfo *info = nullptr;
    check(api, ort::GetTensorTypeAndShape(api, value, &info));
    size_t rank = 0;
    OrtStatus *status = ort::GetDimensionsCount(api, info, &rank);
    if (!status && rank <= OCC_MAX_RANK) status = ort::GetDimensions(api, info, t.extents, rank);
    ort::ReleaseTensorTypeAndShapeInfo(api, info);
    check(api, status);
    if (rank > OCC_MAX_RANK) throw Failure("an input has more than 16 axes");
    t.rank = int32_t(rank);
    check(api, ort::GetTensorMutableData(api, const_cast<OrtValue *>(value), &t.data));
}

// Takes back what libocc has allocated for outputs.
struct Freed {
    occ_tensor *tensors;
    size_t count;
    ~Freed() {
        for (size_t k = 0; k < count; k++) occ_free(&tensors[k]);
    }
};

size_t bytes_of(const occ_tensor &t) {
    size_t n = occ_element_size(t.dtype);
    for (int32_t a = 0; a < t.rank; a++) n *= size_t(t.extents[a]);
    return n;
}

}  // namespace

Computed::Computed(const void *api, const Group &group, const Settings &settings, const std::vector<std::string> &inputs,
                   const std::vector<std::string> &outputs)
    : OrtNodeComputeInfo(), api_(api), group_(group) {
    if (!group.refusal.empty()) throw Failure(group.refusal);
    const int status = group.data.bytes ? occ_open_memory(group.data.bytes.get(), group.data.size, &model_) : occ_open(group.path.c_str(), &model_);
    if (status) throw Failure(occ_error_text(nullptr));
    if (settings.own_pool) {
        if (settings.threads) occ_set_threads(model_, settings.threads);
    } else {
        occ_set_parallel(model_, parallel, nullptr);
    }
    for (size_t k = 0; k < occ_inputs(model_); k++) reads_.push_back(occ_input(model_, k)->name);
    for (size_t k = 0; k < occ_outputs(model_); k++) gives_.push_back(occ_output(model_, k)->name);
    if (!group.model.empty()) fallback_.reset(new Fallback(api, group.model, group.digest));
    try {
        inputs_ = places(reads_, inputs);
        outputs_ = places(gives_, outputs);
    } catch (...) {
        occ_close(model_);
        throw;
    }
    ort_version_supported = kOrtLevel;
    CreateState = [](OrtNodeComputeInfo *self, OrtNodeComputeContext *, void **state) -> OrtStatus * {
        *state = self;
        return nullptr;
    };
    Compute = [](OrtNodeComputeInfo *self, void *, OrtKernelContext *context) { return static_cast<Computed *>(self)->run(context); };
    ReleaseState = [](OrtNodeComputeInfo *, void *) {};
}

// Memory of onnxruntime for an output.
void *Computed::memory_of(OrtKernelContext *context, size_t k, const occ_tensor &t) {
    OrtValue *value = nullptr;
    void *data = nullptr;
    check(api_, ort::KernelContext_GetOutput(api_, context, outputs_[k], t.extents, size_t(t.rank), &value));
    check(api_, ort::GetTensorMutableData(api_, value, &data));
    alignas(64) static unsigned char nothing[64];
    return data ? data : nothing;  // of an empty tensor
}

// Returns why the artifact refuses the run; empty if it has run.
std::string Computed::run_artifact(OrtKernelContext *context) {
    constexpr size_t kFew = 16;
    const size_t n = inputs_.size(), m = outputs_.size();
    occ_tensor few[kFew] = {};
    std::vector<occ_tensor> many(n + m > kFew ? n + m : 0);
    occ_tensor *inputs = many.empty() ? few : many.data(), *outputs = inputs + n;
    for (size_t k = 0; k < n; k++) read(api_, context, inputs_[k], inputs[k]);
    if (occ_output_extents(model_, inputs, n, outputs, m)) return occ_error_text(model_);
    const Freed freed = {outputs, m};
    for (size_t k = 0; k < m; k++) {
        if (!outputs[k].by_data) outputs[k].data = memory_of(context, k, outputs[k]);
    }
    running = {api_, context};
    const int status = occ_run(model_, inputs, n, outputs, m);
    running = {nullptr, nullptr};
    for (size_t k = 0; k < m && !status; k++) {  // extents that the data of the run have decided
        if (outputs[k].by_data) memcpy(memory_of(context, k, outputs[k]), outputs[k].data, bytes_of(outputs[k]));
    }
    return status ? occ_error_text(model_) : "";
}

OrtStatus *Computed::run(OrtKernelContext *context) {
    return guarded(api_, [&] {
        const std::string refusal = run_artifact(context);
        if (refusal.empty()) return;
        if (!fallback_) throw Failure(refusal);
        try {
            fallback_->run(context, reads_, inputs_, gives_, outputs_);
        } catch (const Failure &e) {
            throw Failure(refusal + "\n   = note: onnxruntime cannot run it either: " + e.text);
        }
    });
}

}  // namespace occ::ort_plugin
