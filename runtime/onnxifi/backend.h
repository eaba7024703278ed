// What can be initialised, and what was.
#pragma once
#include "compiler.h"

#include <memory>
#include <string>
#include <vector>

namespace occ::onnxifi {

// One backend that the library offers.
struct Device {
    std::string target;  // of occ
    std::string name, device;
    onnxEnum type;
    uint64_t memory;  // bytes
    bool local;       // its programs run in this process
    int number = 0;   // among its kind
};

struct Backend {
    const Device &device;
    Compiler &compiler;
    uint64_t optimization = ONNXIFI_OPTIMIZATION_HIGH_THROUGHPUT, log_level = ONNXIFI_LOG_LEVEL_WARNING;

    std::string target() const;  // that graphs are compiled for
};

// The devices of this machine, found at the first call; it is not empty.
const std::vector<Device> &devices(Compiler &compiler);
// The value of an information query; false if there is none of that number.
bool backend_info(const Device &device, onnxBackendInfo number, std::string &value);
void set_properties(Backend &backend, const uint64_t *list);

}  // namespace occ::onnxifi
