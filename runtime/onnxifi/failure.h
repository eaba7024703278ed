// How functions of the library fail: inside by exception, outside by status.
#pragma once
#include "onnxifi.h"

#include <string>

namespace occ::onnxifi {

struct Failure {
    onnxStatus status;
    std::string text;
};

// Writes a message to the standard error if its level (ONNXIFI_LOG_LEVEL_*) is at least the requested one; allocates no memory.
void log(uint64_t level, uint64_t asked, const char *about, const std::string &text);

// What a system call lacked, by its errno; `otherwise` where it was neither memory nor another resource.
onnxStatus lacking(int error, onnxStatus otherwise);

}  // namespace occ::onnxifi
