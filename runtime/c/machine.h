#pragma once

namespace occ::runtime {

// A feature in the name of a Halide target, such as x86-64-linux-avx2-fma, that this processor lacks; or null.
const char *missing_feature(const char *machine);

// What to add to a message about a missing feature that the processor may have all the same.
const char *refused(const char *feature);

// Whether code for such a machine can run here.
bool runs_here(const char *machine);
// The number of known features that it requires.
int features_of(const char *machine);
// The architecture and system of this machine, as in the names of Halide's targets; empty if unknown.
extern const char kKind[];

}  // namespace occ::runtime
