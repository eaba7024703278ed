// Models on devices that Python's runtime drives: they run in the process of the compiler, and tensors go there and back in
// memory that both share.
#pragma once
#include "backend.h"
#include "program.h"

namespace occ::onnxifi {

// The devices of this machine other than the CPU. Nothing is started where no library for one is installed.
std::vector<Device> remote_devices(Compiler &compiler);
// The program that the compiler describes in its answer to "open".
std::unique_ptr<Program> remote_program(Compiler &compiler, const std::string &told);

}  // namespace occ::onnxifi
