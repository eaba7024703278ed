"""Rewrites of an operator to another algorithm that needs no schedule of its own."""
