// What a graph runs: a model that libocc has opened, or one that runs in the process of the compiler.
#pragma once
#include "occ.h"

#include <memory>
#include <string>
#include <vector>

namespace occ::onnxifi {

struct Port {
    std::string name;
    int32_t dtype;  // an occ_dtype
    std::vector<int64_t> extents;       // -1 where they vary
    std::vector<std::string> symbols;   // of those, else empty
};

class Program {
public:
    virtual ~Program() = default;
    std::vector<Port> inputs, outputs;

    // As the functions of libocc; they throw a Failure.
    virtual void output_extents(const std::vector<occ_tensor> &in, std::vector<occ_tensor> &out) = 0;
    virtual void run(const std::vector<occ_tensor> &in, std::vector<occ_tensor> &out) = 0;
};

std::unique_ptr<Program> local_program(occ_model *model);  // takes the model over

}  // namespace occ::onnxifi
