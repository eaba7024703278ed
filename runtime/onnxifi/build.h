// From the bytes of a model and its weights to a program: out of the build cache, or through the compiler.
#pragma once
#include "backend.h"
#include "program.h"

namespace occ::onnxifi {

std::unique_ptr<Program> build(const Backend &backend, const void *model, size_t size, const onnxTensorDescriptorV1 *weights,
                               uint32_t count);
void check_model(const Device &device, Compiler &compiler, const void *model, size_t size);
// The folder of occ's build cache; empty if there is none.
std::string cache_folder();
std::string sha256(const std::string &bytes);

}  // namespace occ::onnxifi
