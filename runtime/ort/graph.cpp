#include "graph.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace occ::ort_plugin {

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

std::vector<size_t> places(const std::vector<std::string> &wanted, const std::vector<std::string> &given) {
    std::vector<size_t> found;
    for (const std::string &name : wanted) {
        const auto at = std::find(given.begin(), given.end(), name);
        if (at == given.end()) throw Failure("the node has no `" + name + "`, which its compiled code has");
        found.push_back(size_t(at - given.begin()));
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
    throw Failure("a node has no outputs");
}

std::vector<const OrtNode *> nodes_of(const void *api, const OrtGraph *graph) {
    size_t count = 0;
    check(api, ort::Graph_GetNumNodes(api, graph, &count));
    std::vector<const OrtNode *> nodes(count);
    check(api, ort::Graph_GetNodes(api, graph, nodes.data(), count));
    return nodes;
}

namespace {

// The bytes of a string attribute at an aligned address; nothing where there is no such attribute.
Blob attribute(const void *api, const OrtNode *node, const char *name) {
    Blob g;
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

std::string text(const Blob &g) { return g.bytes ? std::string(reinterpret_cast<const char *>(g.bytes.get()), strnlen(reinterpret_cast<const char *>(g.bytes.get()), g.size)) : ""; }

int64_t number(const void *api, const OrtNode *node, const char *name, int64_t otherwise) {
    const OrtOpAttr *found = nullptr;
    int64_t value = otherwise;
    size_t size = 0;
    OrtStatus *status = ort::Node_GetAttributeByName(api, node, name, &found);
    if (!status && found) status = ort::ReadOpAttr(api, found, ort::kAttributeInt, &value, sizeof value, &size);
    if (status) ort::ReleaseStatus(api, status);
    return value;
}

}  // namespace

std::string beside(const void *api, const OrtGraph *graph, const std::string &name) {
    if (name.empty() || name[0] == '/' || name.find("..") != std::string::npos) throw Failure("`" + name + "` leaves the folder of the model");
    const char *model = "";
    check(api, ort::Graph_GetModelPath(api, graph, &model));
    const std::string path = model ? model : "";
    const size_t slash = path.rfind('/');
    return (slash == std::string::npos ? "" : path.substr(0, slash + 1)) + name;
}

bool is_context(const void *api, const OrtNode *node, const char *source) {
    const char *type = "", *domain = "";
    check(api, ort::Node_GetOperatorType(api, node, &type));
    check(api, ort::Node_GetDomain(api, node, &domain));
    return !strcmp(type, "EPContext") && !strcmp(domain, "com.microsoft") && text(attribute(api, node, "source")) == source;
}

Context context_of(const void *api, const OrtGraph *graph, const OrtNode *node) {
    Context c;
    c.data = attribute(api, node, "ep_cache_context");
    c.notes = text(attribute(api, node, "notes"));
    if (number(api, node, "embed_mode", 1)) return c;
    const std::string name = text(c.data);
    c.data = Blob();
    try {
        c.path = beside(api, graph, name);
    } catch (const Failure &e) {
        c.refusal = e.text;  // an error of a session says it, that of a capability is only logged
    }
    return c;
}

OrtNode *context_node(const void *api, const OrtNode *fused, const char *source, const std::string &data,
                      const std::map<std::string, std::string> &texts) {
    const std::vector<std::string> reads = names(api, fused, false), gives = names(api, fused, true);
    std::vector<const char *> in, out;
    for (const std::string &n : reads) in.push_back(n.c_str());
    for (const std::string &n : gives) out.push_back(n.c_str());
    const char *name = "";
    check(api, ort::Node_GetName(api, fused, &name));
    if (data.size() > INT32_MAX) throw Failure("an artifact of more than two gigabytes does not fit into a model");
    std::map<std::string, std::string> strings = texts;
    strings["ep_cache_context"] = data;
    strings["source"] = source;
    strings["partition_name"] = name;
    std::vector<OrtOpAttr *> attributes;
    OrtStatus *status = nullptr;
    const auto add = [&](const char *key, const void *value, size_t size, int kind) {
        OrtOpAttr *made = nullptr;
        if (!status) status = ort::CreateOpAttr(api, key, value, int(size), kind, &made);
        if (made) attributes.push_back(made);
    };
    const int64_t one = 1;
    for (const char *key : {"main_context", "embed_mode"}) add(key, &one, 1, ort::kAttributeInt);
    for (const auto &[key, value] : strings) add(key.c_str(), value.data(), value.size(), ort::kAttributeString);
    OrtNode *made = nullptr;
    if (!status) {
        status = ort::CreateNode(ort::GetModelEditorApi(api), "EPContext", "com.microsoft", name, in.data(), in.size(), out.data(),
                                 out.size(), attributes.data(), attributes.size(), &made);
    }
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

void warn(const void *api, const OrtLogger *logger, const std::string &message) {
    constexpr int kWarning = 2;
    if (OrtStatus *s = ort::Logger_LogMessage(api, logger, kWarning, message.c_str(), __FILE__, __LINE__, "occ")) ort::ReleaseStatus(api, s);
}

}  // namespace occ::ort_plugin
