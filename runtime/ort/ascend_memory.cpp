// Device memory as onnxruntime has it: allocators, copies, and the kernels that copy between parts of a model.
#include "ascend.h"

namespace occ::ort_plugin::ascend {

namespace {

const OrtMemoryDevice *device_of(const void *api, const OrtValue *value) { return ort::ValueDevice(ort::GetEpApi(api), value); }

bool is_npu(const void *api, const OrtMemoryDevice *device) {
    return device && ort::DeviceType(ort::GetEpApi(api), device) == ort::kMemoryNpu && ort::DeviceVendor(ort::GetEpApi(api), device) == kVendor;
}

bool is_cpu(const void *api, const OrtMemoryDevice *device) {
    return device && ort::DeviceType(ort::GetEpApi(api), device) == ort::kMemoryCpu;
}

struct Allocator : OrtAllocator {
    const void *api;
    const OrtLogger *logger;
    const OrtMemoryInfo *info;
    std::shared_ptr<Devices> devices;
    int number;
    std::mutex lock;
    std::shared_ptr<Arena> arena;

    void *take(size_t size) noexcept {
        std::string why;
        try {
            {
                const std::lock_guard<std::mutex> hold(lock);
                if (!arena) arena = std::make_shared<Arena>(devices->open(number), 0, true);
            }
            return arena->take(size);
        } catch (const Failure &e) {
            why = e.text;
        } catch (const std::exception &e) {
            why = e.what();
        }
        warn(api, logger, why);  // onnxruntime says only that there is no memory
        return nullptr;
    }
};

struct Transfer : OrtDataTransferImpl {
    const void *api;
    std::shared_ptr<Devices> devices;

    void copy(const OrtValue *from, OrtValue *to) {
        const OrtMemoryDevice *source = device_of(api, from), *target = device_of(api, to);
        size_t size = 0, room = 0;
        void *data = nullptr, *place = nullptr;
        check(api, ort::GetTensorSizeInBytes(api, from, &size));
        check(api, ort::GetTensorSizeInBytes(api, to, &room));
        if (size != room) throw Failure("a copy of " + std::to_string(size) + " bytes into " + std::to_string(room));
        check(api, ort::GetTensorMutableData(api, const_cast<OrtValue *>(from), &data));
        check(api, ort::GetTensorMutableData(api, to, &place));
        if (!size) return;
        if (!data || !place) throw Failure(kNoMemory);
        const bool here = is_npu(api, source);
        const std::shared_ptr<Device> device = devices->open(int(ort::DeviceNumber(ort::GetEpApi(api), here ? source : target)));
        if (here && is_npu(api, target)) device->copy(place, data, size);
        else if (here) device->download(place, data, size);
        else device->upload(place, data, size);
    }
};

struct Copy : OrtKernelImpl {
    Transfer *transfer;
};

OrtStatus *create_copy(void *state, const OrtKernelInfo *, OrtKernelImpl **made) {
    Copy *c = new Copy();
    c->transfer = static_cast<Transfer *>(state);
    c->ort_version_supported = kOrtMemoryLevel;
    c->Compute = [](OrtKernelImpl *self, OrtKernelContext *context) {
        Transfer *transfer = static_cast<Copy *>(self)->transfer;
        const void *api = transfer->api;
        return guarded(api, [&] {
            const OrtValue *from = nullptr;
            OrtValue *to = nullptr;
            check(api, ort::KernelContext_GetInput(api, context, 0, &from));
            const Shape shape = extents(api, from);
            check(api, ort::KernelContext_GetOutput(api, context, 0, shape.data(), shape.size(), &to));
            transfer->copy(from, to);
        });
    };
    c->Release = [](OrtKernelImpl *self) { delete static_cast<Copy *>(self); };
    *made = c;
    return nullptr;
}

// The types of tensors that are copied: all that onnxruntime has but texts.
std::vector<const OrtDataType *> types(const void *api) {
    constexpr int kText = 8;
    std::vector<const OrtDataType *> found;
    for (int kind = 1; kind < ort::kElementTypes; kind++) {
        const OrtDataType *type = nullptr;
        if (kind == kText) continue;
        if (OrtStatus *status = ort::GetTensorDataType(ort::GetEpApi(api), kind, &type)) ort::ReleaseStatus(api, status);
        else if (type) found.push_back(type);
    }
    return found;
}

void add_copy(const void *api, OrtKernelRegistry *registry, Transfer *transfer, const char *name, bool from_cpu) {
    const void *ep = ort::GetEpApi(api);
    const std::vector<const OrtDataType *> all = types(api);
    OrtKernelDefBuilder *builder = nullptr;
    OrtKernelDef *definition = nullptr;
    check(api, ort::CreateKernelDefBuilder(ep, &builder));
    OrtStatus *status = ort::SetOperatorType(ep, builder, name);
    if (!status) status = ort::SetDomain(ep, builder, "");
    if (!status) status = ort::SetSinceVersion(ep, builder, 1, 1);
    if (!status) status = ort::SetExecutionProvider(ep, builder, kName);
    if (!status) status = from_cpu ? ort::SetInputMemType(ep, builder, 0, ort::kInputOnCpu) : ort::SetOutputMemType(ep, builder, 0, ort::kOutputOnCpu);
    if (!status) status = ort::AddTypeConstraint(ep, builder, "T", all.data(), all.size());
    if (!status) status = ort::BuildKernelDef(ep, builder, &definition);
    if (!status) status = ort::AddKernel(ep, registry, definition, create_copy, transfer);
    if (definition) ort::ReleaseKernelDef(ep, definition);
    ort::ReleaseKernelDefBuilder(ep, builder);
    check(api, status);
}

}  // namespace

bool is_on_npu(const void *api, const OrtValue *value) { return is_npu(api, device_of(api, value)); }

OrtAllocator *make_allocator(const void *api, const OrtLogger *logger, const OrtMemoryInfo *info, std::shared_ptr<Devices> devices,
                             int number, std::shared_ptr<Arena> arena) {
    Allocator *made = new Allocator();
    made->version = kOrtMemoryLevel;
    made->api = api;
    made->logger = logger;
    made->info = info;
    made->devices = std::move(devices);
    made->number = number;
    made->arena = std::move(arena);
    made->Alloc = [](OrtAllocator *self, size_t size) { return size ? static_cast<Allocator *>(self)->take(size) : nullptr; };
    made->Reserve = made->Alloc;
    made->Free = [](OrtAllocator *self, void *address) {
        Allocator *a = static_cast<Allocator *>(self);
        if (address && a->arena) a->arena->give(address);
    };
    made->Info = [](const OrtAllocator *self) { return static_cast<const Allocator *>(self)->info; };
    return made;
}

void release_allocator(OrtAllocator *allocator) { delete static_cast<Allocator *>(allocator); }

OrtDataTransferImpl *make_data_transfer(const void *api, std::shared_ptr<Devices> devices) {
    Transfer *made = new Transfer();
    made->ort_version_supported = kOrtMemoryLevel;
    made->api = api;
    made->devices = std::move(devices);
    made->Release = [](OrtDataTransferImpl *self) { delete static_cast<Transfer *>(self); };
    made->CanCopy = [](const OrtDataTransferImpl *self, const OrtMemoryDevice *from, const OrtMemoryDevice *to) {
        const void *at = static_cast<const Transfer *>(self)->api, *ep = ort::GetEpApi(at);
        const bool source = is_npu(at, from), target = is_npu(at, to);
        if (source && target) return ort::DeviceNumber(ep, from) == ort::DeviceNumber(ep, to);
        return (source && is_cpu(at, to)) || (target && is_cpu(at, from));
    };
    made->CopyTensors = [](OrtDataTransferImpl *self, const OrtValue **from, OrtValue **to, OrtSyncStream **, size_t count) {
        Transfer *t = static_cast<Transfer *>(self);
        return guarded(t->api, [&] {
            for (size_t k = 0; k < count; k++) t->copy(from[k], to[k]);
        });
    };
    return made;
}

OrtKernelRegistry *make_copy_kernels(const void *api, OrtDataTransferImpl *transfer) {
    OrtKernelRegistry *made = nullptr;
    check(api, ort::CreateKernelRegistry(ort::GetEpApi(api), &made));
    try {
        add_copy(api, made, static_cast<Transfer *>(transfer), "MemcpyFromHost", true);
        add_copy(api, made, static_cast<Transfer *>(transfer), "MemcpyToHost", false);
    } catch (...) {
        ort::ReleaseKernelRegistry(ort::GetEpApi(api), made);
        throw;
    }
    return made;
}

}  // namespace occ::ort_plugin::ascend
