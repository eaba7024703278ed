"""Deformable convolutions as im2col and a product."""
