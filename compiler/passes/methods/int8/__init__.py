"""8-bit products, and lookup tables for functions of bytes."""
