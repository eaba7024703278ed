"""Deformable convolutions as samples and a product."""
