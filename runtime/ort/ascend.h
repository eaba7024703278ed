// An execution provider of onnxruntime that runs groups of nodes as compiled models (`.om`) of an Ascend device, through AscendCL.
#pragma once
#include "graph.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace occ::ort_plugin::ascend {

constexpr char kName[] = "OccAscendExecutionProvider", kPrefix[] = "ep.occascendexecutionprovider.";
constexpr uint32_t kVendor = 0x19E5;  // of Huawei, among PCI vendors

// aclmdlIODims
struct IoDims {
    char name[128];
    size_t count;
    int64_t dims[128];
};

// libascendcl.so: the calls that are made here, by their published signatures.
#define OCC_ACL_CALLS(X)                                                                                      \
    X(aclInit, int, const char *) X(aclFinalize, int) X(aclGetRecentErrMsg, const char *)                     \
    X(aclrtGetSocName, const char *) X(aclrtGetDeviceCount, int, uint32_t *) X(aclrtGetRunMode, int, int *)   \
    X(aclrtSetDevice, int, int32_t) X(aclrtResetDevice, int, int32_t)                                         \
    X(aclrtCreateContext, int, void **, int32_t) X(aclrtDestroyContext, int, void *)                          \
    X(aclrtSetCurrentContext, int, void *) X(aclrtGetCurrentContext, int, void **)                            \
    X(aclrtMalloc, int, void **, size_t, int) X(aclrtFree, int, void *)                                       \
    X(aclrtMemcpy, int, void *, size_t, const void *, size_t, int)                                            \
    X(aclmdlQuerySizeFromMem, int, const void *, size_t, size_t *, size_t *)                                  \
    X(aclmdlLoadFromMemWithMem, int, const void *, size_t, uint32_t *, void *, size_t, void *, size_t)        \
    X(aclmdlUnload, int, uint32_t) X(aclmdlCreateDesc, void *) X(aclmdlDestroyDesc, int, void *)              \
    X(aclmdlGetDesc, int, void *, uint32_t) X(aclmdlGetNumInputs, size_t, void *)                             \
    X(aclmdlGetNumOutputs, size_t, void *) X(aclmdlGetInputSizeByIndex, size_t, void *, size_t)               \
    X(aclmdlGetInputNameByIndex, const char *, const void *, size_t)                                          \
    X(aclmdlGetInputDims, int, const void *, size_t, IoDims *)                                                \
    X(aclmdlGetInputDataType, int, const void *, size_t) X(aclmdlGetOutputDataType, int, const void *, size_t) \
    X(aclmdlGetOutputDims, int, const void *, size_t, IoDims *)                                               \
    X(aclmdlSetDynamicBatchSize, int, uint32_t, void *, size_t, uint64_t)                                     \
    X(aclmdlSetDynamicHWSize, int, uint32_t, void *, size_t, uint64_t, uint64_t)                              \
    X(aclmdlSetInputDynamicDims, int, uint32_t, void *, size_t, const IoDims *)                               \
    X(aclmdlCreateDataset, void *) X(aclmdlDestroyDataset, int, void *)                                       \
    X(aclmdlAddDatasetBuffer, int, void *, void *) X(aclmdlExecute, int, uint32_t, void *, void *)            \
    X(aclCreateDataBuffer, void *, void *, size_t) X(aclDestroyDataBuffer, int, void *)

class Acl {
  public:
    // Loads the library, and initialises it, unless another part of the process has; throws Failure.
    Acl();
    ~Acl();
#define OCC_ACL_MEMBER(name, result, ...) result (*name)(__VA_ARGS__) = nullptr;
    OCC_ACL_CALLS(OCC_ACL_MEMBER)
#undef OCC_ACL_MEMBER
    // Throws what a call returned.
    void check(int status, const char *call, const std::string &doing) const;
    // Throws if a handle is null.
    void *made(void *handle, const char *call, const std::string &doing) const;

  private:
    [[noreturn]] void fail(int status, const char *call, const std::string &doing) const;
    void *library_ = nullptr;
    bool initialised_here_ = false;
};

// A device, whose context is current while one of its methods runs.
class Device {
  public:
    Device(std::shared_ptr<Acl> acl, int number);
    ~Device();
    void *malloc(size_t size) const;
    void free(void *address) const noexcept;
    void upload(void *to, const void *from, size_t size) const;
    void download(void *to, const void *from, size_t size) const;
    void copy(void *to, const void *from, size_t size) const;
    const std::shared_ptr<Acl> acl;
    const int number;
    std::string soc;

    // Makes the context of the device current for a scope, and the one before after it.
    class Current {
      public:
        explicit Current(const Device &device);
        ~Current();

      private:
        const Device &device_;
        void *before_ = nullptr;
    };

  private:
    void move(void *to, const void *from, size_t size, int kind, const char *where) const;
    void *context_ = nullptr;
    bool on_device_ = false;  // the program runs on the device's own CPU
};

// The devices of the process, opened when they are first needed.
class Devices {
  public:
    explicit Devices(std::shared_ptr<Acl> acl) : acl_(std::move(acl)) {}
    int count() const;
    std::string soc() const;
    std::shared_ptr<Device> open(int number);

  private:
    const std::shared_ptr<Acl> acl_;
    std::mutex lock_;
    std::map<int, std::weak_ptr<Device>> open_;
};

// Device memory of a session: blocks that are used again, under a limit.
class Arena {
  public:
    Arena(std::shared_ptr<Device> device, size_t limit, bool doubles) : device(std::move(device)), limit_(limit), doubles_(doubles) {}
    ~Arena();
    void *take(size_t size);  // throws Failure
    void give(void *address);
    const std::shared_ptr<Device> device;

  private:
    void *grow(size_t need);
    void trim();
    const size_t limit_;  // 0: none
    const bool doubles_;  // kNextPowerOfTwo
    std::mutex lock_;
    size_t reserved_ = 0;
    std::map<void *, size_t> used_;
    std::multimap<size_t, void *> idle_;
};

using Shape = std::vector<int64_t>;

// A choice of sizes that a model was compiled for: extents of its inputs and outputs.
struct Gear {
    std::vector<Shape> inputs, outputs;
};

// What occ writes down of a part beside its `.om`: lines `KEY VALUE`.
struct Record {
    explicit Record(const std::string &text);
    std::string name, soc, kind;  // kind: `batch`, `image` or `dims` where there are gears
    std::vector<std::string> inputs, outputs;
    std::vector<Gear> gears;  // one of them where sizes are fixed
};

// Device memory of a tensor.
struct Span {
    void *address;
    size_t size;
};

// A loaded model.
class Model {
  public:
    Model(std::shared_ptr<Arena> arena, Record record, std::string content);
    ~Model();
    const Record record;
    // The gear for extents of the inputs, in the order of the record; throws Failure if there is none.
    const Gear &choose(const std::vector<Shape> &shapes) const;
    // One execution at a time; on return it is done.
    void run(const Gear &gear, const std::vector<Span> &inputs, const std::vector<Span> &outputs);
    const std::shared_ptr<Arena> arena;
    struct {
        std::vector<int> inputs, outputs;
    } types;  // aclDataType, in the order of the record

  private:
    class Dataset;
    const std::string content_;  // of the `.om`, which the driver may read for as long as the model is loaded
    void describe();
    void set_gear(const Gear &gear, void *dataset) const;
    void release() noexcept;
    std::mutex lock_;
    uint32_t id_ = 0;
    bool loaded_ = false;
    void *work_ = nullptr, *weights_ = nullptr, *desc_ = nullptr;
    std::vector<size_t> order_;  // of the inputs of the record, for each of the model
    size_t hidden_ = SIZE_MAX, hidden_size_ = 0;  // the input that carries the choice of a gear
};

// onnxruntime hands null addresses on where an allocator has no memory.
constexpr char kNoMemory[] = "OCC0511: there is no device memory for a value, under `npu_mem_limit` where the session has one; the log has the sizes";
bool is_on_npu(const void *api, const OrtValue *value);
Shape extents(const void *api, const OrtValue *value);
// Takes memory of `arena`, or without one, of an arena of its own on device `number`, which is opened when it is needed.
OrtAllocator *make_allocator(const void *api, const OrtLogger *logger, const OrtMemoryInfo *info, std::shared_ptr<Devices> devices,
                             int number, std::shared_ptr<Arena> arena);
void release_allocator(OrtAllocator *allocator);
OrtDataTransferImpl *make_data_transfer(const void *api, std::shared_ptr<Devices> devices);
// Kernels that onnxruntime runs where a value goes to the CPU or comes from there. Throws Failure.
OrtKernelRegistry *make_copy_kernels(const void *api, OrtDataTransferImpl *transfer);
OrtNodeComputeInfo *make_computed(const void *api, std::shared_ptr<Model> model, const std::vector<std::string> &inputs,
                                  const std::vector<std::string> &outputs);
void release_computed(OrtNodeComputeInfo *computed);

}  // namespace occ::ort_plugin::ascend
