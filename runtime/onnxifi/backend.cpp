#include "backend.h"

#include "build.h"
#include "build_facts.h"
#include "measure.h"
#include "remote.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <unistd.h>

namespace occ::onnxifi {

namespace {

constexpr uint64_t kVersion = uint64_t(1) << 32, kUnlimited = UINT64_MAX;
constexpr uint64_t kLargestGraph = INT32_MAX;  // a ModelProto is smaller than 2 GiB

std::string number(uint64_t value) { return {reinterpret_cast<const char *>(&value), sizeof value}; }
std::string text(const std::string &value) { return {value.c_str(), value.size() + 1}; }  // the 0 at its end counts

uint64_t memory_of_machine() { return uint64_t(sysconf(_SC_PHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE)); }

uint64_t capabilities(const Device &d) {
    const uint64_t symbolic = ONNXIFI_CAPABILITY_SYMBOLIC_BATCH_SIZE | ONNXIFI_CAPABILITY_SYMBOLIC_SIZE_TENSORS;
    return ONNXIFI_CAPABILITY_THREAD_SAFE | (d.local ? symbolic : 0);
}

uint64_t speed(onnxBackendInfo wanted) {
    const Speed &s = speed_of_machine();
    switch (wanted) {
        case ONNXIFI_BACKEND_MACS_FP32: return s.macs_f32;
        case ONNXIFI_BACKEND_MACS_FP16: return s.macs_f16;
        case ONNXIFI_BACKEND_CPU_MEMORY_READ_BANDWIDTH: return s.read;
        case ONNXIFI_BACKEND_CPU_MEMORY_WRITE_BANDWIDTH: return s.write;
        default: return s.memory;
    }
}

}  // namespace

void log(uint64_t level, uint64_t asked, const char *about, const std::string &text) {
    static const char *const names[] = {"", "debug", "info", "warning", "error"};
    if (level >= asked) fprintf(stderr, "onnxifi-occ: %s: %s: %s\n", names[level], about, text.c_str());
}

onnxStatus lacking(int error, onnxStatus otherwise) {
    switch (error) {
        case ENOMEM:
        case ENOBUFS:
        case ENOSPC: return ONNXIFI_STATUS_NO_SYSTEM_MEMORY;  // ENOSPC: of files in memory
        case EAGAIN:
        case EMFILE:
        case ENFILE: return ONNXIFI_STATUS_NO_SYSTEM_RESOURCES;
        default: return otherwise;
    }
}

std::string Backend::target() const {
    return device.local && optimization == ONNXIFI_OPTIMIZATION_LOW_DELAY ? "cpu-jit" : device.target;
}

const std::vector<Device> &devices(Compiler &compiler) {
    static const std::vector<Device> all = [&] {
        std::vector<Device> found{{"cpu", "CPU", processor_name(), ONNXIFI_DEVICE_TYPE_CPU, memory_of_machine(), true}};
        for (Device &d : remote_devices(compiler)) found.push_back(std::move(d));
        return found;
    }();
    return all;
}

bool backend_info(const Device &d, onnxBackendInfo wanted, std::string &value) {
    switch (wanted) {
        case ONNXIFI_BACKEND_ONNXIFI_VERSION: value = number(kVersion); return true;
        case ONNXIFI_BACKEND_NAME: value = text(d.name); return true;
        case ONNXIFI_BACKEND_VENDOR: value = text("occ"); return true;
        case ONNXIFI_BACKEND_VERSION: value = text(kRelease); return true;
        case ONNXIFI_BACKEND_EXTENSIONS: value = text("onnx_extension_function"); return true;
        case ONNXIFI_BACKEND_DEVICE: value = text(d.device); return true;
        case ONNXIFI_BACKEND_DEVICE_TYPE: value = number(d.type); return true;
        case ONNXIFI_BACKEND_ONNX_IR_VERSION: value = text(kIrVersions); return true;
        case ONNXIFI_BACKEND_OPSET_VERSION: value = text(kOperatorSets); return true;
        case ONNXIFI_BACKEND_CAPABILITIES: value = number(capabilities(d)); return true;
        case ONNXIFI_BACKEND_INIT_PROPERTIES:
        case ONNXIFI_BACKEND_GRAPH_INIT_PROPERTIES: value = number(0); return true;  // none of a vendor
        case ONNXIFI_BACKEND_MEMORY_TYPES: value = number(ONNXIFI_MEMORY_TYPE_CPU); return true;
        case ONNXIFI_BACKEND_SYNCHRONIZATION_TYPES:
            value = number(ONNXIFI_SYNCHRONIZATION_EVENT | ONNXIFI_SYNCHRONIZATION_IMPLICIT);
            return true;
        case ONNXIFI_BACKEND_MEMORY_SIZE: value = number(d.memory); return true;
        case ONNXIFI_BACKEND_MAX_GRAPH_SIZE: value = number(kLargestGraph < d.memory ? kLargestGraph : d.memory); return true;
        case ONNXIFI_BACKEND_MAX_GRAPH_COUNT: value = number(kUnlimited); return true;
        case ONNXIFI_BACKEND_MACS_FP32:
        case ONNXIFI_BACKEND_MACS_FP16:
        case ONNXIFI_BACKEND_MEMORY_BANDWIDTH:
        case ONNXIFI_BACKEND_CPU_MEMORY_READ_BANDWIDTH:
        case ONNXIFI_BACKEND_CPU_MEMORY_WRITE_BANDWIDTH:
            if (d.local) value = number(speed(wanted));
            return d.local;
        default: return false;
    }
}

void set_properties(Backend &backend, const uint64_t *list) {
    for (; list && list[0] != ONNXIFI_BACKEND_PROPERTY_NONE; list += 2) {
        const uint64_t id = list[0], value = list[1];
        const std::string said = "the property " + std::to_string(id) + " has the value " + std::to_string(value);
        if (id == ONNXIFI_BACKEND_PROPERTY_OPTIMIZATION) {
            if (value > ONNXIFI_OPTIMIZATION_LOW_DELAY) throw Failure{ONNXIFI_STATUS_INVALID_PROPERTY, said};
            backend.optimization = value;
        } else if (id == ONNXIFI_BACKEND_PROPERTY_LOG_LEVEL) {
            if (value < ONNXIFI_LOG_LEVEL_DEBUG || value > ONNXIFI_LOG_LEVEL_ERROR) {
                throw Failure{ONNXIFI_STATUS_INVALID_PROPERTY, said};
            }
            backend.log_level = value;
        } else {
            throw Failure{ONNXIFI_STATUS_UNSUPPORTED_PROPERTY, "the property " + std::to_string(id) + " is unknown"};
        }
    }
}

}  // namespace occ::onnxifi
