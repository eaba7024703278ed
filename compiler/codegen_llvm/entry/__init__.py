"""The plan as one native function."""
