#include "descriptors.h"

#include <map>
#include <set>

namespace occ::onnxifi {

namespace {

[[noreturn]] void refuse(onnxStatus status, const char *what, const char *name, const std::string &why) {
    throw Failure{status, std::string("the ") + what + " `" + (name ? name : "") + "` " + why};
}

bool is_scalar(const std::vector<int64_t> &extents) {
    for (int64_t e : extents) {
        if (e != 1) return false;
    }
    return true;
}

std::string listed(const onnxTensorDescriptorV1 &d) {
    std::string text;
    for (uint32_t a = 0; a < d.dimensions; a++) text += (a ? "," : "") + std::to_string(d.shape[a]);
    return "[" + text + "]";
}

occ_tensor bound(const Port &p, const onnxTensorDescriptorV1 &d, const char *what) {
    if (dtype_of(d.dataType) != p.dtype) {
        refuse(ONNXIFI_STATUS_MISMATCHING_DATATYPE, what, d.name, "has another element type in the graph");
    }
    occ_tensor t{};
    t.dtype = p.dtype;
    t.rank = int32_t(p.extents.size());
    // Clients without scalars pass a tensor of one element.
    const bool scalar = p.extents.empty() && is_scalar({d.shape, d.shape + d.dimensions});
    bool fits = scalar || d.dimensions == p.extents.size();
    size_t bytes = occ_element_size(p.dtype);
    for (uint32_t a = 0; fits && !scalar && a < d.dimensions; a++) {
        fits = d.shape[a] <= INT64_MAX && (p.extents[a] < 0 || uint64_t(p.extents[a]) == d.shape[a]) &&
               !__builtin_mul_overflow(bytes, d.shape[a], &bytes);
        t.extents[a] = int64_t(d.shape[a]);
    }
    if (!fits) refuse(ONNXIFI_STATUS_MISMATCHING_SHAPE, what, d.name, listed(d) + " has another shape in the graph");
    t.bytes = bytes;
    t.data = reinterpret_cast<void *>(d.buffer);
    return t;
}

}  // namespace

int32_t dtype_of(onnxEnum number) {
    static const int32_t kinds[] = {OCC_ANY, OCC_F32, OCC_U8,  OCC_I8,  OCC_U16, OCC_I16, OCC_I32, OCC_I64, OCC_ANY,
                                    OCC_BOOL, OCC_F16, OCC_F64, OCC_U32, OCC_U64, OCC_C64, OCC_C128, OCC_BF16};
    return number < sizeof kinds / sizeof *kinds ? kinds[number] : int32_t(OCC_ANY);
}

void check(const onnxTensorDescriptorV1 &d, const char *what, bool weight) {
    if (d.tag != ONNXIFI_TAG_TENSOR_DESCRIPTOR_V1) {
        throw Failure{ONNXIFI_STATUS_UNSUPPORTED_TAG, std::string("a descriptor of an ") + what + " has an unknown tag"};
    }
    if (!d.name) refuse(ONNXIFI_STATUS_INVALID_NAME, what, "", "has no name");
    if (dtype_of(d.dataType) == OCC_ANY) {
        refuse(ONNXIFI_STATUS_INVALID_DATATYPE, what, d.name, "has the unknown element type " + std::to_string(d.dataType));
    }
    switch (d.memoryType) {
        case ONNXIFI_MEMORY_TYPE_CPU: break;
        case ONNXIFI_MEMORY_TYPE_CUDA_BUFFER:
        case ONNXIFI_MEMORY_TYPE_OPENCL_BUFFER:
        case ONNXIFI_MEMORY_TYPE_OPENGLES_TEXTURE_2D:
        case ONNXIFI_MEMORY_TYPE_D3D_RESOURCE:
            refuse(ONNXIFI_STATUS_UNSUPPORTED_MEMORY_TYPE, what, d.name, "is not in the memory of the CPU");
        default: refuse(ONNXIFI_STATUS_INVALID_MEMORY_TYPE, what, d.name, "has an unknown memory type");
    }
    if (d.dimensions && !d.shape) refuse(ONNXIFI_STATUS_INVALID_POINTER, what, d.name, "has no shape");
    if (d.dimensions > OCC_MAX_RANK) {
        refuse(weight ? ONNXIFI_STATUS_UNSUPPORTED_SHAPE : ONNXIFI_STATUS_MISMATCHING_SHAPE, what, d.name,
               "has " + std::to_string(d.dimensions) + " dimensions");
    }
    for (uint32_t a = 0; a < d.dimensions; a++) {
        if (!d.shape[a]) refuse(ONNXIFI_STATUS_INVALID_SHAPE, what, d.name, listed(d) + " has no elements");
    }
    if (!d.buffer) refuse(ONNXIFI_STATUS_INVALID_MEMORY_LOCATION, what, d.name, "has no memory");
}

void check_all(const onnxTensorDescriptorV1 *d, uint32_t count, const char *what, bool weights) {
    std::set<std::string> seen;
    for (uint32_t k = 0; k < count; k++) {
        check(d[k], what, weights);
        if (!seen.insert(d[k].name).second) refuse(ONNXIFI_STATUS_INVALID_NAME, what, d[k].name, "is given twice");
    }
}

std::vector<occ_tensor> bind_ports(const std::vector<Port> &ports, const onnxTensorDescriptorV1 *d, uint32_t count,
                                   const char *what) {
    std::map<std::string, const onnxTensorDescriptorV1 *> given;
    for (uint32_t k = 0; k < count; k++) given.emplace(d[k].name, d + k);
    std::vector<occ_tensor> made;
    for (const Port &p : ports) {
        const auto at = given.find(p.name);
        if (at == given.end()) refuse(ONNXIFI_STATUS_UNIDENTIFIED_NAME, what, p.name.c_str(), "has no descriptor");
        made.push_back(bound(p, *at->second, what));
        given.erase(at);
    }
    if (!given.empty()) {
        const char *name = given.begin()->second->name;
        refuse(ONNXIFI_STATUS_INVALID_NAME, what, name, "is none of the graph");
    }
    return made;
}

void check_symbols(const std::vector<Port> &ports, const std::vector<occ_tensor> &tensors) {
    std::map<std::string, int64_t> sizes;
    for (size_t k = 0; k < ports.size(); k++) {
        for (size_t a = 0; a < ports[k].extents.size(); a++) {
            const std::string &symbol = ports[k].symbols[a];
            if (symbol.empty()) continue;
            const int64_t size = tensors[k].extents[a];
            if (sizes.emplace(symbol, size).first->second != size) {
                refuse(ONNXIFI_STATUS_MISMATCHING_SHAPE, "input", ports[k].name.c_str(),
                       "has another `" + symbol + "` than an input before");
            }
        }
    }
}

}  // namespace occ::onnxifi
