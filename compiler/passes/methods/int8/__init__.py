"""Products of bytes, and functions of bytes as tables."""
