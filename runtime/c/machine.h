#pragma once

namespace occ::runtime {

// A feature that a Halide target such as x86-64-linux-avx2-fma asks for and this processor lacks, or null.
const char *missing_feature(const char *machine);

// Whether code for such a machine can run here.
bool runs_here(const char *machine);
// How many of the features that are known it asks for.
int features_of(const char *machine);
// The kind of this machine, as Halide's targets begin; empty if it is not known.
extern const char kKind[];

}  // namespace occ::runtime
