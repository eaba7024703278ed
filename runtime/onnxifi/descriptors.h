// Tensor descriptors of callers: what is wrong with one by itself, and whether it fits a port.
#pragma once
#include "failure.h"
#include "program.h"

namespace occ::onnxifi {

// The occ_dtype of a number of TensorProto.DataType; OCC_ANY for one that tensors here do not have.
int32_t dtype_of(onnxEnum number);

// `what` is how messages name it: "input", "output", "weight".
void check(const onnxTensorDescriptorV1 &d, const char *what, bool weight);
// All of a list, with names that are given once.
void check_all(const onnxTensorDescriptorV1 *d, uint32_t count, const char *what, bool weights);
// Of some tensors, one for each port, in the order of ports.
std::vector<occ_tensor> bind_ports(const std::vector<Port> &ports, const onnxTensorDescriptorV1 *d, uint32_t count,
                                   const char *what);
// Sizes that have one name must be one number.
void check_symbols(const std::vector<Port> &ports, const std::vector<occ_tensor> &tensors);

}  // namespace occ::onnxifi
