"""Which operators run on the device, which on the CPU, and in what order."""
