// What the emitted C++ needs of CANN's graph/tensor.h.
#pragma once
#include <cstddef>
#include <vector>

#include "graph/types.h"

namespace ge {
class Shape {
 public:
  Shape() = default;
  explicit Shape(const std::vector<int64_t> &dims) : dims_(dims) {}
  std::vector<int64_t> GetDims() const { return dims_; }

 private:
  std::vector<int64_t> dims_;
};

class TensorDesc {
 public:
  TensorDesc() = default;
  explicit TensorDesc(Shape shape, Format format = FORMAT_ND, DataType type = DT_FLOAT)
      : shape(shape), format(format), type(type) {}
  void SetOriginShape(const Shape &) {}
  void SetOriginFormat(Format) {}

  Shape shape;
  Format format = FORMAT_ND;
  DataType type = DT_FLOAT;
};

class Tensor {
 public:
  Tensor() = default;
  Tensor(const TensorDesc &desc, const uint8_t *data, size_t size) : desc(desc), bytes(data, data + size) {}

  TensorDesc desc;
  std::vector<uint8_t> bytes;
};
}  // namespace ge
