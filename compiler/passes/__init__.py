"""Passes over modules, and the pipelines that order them."""
