"""Tiles of kernels for any sizes."""

TILE_ROWS = (16, 8, 4)  # filters, or rows of a product, that are computed together, where they are a multiple of it
