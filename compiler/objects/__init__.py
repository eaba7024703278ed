"""Object files: archives, headers, and a linker for one."""
