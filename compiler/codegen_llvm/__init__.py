"""te and schedules to LLVM IR and to native code, with no toolchain (`-t cpu-jit`)."""
