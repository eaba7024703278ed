// The factory of the provider for Ascend devices, which nodes are taken, and sessions that refuse what the device cannot take.
#include "ascend.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

namespace occ::ort_plugin::ascend {

namespace {

// The host's callback, which selects nodes of a graph: it calls `occ_ep_claim` and `occ_ep_refuse` with `claims`.
using Ask = void (*)(const void *api, const OrtGraph *graph, void *claims);
std::atomic<Ask> asked{nullptr};

// Options of a session without a compiler, which are those of onnxruntime's own provider for CANN.
const char *const kOptions[] = {
    "device_id", "npu_mem_limit", "arena_extend_strategy", "enable_cann_graph", "enable_cann_subgraph", "dump_graphs", "dump_om_model",
    "precision_mode", "precision_mode_v2", "op_select_impl_mode", "optypelist_for_implmode", "input_format", "dynamic_batch_size",
    "dynamic_image_size", "dynamic_dims",
};

// A group of nodes: a compiled model in a file or in memory, and its record.
struct Group {
    Blob data;
    std::string path, record, refusal;
};

struct Factory : OrtEpFactory {
    const void *api;
    const OrtLogger *logger;
    std::shared_ptr<Devices> devices;
    std::vector<OrtMemoryInfo *> infos;  // by device
};

struct Provider : OrtEp {
    Factory *factory;
    const void *api;
    const OrtLogger *logger;
    int number;
    bool makes_context;
    std::map<std::string, std::string> options;
    std::shared_ptr<Arena> arena;
    std::map<std::string, Group> groups;  // by the names of their nodes' results
    OrtDataTransferImpl *transfer = nullptr;
    OrtKernelRegistry *kernels = nullptr;
    std::string refusal;  // why no session can be had: Python runs the model on the CPU where a provider cannot be made, so it can

    ~Provider() {
        if (kernels) ort::ReleaseKernelRegistry(ort::GetEpApi(api), kernels);
        if (transfer) transfer->Release(transfer);
    }
    void capability(const OrtGraph *graph, OrtEpGraphSupportInfo *info);
    void take(OrtEpGraphSupportInfo *info, const OrtNode *const *nodes, size_t count, const Group &group);
    void refuse(const OrtGraph *graph, OrtEpGraphSupportInfo *info);
    void open(const OrtKeyValuePairs *metadata);
    void compile(const OrtNode **nodes, size_t count, OrtNodeComputeInfo **made, OrtNode **contexts);
};

struct Claims {
    Provider *provider;
    OrtEpGraphSupportInfo *info;
    const OrtGraph *graph;
    std::string options;  // of the session, lines `KEY=VALUE`
};

std::string content(const Group &g) {
    const char *bytes = reinterpret_cast<const char *>(g.data.bytes.get());
    return bytes ? std::string(bytes, g.data.size) : ort_plugin::content(g.path);
}

void Provider::take(OrtEpGraphSupportInfo *info, const OrtNode *const *nodes, size_t count, const Group &group) {
    const OrtNodeFusionOptions fusion = {kOrtLevel, true};
    check(api, ort::AddNodesToFuse(ort::GetEpApi(api), info, nodes, count, &fusion));
    for (size_t k = 0; k < count; k++) {
        for (const std::string &name : names(api, nodes[k], true)) groups[name] = group;
    }
}

// A nested graph goes with the operator that holds it. onnxruntime asks again about what was left.
void Provider::capability(const OrtGraph *graph, OrtEpGraphSupportInfo *info) {
    const OrtNode *parent = nullptr;
    check(api, ort::Graph_GetParentNode(api, graph, &parent));
    if (!refusal.empty()) return refuse(graph, info);
    bool any = false;
    for (const OrtNode *node : nodes_of(api, graph)) {
        const char *owner = "";
        check(api, ort::Node_GetEpName(api, node, &owner));
        any = any || (owner && !strcmp(owner, kName));
        if (!is_context(api, node, kName) || (owner && *owner)) continue;
        const Context c = context_of(api, graph, node);
        take(info, &node, 1, {c.data, c.path, c.notes, c.refusal});
        any = true;
    }
    const Ask ask = asked;
    if (any || parent) return;
    if (!ask) {
        refusal = "OCC0301: the model has no part that is compiled for an Ascend device, and this program has no compiler: "
                  "`occ build MODEL -t ascend310p --emit ort` makes a model that has";
        return refuse(graph, info);
    }
    Claims claims = {this, info, graph, ""};
    for (const auto &[key, value] : options) claims.options += key + "=" + value + "\n";
    ask(api, graph, &claims);
}

void Provider::refuse(const OrtGraph *graph, OrtEpGraphSupportInfo *info) {
    for (const OrtNode *node : nodes_of(api, graph)) {
        const char *owner = "";
        check(api, ort::Node_GetEpName(api, node, &owner));
        if (owner && *owner) continue;
        return take(info, &node, 1, {{}, "", "", refusal});
    }
}

void Provider::compile(const OrtNode **nodes, size_t count, OrtNodeComputeInfo **made, OrtNode **contexts) {
    for (size_t k = 0; k < count; k++) {
        const auto found = groups.find(key_of(api, nodes[k]));
        if (found == groups.end()) throw Failure("a group was not claimed");
        const Group &g = found->second;
        if (!g.refusal.empty()) throw Failure(g.refusal);
        const Record record(g.record);
        const auto model = std::make_shared<Model>(arena, record, content(g));
        made[k] = make_computed(api, model, names(api, nodes[k], false), names(api, nodes[k], true));
        if (!contexts || !makes_context) continue;
        contexts[k] = context_node(api, nodes[k], kName, content(g), {{"notes", g.record}, {"hardware_architecture", record.soc}});
    }
}

// The options of a session, without what their keys begin with.
std::map<std::string, std::string> options_of(const void *api, const OrtSessionOptions *given) {
    OrtKeyValuePairs *pairs = nullptr;
    check(api, ort::GetSessionOptionsConfigEntries(api, given, &pairs));
    const char *const *keys = nullptr, *const *values = nullptr;
    size_t count = 0;
    ort::GetKeyValuePairs(api, pairs, &keys, &values, &count);
    std::map<std::string, std::string> found;
    for (size_t k = 0; k < count; k++) {
        if (!strncmp(keys[k], kPrefix, strlen(kPrefix))) found[keys[k] + strlen(kPrefix)] = values[k];
    }
    ort::ReleaseKeyValuePairs(api, pairs);
    return found;
}

std::string option(const std::map<std::string, std::string> &options, const char *key, const char *otherwise) {
    const auto found = options.find(key);
    return found == options.end() ? otherwise : found->second;
}

// A whole number of an option; more than fits is no limit, as onnxruntime's own provider has it.
uint64_t number_of(const std::map<std::string, std::string> &options, const char *key) {
    const std::string text = option(options, key, "0");
    if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos) {
        throw Failure("OCC0603: option `" + std::string(key) + "` takes a number, not `" + text + "`");
    }
    return strtoull(text.c_str(), nullptr, 10);
}

void check_options(const std::map<std::string, std::string> &options) {
    for (const auto &[key, value] : options) {
        const auto same = [&key = key](const char *known) { return key == known; };
        if (std::any_of(std::begin(kOptions), std::end(kOptions), same)) continue;
        std::string known;
        for (const char *name : kOptions) known += (known.empty() ? "" : ", ") + std::string(name);
        throw Failure("OCC0603: there is no option `" + key + "`; options: " + known);
    }
}

// Opens the device as the options of a session say.
void Provider::open(const OrtKeyValuePairs *metadata) {
    if (!asked) check_options(options);
    const char *told = metadata ? ort::GetKeyValue(api, metadata, "device_id") : nullptr;
    number = told ? atoi(told) : 0;
    if (options.count("device_id") && number_of(options, "device_id") != uint64_t(number)) {
        throw Failure("OCC0603: `device_id` is " + options["device_id"] + ", the session was given the device " + std::to_string(number) +
                      "; choose the OrtEpDevice whose metadata have this `device_id`");
    }
    const std::string grows = option(options, "arena_extend_strategy", "kNextPowerOfTwo");
    if (grows != "kNextPowerOfTwo" && grows != "kSameAsRequested") {
        throw Failure("OCC0603: option `arena_extend_strategy` cannot be `" + grows + "`; one of: kNextPowerOfTwo, kSameAsRequested");
    }
    const uint64_t limit = number_of(options, "npu_mem_limit");
    arena = std::make_shared<Arena>(factory->devices->open(number), limit < (uint64_t(1) << 63) ? size_t(limit) : 0, grows == "kNextPowerOfTwo");
}

OrtStatus *create(OrtEpFactory *self, const OrtHardwareDevice *const *, const OrtKeyValuePairs *const *metadata, size_t count,
                  const OrtSessionOptions *given, const OrtLogger *logger, OrtEp **made) {
    Factory *f = static_cast<Factory *>(self);
    const void *api = f->api;
    *made = nullptr;
    return guarded(api, [&] {
        std::unique_ptr<Provider> p(new Provider());
        p->factory = f;
        p->api = api;
        p->logger = logger;
        p->options = options_of(api, given);
        p->makes_context = entry(api, given, "ep.context_enable") == "1";
        try {
            p->open(count ? metadata[0] : nullptr);
        } catch (const Failure &e) {
            p->refusal = e.text;
        }
        p->transfer = make_data_transfer(api, f->devices);
        p->kernels = make_copy_kernels(api, p->transfer);
        p->ort_version_supported = kOrtMemoryLevel;
        p->GetName = [](const OrtEp *) { return kName; };
        p->GetCapability = [](OrtEp *ep, const OrtGraph *graph, OrtEpGraphSupportInfo *info) {
            Provider *provider = static_cast<Provider *>(ep);
            return guarded(provider->api, [&] { provider->capability(graph, info); });
        };
        p->Compile = [](OrtEp *ep, const OrtGraph **, const OrtNode **nodes, size_t n, OrtNodeComputeInfo **infos, OrtNode **contexts) {
            Provider *provider = static_cast<Provider *>(ep);
            return guarded(provider->api, [&] { provider->compile(nodes, n, infos, contexts); });
        };
        p->ReleaseNodeComputeInfos = [](OrtEp *, OrtNodeComputeInfo **infos, size_t n) {
            for (size_t k = 0; k < n; k++) release_computed(infos[k]);
        };
        p->CreateAllocator = [](OrtEp *ep, const OrtMemoryInfo *info, OrtAllocator **a) -> OrtStatus * {
            Provider *provider = static_cast<Provider *>(ep);
            *a = make_allocator(provider->api, provider->logger, info, provider->factory->devices, provider->number, provider->arena);
            return nullptr;
        };
        p->GetKernelRegistry = [](OrtEp *ep, const OrtKernelRegistry **registry) -> OrtStatus * {
            *registry = static_cast<Provider *>(ep)->kernels;
            return nullptr;
        };
        *made = p.release();
    });
}

OrtStatus *devices(OrtEpFactory *self, const OrtHardwareDevice *const *given, size_t count, OrtEpDevice **made, size_t most, size_t *n) {
    Factory *f = static_cast<Factory *>(self);
    const void *api = f->api;
    *n = 0;
    return guarded(api, [&] {
        const OrtHardwareDevice *host = nullptr;  // onnxruntime discovers no Ascend devices itself: the metadata describe them
        for (size_t k = 0; k < count && !host; k++) {
            if (ort::HardwareDevice_Type(api, given[k]) == ort::kCpu) host = given[k];
        }
        for (size_t k = 0; host && k < f->infos.size() && *n < most; k++) {
            OrtKeyValuePairs *metadata = nullptr;
            ort::CreateKeyValuePairs(api, &metadata);
            ort::AddKeyValuePair(api, metadata, "device_id", std::to_string(k).c_str());
            ort::AddKeyValuePair(api, metadata, "soc_version", f->devices->soc().c_str());
            OrtStatus *status = ort::CreateEpDevice(ort::GetEpApi(api), self, host, metadata, nullptr, &made[*n]);
            ort::ReleaseKeyValuePairs(api, metadata);
            check(api, status);
            check(api, ort::AddAllocatorInfo(ort::GetEpApi(api), made[(*n)++], f->infos[k]));
        }
    });
}

void fill(Factory *f) {
    f->ort_version_supported = kOrtMemoryLevel;
    f->GetName = [](const OrtEpFactory *) { return kName; };
    f->GetVendor = [](const OrtEpFactory *) { return "occ"; };
    f->GetVendorId = [](const OrtEpFactory *) { return kVendor; };
    f->GetVersion = [](const OrtEpFactory *) { return "0.1.0"; };
    f->GetSupportedDevices = devices;
    f->CreateEp = create;
    f->ReleaseEp = [](OrtEpFactory *, OrtEp *ep) { delete static_cast<Provider *>(ep); };
    f->CreateAllocator = [](OrtEpFactory *self, const OrtMemoryInfo *info, const OrtKeyValuePairs *, OrtAllocator **a) {
        Factory *g = static_cast<Factory *>(self);
        *a = nullptr;
        return guarded(g->api, [&] {
            int number = 0;
            check(g->api, ort::MemoryInfoGetId(g->api, info, &number));
            *a = make_allocator(g->api, g->logger, info, g->devices, number, nullptr);
        });
    };
    f->ReleaseAllocator = [](OrtEpFactory *, OrtAllocator *a) { release_allocator(a); };
    f->CreateDataTransfer = [](OrtEpFactory *self, OrtDataTransferImpl **d) -> OrtStatus * {
        Factory *g = static_cast<Factory *>(self);
        *d = make_data_transfer(g->api, g->devices);
        return nullptr;
    };
    f->IsStreamAware = [](const OrtEpFactory *) { return false; };
    f->CreateSyncStreamForDevice = [](OrtEpFactory *, const OrtMemoryDevice *, const OrtKeyValuePairs *, OrtSyncStreamImpl **s) -> OrtStatus * {
        *s = nullptr;
        return nullptr;
    };
}

}  // namespace

}  // namespace occ::ort_plugin::ascend

using namespace occ::ort_plugin;
using namespace occ::ort_plugin::ascend;

#define PLUGIN_API extern "C" __attribute__((visibility("default")))

// Refuses a machine without a device that works, so that no model is left to the CPU unnoticed.
PLUGIN_API OrtStatus *CreateEpFactories(const char *, const OrtApiBase *base, const OrtLogger *logger, OrtEpFactory **made, size_t most, size_t *count) {
    *count = 0;
    const void *api = base->GetApi(kOrtMemoryLevel);
    if (!api) {
        const void *old = base->GetApi(kOrtLevel);
        return old ? ort::CreateStatus(old, ort::kFail, "occ: onnxruntime 1.24 or later is needed for memory of a device") : nullptr;
    }
    if (!most) return nullptr;
    return guarded(api, [&] {
        std::unique_ptr<Factory> f(new Factory());
        f->api = api;
        f->logger = logger;
        f->devices = std::make_shared<Devices>(std::make_shared<Acl>());
        const int found = f->devices->count();
        if (found < 1) throw Failure("OCC0407: this machine has no Ascend device that works; check the driver with `npu-smi info`");
        for (int k = 0; k < found; k++) {
            OrtMemoryInfo *info = nullptr;
            check(api, ort::CreateMemoryInfo(api, "Cann", ort::kMemoryNpu, kVendor, k, ort::kDefaultMemory, 0, ort::kDeviceAllocator, &info));
            f->infos.push_back(info);
        }
        fill(f.get());
        made[0] = f.release();
        *count = 1;
    });
}

PLUGIN_API OrtStatus *ReleaseEpFactory(OrtEpFactory *factory) {
    Factory *f = static_cast<Factory *>(factory);
    for (OrtMemoryInfo *info : f->infos) ort::ReleaseMemoryInfo(f->api, info);
    delete f;
    return nullptr;
}

// Sets the callback of a host with a compiler; null for none.
PLUGIN_API void occ_ep_ask(Ask ask) { asked = ask; }

// The options of the session that asks, lines `KEY=VALUE`, and the chip of its device.
PLUGIN_API const char *occ_ep_options(void *claims) { return static_cast<Claims *>(claims)->options.c_str(); }
PLUGIN_API const char *occ_ep_soc(void *claims) { return static_cast<Claims *>(claims)->provider->arena->device->soc.c_str(); }

// Take nodes as one group, which the compiled model at `path` computes; `record` describes it. Returns 0 for success.
PLUGIN_API int occ_ep_claim(void *claims, const OrtNode *const *nodes, size_t count, const char *path, const char *record) {
    const Claims &c = *static_cast<Claims *>(claims);
    const void *api = c.provider->api;
    OrtStatus *status = guarded(api, [&] { c.provider->take(c.info, nodes, count, {{}, path, record, ""}); });
    if (!status) return 0;
    warn(api, c.provider->logger, ort::GetErrorMessage(api, status));
    ort::ReleaseStatus(api, status);
    return 1;
}

// Have the session fail with a text: an error of onnxruntime's question would only be logged, so a node is taken that does not compile.
PLUGIN_API int occ_ep_refuse(void *claims, const char *text) {
    const Claims &c = *static_cast<Claims *>(claims);
    c.provider->refusal = text;
    OrtStatus *status = guarded(c.provider->api, [&] { c.provider->refuse(c.graph, c.info); });
    if (!status) return 0;
    ort::ReleaseStatus(c.provider->api, status);
    return 1;
}

// Report a warning to the user; the session continues.
PLUGIN_API void occ_ep_warn(void *claims, const char *text) {
    const Claims &c = *static_cast<Claims *>(claims);
    warn(c.provider->api, c.provider->logger, text);
}
