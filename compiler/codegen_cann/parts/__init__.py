"""Partitioning of a model between device and CPU."""
