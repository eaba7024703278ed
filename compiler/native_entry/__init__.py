"""The native entry: a plan compiled to one LLVM function that calls the kernels."""
