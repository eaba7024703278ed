"""Passes to stage `layout`: axis order in memory, packed weights, in-place Concats."""
