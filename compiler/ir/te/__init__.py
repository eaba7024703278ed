"""Tensor expressions: what an operator computes for one element, and schedules of its loops."""
