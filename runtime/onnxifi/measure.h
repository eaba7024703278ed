// What this machine does in a second, measured once and kept in the build cache.
#pragma once
#include <cstdint>
#include <string>

namespace occ::onnxifi {

struct Speed {
    uint64_t macs_f32 = 0, macs_f16 = 0;  // multiply-accumulates; those of f16 with their conversion to f32
    uint64_t memory = 0, read = 0, write = 0;  // bytes
};

const Speed &speed_of_machine();
std::string processor_name();

}  // namespace occ::onnxifi
