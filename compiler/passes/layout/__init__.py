"""To stage `layout`: the order of axes in memory, weights in panels, Concats in place."""
