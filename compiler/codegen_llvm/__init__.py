"""The target `cpu-jit`: te functions to LLVM IR and native code, with no toolchain."""
