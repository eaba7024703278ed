"""Tensor expressions: what an operator computes, an element at a time, and how loops run over it."""
