"""To stage `lowered`: te functions, then a plan over buffers."""
