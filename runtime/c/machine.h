#pragma once

namespace occ::runtime {

// A feature that a Halide target such as x86-64-linux-avx2-fma asks for and this processor lacks, or null.
const char *missing_feature(const char *machine);

}  // namespace occ::runtime
