"""Attention in one kernel: flash-attention tiles for many queries, flash-decoding for a few."""
