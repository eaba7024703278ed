"""te and schedules to Halide generator C++, and that to native code (`-t cpu`)."""
