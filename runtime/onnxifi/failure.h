// How functions of the library fail: inside by exception, outside by status.
#pragma once
#include "onnxifi.h"

#include <string>

namespace occ::onnxifi {

struct Failure {
    onnxStatus status;
    std::string text;
};

// Tells people on the standard error if the level (ONNXIFI_LOG_LEVEL_*) is one that they asked for.
void log(uint64_t level, uint64_t asked, const std::string &text);

}  // namespace occ::onnxifi
