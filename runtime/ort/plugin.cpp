// The factory, which nodes are taken, and EPContext nodes.
#include "plugin.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

namespace occ::ort_plugin {

constexpr char kName[] = "OccExecutionProvider", kPrefix[] = "ep.occexecutionprovider.";

std::atomic<Ask> asked{nullptr};

void check(const void *api, OrtStatus *status) {
    if (!status) return;
    const std::string text = ort::GetErrorMessage(api, status);
    ort::ReleaseStatus(api, status);
    throw Failure(text);
}

std::vector<std::string> names(const void *api, const OrtNode *node, bool outputs) {
    size_t count = 0;
    check(api, outputs ? ort::Node_GetNumOutputs(api, node, &count) : ort::Node_GetNumInputs(api, node, &count));
    std::vector<const OrtValueInfo *> values(count);
    check(api, outputs ? ort::Node_GetOutputs(api, node, values.data(), count) : ort::Node_GetInputs(api, node, values.data(), count));
    std::vector<std::string> found;
    for (const OrtValueInfo *value : values) {
        const char *name = "";
        if (value) check(api, ort::GetValueInfoName(api, value, &name));
        found.push_back(name);
    }
    return found;
}

std::string content(const std::string &path) {
    std::string data;
    FILE *file = fopen(path.c_str(), "rb");
    if (!file) throw Failure("`" + path + "` cannot be read");
    char part[1 << 16];
    for (size_t n; (n = fread(part, 1, sizeof part, file)) > 0;) data.append(part, n);
    fclose(file);
    return data;
}

std::string key_of(const void *api, const OrtNode *node) {
    for (const std::string &name : names(api, node, true)) {
        if (!name.empty()) return name;
    }
    throw Failure("a node gives nothing");
}

namespace {

bool is_context(const void *api, const OrtNode *node) {
    const char *type = "", *domain = "";
    check(api, ort::Node_GetOperatorType(api, node, &type));
    check(api, ort::Node_GetDomain(api, node, &domain));
    return !strcmp(type, "EPContext") && !strcmp(domain, "com.microsoft");
}

// The bytes of a string attribute at an aligned address; nothing where there is no such attribute.
Group attribute(const void *api, const OrtNode *node, const char *name) {
    Group g;
    const OrtOpAttr *found = nullptr;
    OrtStatus *status = ort::Node_GetAttributeByName(api, node, name, &found);
    if (status) {
        ort::ReleaseStatus(api, status);
        return g;
    }
    if (!found) return g;
    size_t size = 0;
    if (OrtStatus *asked_size = ort::ReadOpAttr(api, found, ort::kAttributeString, nullptr, 0, &size)) ort::ReleaseStatus(api, asked_size);
    const size_t room = (size / 64 + 2) * 64;
    g.bytes.reset(static_cast<unsigned char *>(aligned_alloc(64, room)), free);
    if (!g.bytes) throw Failure("there is no memory for an artifact");
    memset(g.bytes.get(), 0, room);
    if (size) check(api, ort::ReadOpAttr(api, found, ort::kAttributeString, g.bytes.get(), room, &size));
    g.size = size;
    return g;
}

std::string text(const Group &g) { return g.bytes ? std::string(reinterpret_cast<const char *>(g.bytes.get()), strnlen(reinterpret_cast<const char *>(g.bytes.get()), g.size)) : ""; }

int64_t number(const void *api, const OrtNode *node, const char *name, int64_t otherwise) {
    const OrtOpAttr *found = nullptr;
    int64_t value = otherwise;
    size_t size = 0;
    OrtStatus *status = ort::Node_GetAttributeByName(api, node, name, &found);
    if (!status && found) status = ort::ReadOpAttr(api, found, ort::kAttributeInt, &value, sizeof value, &size);
    if (status) ort::ReleaseStatus(api, status);
    return value;
}

// A path in an EPContext model, which starts from the folder of the model and stays in it.
std::string beside(const void *api, const OrtGraph *graph, const std::string &name) {
    if (name.empty() || name[0] == '/' || name.find("..") != std::string::npos) throw Failure("`" + name + "` leaves the folder of the model");
    const char *model = "";
    check(api, ort::Graph_GetModelPath(api, graph, &model));
    const std::string path = model ? model : "";
    const size_t slash = path.rfind('/');
    return (slash == std::string::npos ? "" : path.substr(0, slash + 1)) + name;
}

struct Provider : OrtEp {
    const void *api;
    const OrtLogger *logger;
    Settings settings;
    bool one_graph;                       // onnxruntime takes groups of one graph of a model alone
    std::map<std::string, Group> groups;  // by the names of the values that their nodes give

    void capability(const OrtGraph *graph, OrtEpGraphSupportInfo *info);
    void compile(const OrtGraph **graphs, const OrtNode **nodes, size_t count, OrtNodeComputeInfo **made, OrtNode **contexts);
    OrtNode *context_node(const OrtNode *fused, const Group &group) const;
    void warn(const std::string &message) const {
        constexpr int kWarning = 2;
        if (OrtStatus *s = ort::Logger_LogMessage(api, logger, kWarning, message.c_str(), __FILE__, __LINE__, "occ")) ort::ReleaseStatus(api, s);
    }
};

struct Claims {
    Provider *provider;
    OrtEpGraphSupportInfo *info;
};

// The model that a node was made from, which occ writes into its notes as `SHA-256 path` where it lies in the same folder.
void find_model(const void *api, const OrtGraph *graph, const OrtNode *node, Group &g) {
    constexpr size_t kDigest = 64;
    const std::string notes = text(attribute(api, node, "notes"));
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
    size_t count = 0;
    check(api, ort::Graph_GetNumNodes(api, graph, &count));
    std::vector<const OrtNode *> nodes(count);
    check(api, ort::Graph_GetNodes(api, graph, nodes.data(), count));
    bool any = false;
    for (const OrtNode *node : nodes) {
        if (!is_context(api, node) || text(attribute(api, node, "source")) != kName) continue;
        any = true;
        Group g = attribute(api, node, "ep_cache_context");
        if (number(api, node, "embed_mode", 1) == 0) {
            const std::string name = text(g);
            g = Group();
            try {
                g.path = beside(api, graph, name);
            } catch (const Failure &e) {
                g.refusal = e.text;  // an error of a session says it, that of a capability is only logged
            }
        }
        find_model(api, graph, node, g);
        for (const std::string &name : names(api, node, true)) p.groups[name] = g;
        const OrtNodeFusionOptions options = {kOrtLevel, true};
        check(api, ort::AddNodesToFuse(ep, info, &node, 1, &options));
    }
    return any;
}

// Before 1.24, onnxruntime gives the first groups of all graphs of a model one name, and refuses the session for the second of
// them. It tells no parent of a graph either: branches of If, which have no inputs, are known by that.
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

void Provider::compile(const OrtGraph **, const OrtNode **nodes, size_t count, OrtNodeComputeInfo **made, OrtNode **contexts) {
    for (size_t k = 0; k < count; k++) {
        const auto found = groups.find(key_of(api, nodes[k]));
        if (found == groups.end()) throw Failure("a group was not claimed");
        made[k] = new Computed(api, found->second, settings, names(api, nodes[k], false), names(api, nodes[k], true));
        if (contexts && settings.makes_context) contexts[k] = context_node(nodes[k], found->second);
    }
}

std::string content(const Group &g) {
    return g.bytes ? std::string(reinterpret_cast<const char *>(g.bytes.get()), g.size) : ort_plugin::content(g.path);
}

OrtNode *Provider::context_node(const OrtNode *fused, const Group &group) const {
    const std::vector<std::string> reads = names(api, fused, false), gives = names(api, fused, true);
    std::vector<const char *> in, out;
    for (const std::string &n : reads) in.push_back(n.c_str());
    for (const std::string &n : gives) out.push_back(n.c_str());
    const char *name = "";
    check(api, ort::Node_GetName(api, fused, &name));
    const std::string data = content(group);
    const int64_t one = 1;
    struct { const char *name; const void *data; int size, kind; } table[] = {
        {"main_context", &one, 1, ort::kAttributeInt},
        {"embed_mode", &one, 1, ort::kAttributeInt},
        {"ep_cache_context", data.data(), int(data.size()), ort::kAttributeString},
        {"source", kName, int(strlen(kName)), ort::kAttributeString},
        {"partition_name", name, int(strlen(name)), ort::kAttributeString},
    };
    if (data.size() > INT32_MAX) throw Failure("an artifact of more than two gigabytes does not fit into a model");
    OrtOpAttr *attributes[5] = {};
    OrtNode *made = nullptr;
    for (size_t k = 0; k < 5; k++) {
        check(api, ort::CreateOpAttr(api, table[k].name, table[k].data, table[k].size, table[k].kind, &attributes[k]));
    }
    OrtStatus *status = ort::CreateNode(ort::GetModelEditorApi(api), "EPContext", "com.microsoft", name, in.data(), in.size(), out.data(),
                                        out.size(), attributes, 5, &made);
    if (status) {
        for (OrtOpAttr *a : attributes) ort::ReleaseOpAttr(api, a);
    }
    check(api, status);
    return made;
}

std::string entry(const void *api, const OrtSessionOptions *options, const std::string &key) {
    int has = 0;
    check(api, ort::HasSessionConfigEntry(api, options, key.c_str(), &has));
    if (!has) return "";
    size_t size = 0;
    check(api, ort::GetSessionConfigEntry(api, options, key.c_str(), nullptr, &size));
    std::string value(size, 0);
    check(api, ort::GetSessionConfigEntry(api, options, key.c_str(), value.data(), &size));
    return value.c_str();
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

// For a host with a compiler: who is asked which nodes to take; null asks nobody.
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
        c.provider->warn(ort::GetErrorMessage(api, status));
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
