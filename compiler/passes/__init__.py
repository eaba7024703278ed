"""Passes over modules, and the pipelines that name their order."""
