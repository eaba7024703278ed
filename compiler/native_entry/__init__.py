"""The plan as one native function, for kernels of whatever code generator, and what LLVM IR is written with."""
