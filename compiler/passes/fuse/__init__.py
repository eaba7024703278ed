"""Passes to stage `fused`: grouping ops into kernels."""
