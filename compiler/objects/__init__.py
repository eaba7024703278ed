"""Object files: static libraries, ELF, WebAssembly, and a small linker."""
