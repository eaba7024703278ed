// A group in onnxruntime itself, for runs that its artifact refuses.
#include "plugin.h"

#include <cstring>

namespace occ::runtime {
void sha256_hex(const unsigned char *data, size_t size, char hex[65]);
}

namespace occ::ort_plugin {

Fallback::~Fallback() {
    if (session_) ort::ReleaseSession(api_, session_);
    if (env_) ort::ReleaseEnv(api_, env_);
}

// The environment is one for the process, and counts who has it.
void Fallback::open() {
    constexpr int kWarning = 2;
    if (!digest_.empty()) {
        const std::string data = content(path_);
        char found[65] = {};
        runtime::sha256_hex(reinterpret_cast<const unsigned char *>(data.data()), data.size(), found);
        if (digest_ != found) throw Failure("`" + path_ + "` has changed since this model was made from it");
    }
    OrtSessionOptions *options = nullptr;
    check(api_, ort::CreateEnv(api_, kWarning, "occ", &env_));
    check(api_, ort::CreateSessionOptions(api_, &options));
    OrtStatus *status = ort::SetIntraOpNumThreads(api_, options, 1);
    if (!status) status = ort::CreateSession(api_, env_, path_.c_str(), options, &session_);
    ort::ReleaseSessionOptions(api_, options);
    check(api_, status);
}

void Fallback::run(OrtKernelContext *context, const std::vector<std::string> &reads, const std::vector<size_t> &inputs,
                   const std::vector<std::string> &gives, const std::vector<size_t> &outputs) {
    {
        const std::lock_guard<std::mutex> hold(lock_);
        if (!session_) open();
    }
    std::vector<const char *> in, out;
    for (const std::string &name : reads) in.push_back(name.c_str());
    for (const std::string &name : gives) out.push_back(name.c_str());
    std::vector<const OrtValue *> given(in.size());
    for (size_t k = 0; k < in.size(); k++) check(api_, ort::KernelContext_GetInput(api_, context, inputs[k], &given[k]));
    std::vector<OrtValue *> made(out.size());
    OrtStatus *status = ort::Run(api_, session_, nullptr, in.data(), given.data(), in.size(), out.data(), out.size(), made.data());
    const auto copied = [&] {
        for (size_t k = 0; k < made.size(); k++) copy(context, made[k], outputs[k]);
    };
    if (!status) status = guarded(api_, copied);
    for (OrtValue *value : made) {
        if (value) ort::ReleaseValue(api_, value);
    }
    check(api_, status);
}

void Fallback::copy(OrtKernelContext *context, OrtValue *from, size_t output) const {
    OrtTensorTypeAndShapeInfo *info = nullptr;
    check(api_, ort::GetTensorTypeAndShape(api_, from, &info));
    size_t rank = 0, bytes = 0;
    OrtStatus *status = ort::GetDimensionsCount(api_, info, &rank);
    std::vector<int64_t> extents(rank);
    if (!status) status = ort::GetDimensions(api_, info, extents.data(), rank);
    ort::ReleaseTensorTypeAndShapeInfo(api_, info);
    check(api_, status);
    OrtValue *to = nullptr;
    void *source = nullptr, *target = nullptr;
    check(api_, ort::KernelContext_GetOutput(api_, context, output, extents.data(), rank, &to));
    check(api_, ort::GetTensorSizeInBytes(api_, from, &bytes));
    check(api_, ort::GetTensorMutableData(api_, from, &source));
    check(api_, ort::GetTensorMutableData(api_, to, &target));
    if (bytes) memcpy(target, source, bytes);
}

}  // namespace occ::ort_plugin
