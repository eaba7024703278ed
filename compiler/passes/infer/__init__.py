"""Passes to stage `inferred`: type and shape inference."""
