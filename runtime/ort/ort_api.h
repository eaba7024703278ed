/* The part of onnxruntime's C interface that the plugin uses, as it is from API level 23 on: structures that a plugin fills
   in, with the members of that level in their order, and functions of onnxruntime by their place in its tables. Both only
   grow at their end (https://onnxruntime.ai/docs/execution-providers/plugin-ep-libraries). */
#pragma once
#include <cstddef>
#include <cstdint>

struct OrtStatus;
struct OrtLogger;
struct OrtValue;
struct OrtTensorTypeAndShapeInfo;
struct OrtKernelContext;
struct OrtSessionOptions;
struct OrtHardwareDevice;
struct OrtEpDevice;
struct OrtKeyValuePairs;
struct OrtGraph;
struct OrtNode;
struct OrtValueInfo;
struct OrtOpAttr;
struct OrtEpGraphSupportInfo;
struct OrtNodeComputeContext;
struct OrtAllocator;
struct OrtDataTransferImpl;
struct OrtMemoryInfo;
struct OrtMemoryDevice;
struct OrtSyncStream;
struct OrtSyncStreamImpl;
struct OrtKernelInfo;
struct OrtKernelRegistry;
struct OrtKernelDefBuilder;
struct OrtKernelDef;
struct OrtDataType;
struct OrtRunOptions;
struct OrtEnv;
struct OrtSession;

constexpr uint32_t kOrtLevel = 23;         // of the provider for the CPU
constexpr uint32_t kOrtMemoryLevel = 24;   // of those with memory of their own, which need kernels for copies

struct OrtApiBase {
    const void *(*GetApi)(uint32_t level);
    const char *(*GetVersionString)();
};

struct OrtEp {
    uint32_t ort_version_supported;
    const char *(*GetName)(const OrtEp *);
    OrtStatus *(*GetCapability)(OrtEp *, const OrtGraph *, OrtEpGraphSupportInfo *);
    OrtStatus *(*Compile)(OrtEp *, const OrtGraph **, const OrtNode **, size_t, struct OrtNodeComputeInfo **, OrtNode **);
    void (*ReleaseNodeComputeInfos)(OrtEp *, struct OrtNodeComputeInfo **, size_t);
    OrtStatus *(*GetPreferredDataLayout)(OrtEp *, int *);
    OrtStatus *(*ShouldConvertDataLayoutForOp)(OrtEp *, const char *, const char *, int, int *);
    OrtStatus *(*SetDynamicOptions)(OrtEp *, const char *const *, const char *const *, size_t);
    OrtStatus *(*OnRunStart)(OrtEp *, const OrtRunOptions *);
    OrtStatus *(*OnRunEnd)(OrtEp *, const OrtRunOptions *, bool);
    OrtStatus *(*CreateAllocator)(OrtEp *, const OrtMemoryInfo *, OrtAllocator **);
    OrtStatus *(*CreateSyncStreamForDevice)(OrtEp *, const OrtMemoryDevice *, OrtSyncStreamImpl **);
    const char *(*GetCompiledModelCompatibilityInfo)(OrtEp *, const OrtGraph *);
    // of level 24
    OrtStatus *(*GetKernelRegistry)(OrtEp *, const OrtKernelRegistry **);
    OrtStatus *(*IsConcurrentRunSupported)(OrtEp *, bool *);
};

struct OrtAllocator {
    uint32_t version;
    void *(*Alloc)(OrtAllocator *, size_t);
    void (*Free)(OrtAllocator *, void *);
    const OrtMemoryInfo *(*Info)(const OrtAllocator *);
    void *(*Reserve)(OrtAllocator *, size_t);
    OrtStatus *(*GetStats)(const OrtAllocator *, OrtKeyValuePairs **);
    void *(*AllocOnStream)(OrtAllocator *, size_t, OrtSyncStream *);
    OrtStatus *(*Shrink)(OrtAllocator *);
};

struct OrtDataTransferImpl {
    uint32_t ort_version_supported;
    void (*Release)(OrtDataTransferImpl *);
    bool (*CanCopy)(const OrtDataTransferImpl *, const OrtMemoryDevice *, const OrtMemoryDevice *);
    OrtStatus *(*CopyTensors)(OrtDataTransferImpl *, const OrtValue **, OrtValue **, OrtSyncStream **, size_t);
};

// Of level 24.
struct OrtKernelImpl {
    uint32_t ort_version_supported, flags;
    OrtStatus *(*Compute)(OrtKernelImpl *, OrtKernelContext *);
    void (*Release)(OrtKernelImpl *);
};

struct OrtEpFactory {
    uint32_t ort_version_supported;
    const char *(*GetName)(const OrtEpFactory *);
    const char *(*GetVendor)(const OrtEpFactory *);
    OrtStatus *(*GetSupportedDevices)(OrtEpFactory *, const OrtHardwareDevice *const *, size_t, OrtEpDevice **, size_t, size_t *);
    OrtStatus *(*CreateEp)(OrtEpFactory *, const OrtHardwareDevice *const *, const OrtKeyValuePairs *const *, size_t,
                           const OrtSessionOptions *, const OrtLogger *, OrtEp **);
    void (*ReleaseEp)(OrtEpFactory *, OrtEp *);
    uint32_t (*GetVendorId)(const OrtEpFactory *);
    const char *(*GetVersion)(const OrtEpFactory *);
    OrtStatus *(*ValidateCompiledModelCompatibilityInfo)(OrtEpFactory *, const OrtHardwareDevice *const *, size_t, const char *, int *);
    OrtStatus *(*CreateAllocator)(OrtEpFactory *, const OrtMemoryInfo *, const OrtKeyValuePairs *, OrtAllocator **);
    void (*ReleaseAllocator)(OrtEpFactory *, OrtAllocator *);
    OrtStatus *(*CreateDataTransfer)(OrtEpFactory *, OrtDataTransferImpl **);
    bool (*IsStreamAware)(const OrtEpFactory *);
    OrtStatus *(*CreateSyncStreamForDevice)(OrtEpFactory *, const OrtMemoryDevice *, const OrtKeyValuePairs *, OrtSyncStreamImpl **);
    void *of_level_24[4];  // optional functions
};

struct OrtNodeComputeInfo {
    uint32_t ort_version_supported;
    OrtStatus *(*CreateState)(OrtNodeComputeInfo *, OrtNodeComputeContext *, void **);
    OrtStatus *(*Compute)(OrtNodeComputeInfo *, void *, OrtKernelContext *);
    void (*ReleaseState)(OrtNodeComputeInfo *, void *);
};

struct OrtNodeFusionOptions {
    uint32_t ort_version_supported;
    bool drop_constant_initializers;
};

/* A function of a table of onnxruntime: the table is an array of pointers, `Slot` the place. */
template<size_t Slot, typename R, typename... A> struct Entry {
    R operator()(const void *table, A... arguments) const {
        return reinterpret_cast<R (*)(A...)>(static_cast<void *const *>(table)[Slot])(arguments...);
    }
};

namespace ort {

enum { kFail = 1, kCpu = 0, kAttributeInt = 1, kAttributeString = 5 };
enum { kMemoryCpu = 0, kMemoryNpu = 3, kDefaultMemory = 0, kDeviceAllocator = 0, kInputOnCpu = -2, kOutputOnCpu = -1, kElementTypes = 26 };

// OrtApi
constexpr Entry<0, OrtStatus *, int, const char *> CreateStatus;
constexpr Entry<2, const char *, const OrtStatus *> GetErrorMessage;
constexpr Entry<3, OrtStatus *, int, const char *, OrtEnv **> CreateEnv;
constexpr Entry<7, OrtStatus *, const OrtEnv *, const char *, const OrtSessionOptions *, OrtSession **> CreateSession;
constexpr Entry<9, OrtStatus *, OrtSession *, const OrtRunOptions *, const char *const *, const OrtValue *const *, size_t, const char *const *,
                size_t, OrtValue **> Run;
constexpr Entry<10, OrtStatus *, OrtSessionOptions **> CreateSessionOptions;
constexpr Entry<24, OrtStatus *, OrtSessionOptions *, int> SetIntraOpNumThreads;
constexpr Entry<51, OrtStatus *, OrtValue *, void **> GetTensorMutableData;
constexpr Entry<60, OrtStatus *, const OrtTensorTypeAndShapeInfo *, int *> GetTensorElementType;
constexpr Entry<61, OrtStatus *, const OrtTensorTypeAndShapeInfo *, size_t *> GetDimensionsCount;
constexpr Entry<62, OrtStatus *, const OrtTensorTypeAndShapeInfo *, int64_t *, size_t> GetDimensions;
constexpr Entry<65, OrtStatus *, const OrtValue *, OrtTensorTypeAndShapeInfo **> GetTensorTypeAndShape;
constexpr Entry<72, OrtStatus *, const OrtMemoryInfo *, int *> MemoryInfoGetId;
constexpr Entry<90, OrtStatus *, const OrtKernelContext *, size_t, const OrtValue **> KernelContext_GetInput;
constexpr Entry<91, OrtStatus *, OrtKernelContext *, size_t, const int64_t *, size_t, OrtValue **> KernelContext_GetOutput;
constexpr Entry<92, void, OrtEnv *> ReleaseEnv;
constexpr Entry<93, void, OrtStatus *> ReleaseStatus;
constexpr Entry<94, void, OrtMemoryInfo *> ReleaseMemoryInfo;
constexpr Entry<95, void, OrtSession *> ReleaseSession;
constexpr Entry<96, void, OrtValue *> ReleaseValue;
constexpr Entry<99, void, OrtTensorTypeAndShapeInfo *> ReleaseTensorTypeAndShapeInfo;
constexpr Entry<100, void, OrtSessionOptions *> ReleaseSessionOptions;
constexpr Entry<211, OrtStatus *, const char *, const void *, int, int, OrtOpAttr **> CreateOpAttr;
constexpr Entry<212, void, OrtOpAttr *> ReleaseOpAttr;
constexpr Entry<237, OrtStatus *, const OrtSessionOptions *, const char *, int *> HasSessionConfigEntry;
constexpr Entry<238, OrtStatus *, const OrtSessionOptions *, const char *, char *, size_t *> GetSessionConfigEntry;
constexpr Entry<247, OrtStatus *, const OrtLogger *, int, const char *, const char *, int, const char *> Logger_LogMessage;
constexpr Entry<272, OrtStatus *, const OrtOpAttr *, int, void *, size_t, size_t *> ReadOpAttr;
constexpr Entry<274, OrtStatus *, const OrtKernelContext *, void (*)(void *, size_t), size_t, size_t, void *> KernelContext_ParallelFor;
constexpr Entry<289, OrtStatus *, const OrtValueInfo *, const char **> GetValueInfoName;
constexpr Entry<291, const void *> GetModelEditorApi;
constexpr Entry<295, void, OrtKeyValuePairs **> CreateKeyValuePairs;
constexpr Entry<296, void, OrtKeyValuePairs *, const char *, const char *> AddKeyValuePair;
constexpr Entry<297, const char *, const OrtKeyValuePairs *, const char *> GetKeyValue;
constexpr Entry<298, void, const OrtKeyValuePairs *, const char *const **, const char *const **, size_t *> GetKeyValuePairs;
constexpr Entry<300, void, OrtKeyValuePairs *> ReleaseKeyValuePairs;
constexpr Entry<307, int, const OrtHardwareDevice *> HardwareDevice_Type;
constexpr Entry<317, const void *> GetEpApi;
constexpr Entry<318, OrtStatus *, const OrtValue *, size_t *> GetTensorSizeInBytes;
constexpr Entry<320, OrtStatus *, const char *, int, uint32_t, int32_t, int, size_t, int, OrtMemoryInfo **> CreateMemoryInfo;
constexpr Entry<334, OrtStatus *, const OrtGraph *, const char **> Graph_GetModelPath;
constexpr Entry<338, OrtStatus *, const OrtGraph *, size_t *> Graph_GetNumInputs;
constexpr Entry<344, OrtStatus *, const OrtGraph *, size_t *> Graph_GetNumNodes;
constexpr Entry<345, OrtStatus *, const OrtGraph *, const OrtNode **, size_t> Graph_GetNodes;
constexpr Entry<346, OrtStatus *, const OrtGraph *, const OrtNode **> Graph_GetParentNode;
constexpr Entry<349, OrtStatus *, const OrtNode *, const char **> Node_GetName;
constexpr Entry<350, OrtStatus *, const OrtNode *, const char **> Node_GetOperatorType;
constexpr Entry<351, OrtStatus *, const OrtNode *, const char **> Node_GetDomain;
constexpr Entry<353, OrtStatus *, const OrtNode *, size_t *> Node_GetNumInputs;
constexpr Entry<354, OrtStatus *, const OrtNode *, const OrtValueInfo **, size_t> Node_GetInputs;
constexpr Entry<355, OrtStatus *, const OrtNode *, size_t *> Node_GetNumOutputs;
constexpr Entry<356, OrtStatus *, const OrtNode *, const OrtValueInfo **, size_t> Node_GetOutputs;
constexpr Entry<361, OrtStatus *, const OrtNode *, const char *, const OrtOpAttr **> Node_GetAttributeByName;
constexpr Entry<368, OrtStatus *, const OrtNode *, const char **> Node_GetEpName;
constexpr Entry<379, OrtStatus *, const OrtSessionOptions *, OrtKeyValuePairs **> GetSessionOptionsConfigEntries;
// OrtEpApi
constexpr Entry<0, OrtStatus *, OrtEpFactory *, const OrtHardwareDevice *, const OrtKeyValuePairs *, const OrtKeyValuePairs *,
                OrtEpDevice **> CreateEpDevice;
constexpr Entry<2, OrtStatus *, OrtEpGraphSupportInfo *, const OrtNode *const *, size_t, const OrtNodeFusionOptions *> AddNodesToFuse;
constexpr Entry<5, OrtStatus *, OrtEpDevice *, const OrtMemoryInfo *> AddAllocatorInfo;
constexpr Entry<7, const OrtMemoryDevice *, const OrtValue *> ValueDevice;
constexpr Entry<9, int, const OrtMemoryDevice *> DeviceType;
constexpr Entry<11, uint32_t, const OrtMemoryDevice *> DeviceVendor;
constexpr Entry<12, uint32_t, const OrtMemoryDevice *> DeviceNumber;
using CreateKernel = OrtStatus *(*)(void *, const OrtKernelInfo *, OrtKernelImpl **);
constexpr Entry<18, OrtStatus *, OrtKernelRegistry **> CreateKernelRegistry;
constexpr Entry<19, void, OrtKernelRegistry *> ReleaseKernelRegistry;
constexpr Entry<20, OrtStatus *, OrtKernelRegistry *, const OrtKernelDef *, CreateKernel, void *> AddKernel;
constexpr Entry<21, OrtStatus *, OrtKernelDefBuilder **> CreateKernelDefBuilder;
constexpr Entry<22, void, OrtKernelDefBuilder *> ReleaseKernelDefBuilder;
constexpr Entry<23, OrtStatus *, OrtKernelDefBuilder *, const char *> SetOperatorType;
constexpr Entry<24, OrtStatus *, OrtKernelDefBuilder *, const char *> SetDomain;
constexpr Entry<25, OrtStatus *, OrtKernelDefBuilder *, int, int> SetSinceVersion;
constexpr Entry<26, OrtStatus *, OrtKernelDefBuilder *, const char *> SetExecutionProvider;
constexpr Entry<27, OrtStatus *, OrtKernelDefBuilder *, size_t, int> SetInputMemType;
constexpr Entry<28, OrtStatus *, OrtKernelDefBuilder *, size_t, int> SetOutputMemType;
constexpr Entry<29, OrtStatus *, OrtKernelDefBuilder *, const char *, const OrtDataType *const *, size_t> AddTypeConstraint;
constexpr Entry<32, OrtStatus *, OrtKernelDefBuilder *, OrtKernelDef **> BuildKernelDef;
constexpr Entry<33, void, OrtKernelDef *> ReleaseKernelDef;
constexpr Entry<40, OrtStatus *, int, const OrtDataType **> GetTensorDataType;
// OrtModelEditorApi
constexpr Entry<6, OrtStatus *, const char *, const char *, const char *, const char *const *, size_t, const char *const *, size_t,
                OrtOpAttr **, size_t, OrtNode **> CreateNode;

}  // namespace ort
