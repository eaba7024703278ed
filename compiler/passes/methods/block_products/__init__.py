"""Products of block-quantised weights (MatMulNBits)."""
