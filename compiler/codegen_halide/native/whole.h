// All of Halide, for generators with function bodies that users wrote.
#pragma once
#include "Halide.h"

using namespace Halide;

// A contiguous tensor: extents from the innermost dimension outward.
template<typename T>
void te_dense(T &tensor, std::initializer_list<Expr> extents) {
    int k = 0;
    Expr stride = 1;
    for (const Expr &extent : extents) {
        tensor.dim(k++).set_bounds(0, extent).set_stride(stride);
        stride = stride * extent;
    }
}
