"""The target `cpu`: te functions to Halide generators in C++, and those to native code."""
