// The factory, which nodes are taken, and EPContext nodes.
#include "plugin.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

namespace occ::ort_plugin {

constexpr char kName[] = "OccExecutionProvider", kPrefix[] = "ep.occexecutionprovider.";

std::atomic<Ask> asked{nullptr};

namespace {

struct Provider : OrtEp {
    const void *api;
    const OrtLogger *logger;
    Settings settings;
    bool one_graph;                       // onnxruntime takes groups of one graph of a model alone
    std::map<std::string, Group> groups;  // by the names of their nodes' results

    void capability(const OrtGraph *graph, OrtEpGraphSupportInfo *info);
    void compile(const OrtGraph **graphs, const OrtNode **nodes, size_t count, OrtNodeComputeInfo **made, OrtNode **contexts);
};

struct Claims {
    Provider *provider;
    OrtEpGraphSupportInfo *info;
};

// The model that a node was made from, which occ writes into its notes as `SHA-256 path` if it is in the same folder.
void find_model(const void *api, const OrtGraph *graph, const std::string &notes, Group &g) {
    constexpr size_t kDigest = 64;
    if (notes.size() < kDigest + 2 || notes[kDigest] != ' ') return;
    try {
        g.model = beside(api, graph, notes.substr(kDigest + 1));
        g.digest = notes.substr(0, kDigest);
    } catch (const Failure &) {  // it is none of the folder's files: the artifact runs alone
    }
    if (access(g.model.c_str(), R_OK)) g.model.clear();
}

// Nodes of `graph` that hold an artifact already.
bool take_contexts(Provider &p, const OrtGraph *graph, OrtEpGraphSupportInfo *info) {
    const void *api = p.api, *ep = ort::GetEpApi(api);
    bool any = false;
    for (const OrtNode *node : nodes_of(api, graph)) {
        if (!is_context(api, node, kName)) continue;
        any = true;
        const Context c = context_of(api, graph, node);
        Group g = {c.data, c.path, c.refusal, "", ""};
        find_model(api, graph, c.notes, g);
        for (const std::string &name : names(api, node, true)) p.groups[name] = g;
        const OrtNodeFusionOptions options = {kOrtLevel, true};
        check(api, ort::AddNodesToFuse(ep, info, &node, 1, &options));
    }
    return any;
}

// Before 1.24, onnxruntime names the first groups of all graphs of a model the same, and refuses the session for the second of
// them. It does not report the parent of a graph either: a branch of If is recognised by having no inputs.
bool names_are_free(const Provider &p, const OrtGraph *graph) {
    if (!p.one_graph) return true;
    size_t inputs = 0;
    check(p.api, ort::Graph_GetNumInputs(p.api, graph, &inputs));
    return inputs && p.groups.empty();
}

void Provider::capability(const OrtGraph *graph, OrtEpGraphSupportInfo *info) {
    if (!names_are_free(*this, graph)) return;
    if (take_contexts(*this, graph, info)) return;
    if (const Ask ask = asked) {
        Claims claims = {this, info};
        ask(api, graph, &claims);
    }
}

std::string content(const Group &g) {
    const char *bytes = reinterpret_cast<const char *>(g.data.bytes.get());
    return bytes ? std::string(bytes, g.data.size) : ort_plugin::content(g.path);
}

void Provider::compile(const OrtGraph **, const OrtNode **nodes, size_t count, OrtNodeComputeInfo **made, OrtNode **contexts) {
    for (size_t k = 0; k < count; k++) {
        const auto found = groups.find(key_of(api, nodes[k]));
        if (found == groups.end()) throw Failure("a group was not claimed");
        made[k] = new Computed(api, found->second, settings, names(api, nodes[k], false), names(api, nodes[k], true));
        if (contexts && settings.makes_context) contexts[k] = context_node(api, nodes[k], kName, content(found->second), {});
    }
}

struct Factory : OrtEpFactory {
    const void *api;
    bool one_graph;
};

bool before_1_24(const char *version) {
    int major = 0, minor = 0;
    return sscanf(version, "%d.%d", &major, &minor) == 2 && (major < 1 || (major == 1 && minor < 24));
}

OrtStatus *devices(OrtEpFactory *self, const OrtHardwareDevice *const *given, size_t count, OrtEpDevice **made, size_t most, size_t *n) {
    const void *api = static_cast<Factory *>(self)->api;
    *n = 0;
    return guarded(api, [&] {
        for (size_t k = 0; k < count && *n < most; k++) {
            if (ort::HardwareDevice_Type(api, given[k]) != ort::kCpu) continue;
            check(api, ort::CreateEpDevice(ort::GetEpApi(api), self, given[k], nullptr, nullptr, &made[*n]));
            ++*n;
        }
    });
}

OrtStatus *create(OrtEpFactory *self, const OrtHardwareDevice *const *, const OrtKeyValuePairs *const *, size_t,
                  const OrtSessionOptions *options, const OrtLogger *logger, OrtEp **made) {
    const void *api = static_cast<Factory *>(self)->api;
    *made = nullptr;
    return guarded(api, [&] {
        std::unique_ptr<Provider> p(new Provider());
        p->api = api;
        p->logger = logger;
        p->one_graph = static_cast<Factory *>(self)->one_graph;
        const std::string prefix = kPrefix;
        p->settings.own_pool = entry(api, options, prefix + "pool") == "occ";
        p->settings.threads = atoi(entry(api, options, prefix + "threads").c_str());
        p->settings.makes_context = entry(api, options, "ep.context_enable") == "1";
        p->ort_version_supported = kOrtLevel;
        p->GetName = [](const OrtEp *) { return kName; };
        p->GetCapability = [](OrtEp *ep, const OrtGraph *graph, OrtEpGraphSupportInfo *info) {
            Provider *provider = static_cast<Provider *>(ep);
            OrtStatus *status = guarded(provider->api, [&] { provider->capability(graph, info); });
            return status;
        };
        p->Compile = [](OrtEp *ep, const OrtGraph **graphs, const OrtNode **nodes, size_t count, OrtNodeComputeInfo **infos,
                        OrtNode **contexts) {
            Provider *provider = static_cast<Provider *>(ep);
            return guarded(provider->api, [&] { provider->compile(graphs, nodes, count, infos, contexts); });
        };
        p->ReleaseNodeComputeInfos = [](OrtEp *, OrtNodeComputeInfo **infos, size_t count) {
            for (size_t k = 0; k < count; k++) delete static_cast<Computed *>(infos[k]);
        };
        *made = p.release();
    });
}

}  // namespace

}  // namespace occ::ort_plugin

using namespace occ::ort_plugin;

#define PLUGIN_API extern "C" __attribute__((visibility("default")))

PLUGIN_API OrtStatus *CreateEpFactories(const char *, const OrtApiBase *base, const OrtLogger *, OrtEpFactory **made, size_t most, size_t *count) {
    *count = 0;
    const void *api = base->GetApi(kOrtLevel);
    if (!api || !most) return nullptr;  // of before 1.23
    Factory *f = new Factory();
    f->api = api;
    f->one_graph = before_1_24(base->GetVersionString());
    f->ort_version_supported = kOrtLevel;
    f->GetName = [](const OrtEpFactory *) { return kName; };
    f->GetVendor = [](const OrtEpFactory *) { return "occ"; };
    f->GetVendorId = [](const OrtEpFactory *) { return uint32_t(0); };
    f->GetVersion = [](const OrtEpFactory *) { return "0.1.0"; };
    f->GetSupportedDevices = devices;
    f->CreateEp = create;
    f->ReleaseEp = [](OrtEpFactory *, OrtEp *ep) { delete static_cast<Provider *>(ep); };
    f->CreateAllocator = [](OrtEpFactory *, const OrtMemoryInfo *, const OrtKeyValuePairs *, OrtAllocator **a) -> OrtStatus * {
        *a = nullptr;
        return nullptr;
    };
    f->ReleaseAllocator = [](OrtEpFactory *, OrtAllocator *) {};
    f->CreateDataTransfer = [](OrtEpFactory *, OrtDataTransferImpl **d) -> OrtStatus * {
        *d = nullptr;
        return nullptr;
    };
    f->IsStreamAware = [](const OrtEpFactory *) { return false; };
    f->CreateSyncStreamForDevice = [](OrtEpFactory *, const OrtMemoryDevice *, const OrtKeyValuePairs *, OrtSyncStreamImpl **s) -> OrtStatus * {
        *s = nullptr;
        return nullptr;
    };
    made[0] = f;
    *count = 1;
    return nullptr;
}

PLUGIN_API OrtStatus *ReleaseEpFactory(OrtEpFactory *factory) {
    delete static_cast<Factory *>(factory);
    return nullptr;
}

// Sets the callback of a host with a compiler; null for none.
PLUGIN_API void occ_ep_ask(Ask ask) { asked = ask; }

// Why this library cannot run an artifact; empty if it can.
PLUGIN_API const char *occ_ep_refusal(const char *path) {
    occ_model *model = nullptr;
    if (occ_open(path, &model)) return occ_error_text(nullptr);
    occ_close(model);
    return "";
}

// Take nodes as one group, which an artifact computes; `model` is its ONNX file for runs that the artifact refuses, or empty.
// Returns 0 for success.
PLUGIN_API int occ_ep_claim(void *claims, const OrtNode *const *nodes, size_t count, const char *path, const char *model) {
    const Claims &c = *static_cast<Claims *>(claims);
    const OrtNodeFusionOptions options = {kOrtLevel, true};
    const void *api = c.provider->api;
    if (OrtStatus *status = ort::AddNodesToFuse(ort::GetEpApi(api), c.info, nodes, count, &options)) {
        warn(api, c.provider->logger, ort::GetErrorMessage(api, status));
        ort::ReleaseStatus(api, status);
        return 1;
    }
    Group g;
    g.path = path;
    g.model = model;
    OrtStatus *status = guarded(api, [&] {
        for (size_t k = 0; k < count; k++) {
            for (const std::string &name : names(api, nodes[k], true)) c.provider->groups[name] = g;
        }
    });
    if (status) ort::ReleaseStatus(api, status);
    return status != nullptr;
}
